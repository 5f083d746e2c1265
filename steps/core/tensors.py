"""What kernels read of a tensor: its memory, as shape and strides say it lies there.

PyTorch has tensors that are not that. Some are written out here (``plain``), such as one that PyTorch negates only when
it reads it. The others are refused, by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from steps.core.driver import ALIGNED, unsafe_calls_allowed

LONG = 2**31  # elements: cuTile holds strides in 32 bits

PLAIN: set[type] = set()  # PyTorch's own kinds of tensors; filled at the first call, as importing PyTorch takes long


def _plain_types() -> set[type]:
    import torch

    PLAIN.update((torch.Tensor, torch.nn.Parameter))
    return PLAIN


def is_plain(x) -> bool:
    """Whether ``x`` is a tensor whose memory holds its numbers."""
    try:
        return type(x) in (PLAIN or _plain_types()) and not x.is_neg() and not x.is_nested and x.data_ptr() != 0
    except RuntimeError:  # as of a tracer's
        return False


def kind(x) -> tuple:
    """All that a launch may depend on but a tensor's contents and address; of that, how it is aligned.

    Raises TypeError, or PyTorch's RuntimeError, for what is not ``plain``.
    """
    place = x.data_ptr()
    if place == 0 or type(x) not in (PLAIN or _plain_types()) or x.is_neg() or x.is_nested:  # as ``is_plain`` has it
        raise TypeError
    return x.shape, x.stride(), x.dtype, x.device, place % ALIGNED


def plain(**tensors) -> list:
    """These tensors with their numbers in memory; what is no tensor stays as it is, and is told elsewhere.

    Raises ValueError naming the tensor that cannot be had so.
    """
    if all(map(is_plain, tensors.values())):
        return list(tensors.values())
    return [_written_out(name, x) for name, x in tensors.items()]


def _written_out(name: str, x):
    import torch

    if not isinstance(x, torch.Tensor):
        return x
    if x.is_nested or x.layout is not torch.strided:
        came = "a nested tensor" if x.is_nested else f"layout {x.layout}"
        raise ValueError(f"{name} must be a dense tensor, got {came} (sequences of several lengths: cu_seqlens_q)")
    if torch._C._functorch.is_functorch_wrapped_tensor(x) or has_own_dispatch(x):
        came = "one of torch.func" if type(x) in PLAIN else f"a {type(x).__name__}"
        alone = "steps.attention, which takes no pages, is the one operator"
        raise ValueError(f"{name} must be a tensor with memory of its own, got {came} ({alone})")
    if x.device.type == "meta":
        raise ValueError(f"{name} must be on a CUDA device or the CPU, got a tensor on meta, which holds no numbers")
    if type(x) not in PLAIN:
        x = x.as_subclass(torch.Tensor)
    if x._is_zerotensor():
        x = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() and not x.data_ptr():
        raise ValueError(f"{name} must be a tensor with memory of its own, got one whose memory was given back")
    return x.resolve_conj().resolve_neg()


def has_own_dispatch(x) -> bool:
    """Whether a tensor's class has operators go its own way: fake, distributed, functional tensors."""
    import torch

    return not x.is_nested and type(x).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def check_out(name: str, out, like, width: int | None = None) -> None:
    """Raises ValueError unless ``out`` is a place for what is shaped as ``like``, with memory for each number.

    width: of the last axis, where that is not as ``like`` has it.
    """
    import torch

    shape = (*like.shape[:-1], like.shape[-1] if width is None else width)
    wanted = f"{name} must be a tensor with shape {shape}, {like.dtype} on {like.device}"
    if not isinstance(out, torch.Tensor):
        raise ValueError(f"{wanted}, got {type(out).__name__}")
    if (out.shape, out.dtype, out.device) != (shape, like.dtype, like.device):
        raise ValueError(f"{wanted}, got {tuple(out.shape)}, {out.dtype} on {out.device}")
    if out.requires_grad and torch.is_grad_enabled():
        raise ValueError(f"{wanted}, that requires no gradients, got one that does")
    if is_plain(out) and not _overlaps_itself(out):
        return
    raise ValueError(f"{wanted}, each number in memory of its own, got strides {tuple(out.stride())}, {type(out)}")


def contiguous_sinks(sinks):
    """Attention sinks with their numbers in a row. Raises ValueError for what is no tensor of their dtypes."""
    [sinks] = plain(sinks=sinks)
    check_type_of_sinks(sinks)
    return sinks.contiguous()


def sinks_in_float32(sinks):
    """Likewise, as forward kernels read them."""
    return contiguous_sinks(sinks).float()


def check_type_of_sinks(sinks) -> None:
    import torch

    taken = (torch.float32, torch.float16, torch.bfloat16)
    if not isinstance(sinks, torch.Tensor) or sinks.dtype not in taken:
        came = sinks.dtype if isinstance(sinks, torch.Tensor) else type(sinks).__name__
        raise ValueError(f"sinks must be a tensor [heads] in float32, float16 or bfloat16, got {came}")


def check_sinks(sinks, q) -> None:
    """Raises ValueError unless there is a sink for each head of q ``[batch, heads, seq_len, head_dim]``, beside it."""
    if sinks.shape != q.shape[1:2] or sinks.device != q.device:
        wanted = f"sinks must be a tensor [{q.shape[1]}] on {q.device}, a number for each head of q"
        raise ValueError(f"{wanted}, got {tuple(sinks.shape)} on {sinks.device}")


def _overlaps_itself(x, but_for: int | None = None) -> bool:
    """Whether two elements may lie in one place: an axis begins again before those inside it have ended.

    but_for: axes with this stride do not count.
    """
    inside = 0
    for stride, length in sorted((s, n) for s, n in zip(x.stride(), x.shape) if n > 1 and s != but_for):
        if stride <= inside:
            return True
        inside += stride * (length - 1)
    return False


def rows_overlap(*tensors) -> bool:
    """Whether a tensor's rows begin inside others, as ``unfold`` makes them; not for being expanded."""
    return any(_overlaps_itself(x, but_for=0) for x in tensors)


def check_strides(**tensors) -> None:
    """Raises ValueError for a tensor whose strides do not fit into 32 bits."""
    for name, x in tensors.items():
        if x is not None and has_long_strides(x):
            came = f"got {tuple(x.stride())} (pass a contiguous tensor)"
            raise ValueError(f"{name} must have strides below 2^31, which cuTile holds in 32 bits, {came}")


def has_long_strides(*tensors) -> bool:
    return any(max(x.stride()) >= LONG for x in tensors)


def packed_tight(*tensors) -> tuple:
    """Each contiguous; an axis of one element keeps no long stride, as it does in what PyTorch calls contiguous."""
    import torch

    tight = torch.contiguous_format
    return tuple(x.clone(memory_format=tight) if has_long_strides(x) else x.contiguous() for x in tensors)


@contextmanager
def undisturbed(device) -> Iterator[None]:
    """Inside, tensors are real and ordinary ones, whatever mode the caller is in: what is made here serves others.

    Also where a CUDA graph is being captured: this goes past it, in a stream that is not captured, and is done at the
    end.
    """
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
        if not is_capturing(device):
            yield
            return

        with unsafe_calls_allowed():
            stream = torch.cuda.Stream(device)
            with torch.cuda.stream(stream):
                yield
            stream.synchronize()


def is_capturing(device) -> bool:
    """Whether what the current stream is asked for goes into a CUDA graph."""
    import torch

    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def refuse_tangent(name: str):
    raise ValueError(
        f"{name} must have no derivative in forward mode (torch.func.jvp), as the kernels have none, "
        "got a tensor with one: take gradients (torch.func.grad or vjp)"
    )


def refuse_tangents(**tensors) -> None:
    """Raises ValueError for a tensor with a derivative in forward mode, or where vmap or functionalize may hide one."""
    import torch

    if torch.autograd.forward_ad._current_level < 0:
        return
    for name, x in tensors.items():
        try:
            hidden = isinstance(x, torch.Tensor) and torch._is_functional_tensor(x)
            found = hidden or (
                isinstance(x, torch.Tensor) and torch.autograd.forward_ad.unpack_dual(x).tangent is not None
            )
        except RuntimeError:
            found = True
        if found:
            refuse_tangent(name)


def tell_autograd(*written) -> None:
    """That a kernel wrote to these tensors: who saved one before for a backward pass gets PyTorch's error, as ever."""
    import torch

    for x in written:
        if not x.is_inference():  # which autograd never saves
            torch.autograd.graph.increment_version(x)
