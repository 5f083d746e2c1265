"""The front door for programs: ``steps.attention(q, k, v)``, by the best steps for these tensors.

It is a PyTorch operator, ``torch.ops.fmha_tutorial.attention``: ``torch.compile(fullgraph=True)`` takes it as a whole,
and CUDA graphs capture it. Where gradients are wanted it is another, ``attention_with_lse``, which autograd knows the
backward pass of, ``gradients``. A program that runs eagerly goes past the operators, as the dispatcher's way to Python
costs more than the launches: without gradients straight to the kernel, and with them by one node of autograd's graph,
``_EagerAttention``.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from types import NoneType
from typing import NamedTuple

import torch
from torch._C._functorch import TransformType
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from steps.core.choice import best
from steps.core.gradients import kind_of_gradients
from steps.core.ladder import get_step
from steps.core.launch import Launch, Launches, kind_of
from steps.core.problems import standard
from steps.core.recorded import recorded_runs
from steps.core.step import PIECE, Step, target_of
from steps.core.tensors import (
    ALIGNED,
    has_long_strides,
    has_own_dispatch,
    is_plain,
    plain,
    refuse_tangent,
    refuse_tangents,
    rows_overlap,
)
from tutorial_lib import reference
from tutorial_lib.files import RESULTS
from tutorial_lib.problem import Problem, check_window, flag, number, positive

modes, transformed = torch._C._len_torch_dispatch_stack, torch._C._are_functorch_transforms_active  # of torch.func
MOST_HEAD_DIM = 256  # of a kernel with gradients

_launches = Launches()
_trainings = Launches()


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    **of_sdpa,
) -> torch.Tensor:
    """Attention, ``softmax(scale * q @ k^T, masked) @ v``, by the step that ``steps.best`` names; differentiable.

    q ``[B, Hq, Sq, D]``, k and v ``[B, Hkv, Skv, D]``, float16 or bfloat16, any strides, on one device. ``causal``
    hides key j from query i where j > i, ``scale`` None means 1 / sqrt(D). ``window`` hides, under a causal mask, keys
    j <= i - window, too (a sliding window; its gradients are PyTorch's). Returns o ``[B, Hq, Sq, D]``, contiguous, in
    q's dtype, under autocast as well.
    The choice is made once for every kind of call. Where no step is recorded to be as fast as PyTorch's own attention,
    on the CPU for one, that computes it; where a tensor requires gradients, both passes must have such a step. Under
    ``torch.use_deterministic_algorithms`` gradients come from a step that gives the same bits every time, or from
    PyTorch.

    Raises ValueError naming the argument, what it must be and what came; of_sdpa: arguments that
    ``scaled_dot_product_attention`` has, and this has not. Gradients have no gradients of their own, and there are no
    derivatives in forward mode.
    """
    if of_sdpa or type(causal) is not bool:
        _refuse(causal, **of_sdpa)
        causal = flag("causal", causal)
    if scale is not None:
        scale = number("scale", scale)
    if window is not None:
        check_window(window, causal)  # here, as torch.compile traces past what is checked further on
    if torch.compiler.is_compiling():
        return _in_graph(q, k, v, causal, scale, window)
    if modes() or transformed() or forward_ad._current_level >= 0:  # somebody looks at operators as they are called
        return _watched(q, k, v, causal, scale, window)
    last, with_graph, kind = _launches.last, False, None
    try:
        if last is None or last.asked != (causal, scale, window) or not (last.is_like(q, k, v) and _aligned(q, k, v)):
            with_graph = (q.requires_grad or k.requires_grad or v.requires_grad) and torch.is_grad_enabled()
            kind = None if with_graph else (kind_of(q, k, v, causal, scale, None), window)
    except (AttributeError, TypeError, RuntimeError):  # no tensors, or of a kind of their own
        return _unusual(q, k, v, causal, scale, window)
    if with_graph:
        return _with_graph(q, k, v, causal, scale, window)
    if kind is None:  # as the last call
        return last.launch(q, k, v, None)
    ready = _launches.find(kind)
    if ready is None:
        if not (is_plain(q) and is_plain(k) and is_plain(v)):
            return _unusual(q, k, v, causal, scale, window)
        ready = _made_ready(kind, q, k, v, causal, scale, window)
    return _known_at_once(ready, kind, q, k, v).launch(q, k, v, None)


class Ready(NamedTuple):
    """What was made ready for a kind of call, and a short way to know another of its kind: ``_like``."""

    launch: Launch
    asked: tuple  # (causal, scale, window)
    is_like: Callable[..., bool]


def _known_at_once(ready: Ready, kind: tuple, q, k, v) -> Ready:
    """What is ready for this kind of call, which the next one will be compared with before it is looked up."""
    if ready is _launches.last and ready.is_like is not never:  # and was not known, so other modes are on
        ready = ready._replace(is_like=_like(q, k, v))
        _launches.keep(kind, ready)
    _launches.last = ready
    return ready


def _like(q, k, v) -> Callable[..., bool]:
    """``is_like(q, k, v)``: whether others have these tensors' type, dispatch keys, dtype, device, shape and strides.

    And whether the same modes are on. It is PyTorch's own guard of compiled programs, one call into C++ where
    ``kind_of`` takes many. What it does not know is never alike: a tensor that comes twice, and what is not
    ``_aligned``. Where a version of PyTorch has no such guard, nothing is.
    """
    tensors = q, k, v
    try:
        from torch._C._dynamo.guards import TensorGuards

        sizes, strides = [list(x.shape) for x in tensors], [list(x.stride()) for x in tensors]
        guards = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        if _aligned(*tensors) and guards.check(*tensors):
            return guards.check
    except (ImportError, TypeError, RuntimeError):
        pass
    return never


def never(*_) -> bool:
    return False


def _aligned(q, k, v) -> bool:
    """Whether all have memory, which begins where TMA takes it."""
    a, b, c = q.data_ptr(), k.data_ptr(), v.data_ptr()
    return not (a | b | c) % ALIGNED and 0 not in (a, b, c)


INSTEAD = {
    "attn_mask": "no mask but causal=True and window=N is known here, and packed sequences to a step's cu_seqlens_q",
    "dropout_p": "no weights are dropped here",
    "is_causal": "say causal=True",
    "enable_gqa": "k and v may have fewer heads without it",
}


def _refuse(causal, **of_sdpa) -> None:
    """Raises ValueError for what a caller of ``scaled_dot_product_attention`` passes by habit, or TypeError."""
    if isinstance(causal, torch.Tensor):
        raise ValueError(f"causal must be True or False, got a tensor: {INSTEAD['attn_mask']}")
    for name, value in of_sdpa.items():
        if name not in INSTEAD:
            raise TypeError(f"attention() got an unexpected keyword argument {name!r}")
        nothing = value is None or (name != "attn_mask" and isinstance(value, (int, float)) and value == 0)
        if name == "is_causal" or not nothing:
            came = repr(value) if isinstance(value, (bool, int, float, str)) else f"a {type(value).__name__}"
            raise ValueError(f"{name} is an argument of scaled_dot_product_attention, got {came}: {INSTEAD[name]}")


def _watched(q, k, v, causal: bool, scale: float | None, window: int | None):
    """By the operators, which whoever watches sees; raises ValueError for derivatives in forward mode."""
    refuse_tangents(q=q, k=k, v=v)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if isinstance(x, torch.Tensor) and x.device.type == "meta":
            plain(**{name: x})
    _check_sizes(q, k, v, causal, scale, window)
    if torch.is_grad_enabled() and _wants_gradients(*(inner for x in (q, k, v) for inner in _layers(x))):
        return _differentiable(q, k, v, causal, scale, window)
    return operator(q, k, v, causal, scale, window)


def _in_graph(q, k, v, causal: bool, scale: float | None, window: int | None):
    if forward_ad._current_level >= 0:  # what is traced shows no tangents, and the operators would drop them
        refuse_tangent("q, k or v")
    if torch.is_grad_enabled() and _wants_gradients(q, k, v):
        return _differentiable(q, k, v, causal, scale, window)
    return operator(q, k, v, causal, scale, window)


def _layers(x):
    """A tensor, and those that torch.func has wrapped: of gradients that are wanted of them vmap's own says nothing."""
    yield x
    while isinstance(x, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(x):
        yield (x := torch._C._functorch.get_unwrapped(x))


def _unusual(q, k, v, causal: bool, scale: float | None, window: int | None):
    """Tensors that are not their memory: written out, given to PyTorch's dispatcher, or refused by name."""
    tensors = {"q": q, "k": k, "v": v}
    for name, x in tensors.items():
        if isinstance(x, torch.Tensor) and has_own_dispatch(x):
            try:
                return _watched(q, k, v, causal, scale, window)
            except (NotImplementedError, TypeError) as error:  # as its class refuses what it does not know
                raise ValueError(
                    f"{name} must be a tensor that takes new operators, got a {type(x).__name__}"
                ) from error
    q, k, v = plain(**tensors)
    Problem.of(q, k, v, causal, scale, window=window)
    kind = kind_of(q, k, v, causal, scale, None), window
    return (_launches.find(kind) or _made_ready(kind, q, k, v, causal, scale, window)).launch(q, k, v, None)


@torch.library.custom_op("fmha_tutorial::attention", mutates_args=())
def operator(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
) -> torch.Tensor:
    """``attention`` as PyTorch's dispatcher calls it."""
    refuse_tangents(q=q, k=k, v=v)
    q, k, v = plain(q=q, k=k, v=v)
    try:
        kind = kind_of(q, k, v, causal, scale, None), window
    except AttributeError:  # no tensors
        Problem.of(q, k, v, causal, scale, window=window)
        raise
    return (_launches.find(kind) or _made_ready(kind, q, k, v, causal, scale, window)).launch(q, k, v, None)


@operator.register_fake
def _(q, k, v, causal=False, scale=None, window=None):
    _check_sizes(q, k, v, causal, scale, window)
    return q.new_empty(q.shape)


def _check_sizes(q, k, v, causal: bool, scale: float | None, window: int | None = None) -> None:
    """What ``Problem.of`` tells, where sizes are numbers and not names."""
    sizes = [length for x in (q, k, v) if isinstance(x, torch.Tensor) for length in x.shape]
    if all(type(n) is int for n in sizes) and type(window) in (int, NoneType):
        Problem.of(q, k, v, causal, scale, window=window)


def _by_batches(number: int):
    """A rule for torch.vmap: what it maps over goes into the batch of the first ``number`` arguments, tensors."""

    def rule(op):
        def mapped(info, in_dims, *arguments):
            tensors = [
                x.movedim(axis, 0) if axis is not None else x.expand(info.batch_size, *x.shape)
                for x, axis in zip(arguments[:number], in_dims)
            ]
            found = op(*(x.flatten(0, 1) for x in tensors), *arguments[number:])
            batches = (info.batch_size, -1)
            if isinstance(found, torch.Tensor):
                return found.unflatten(0, batches), 0
            return tuple(x.unflatten(0, batches) for x in found), (0,) * len(found)

        return mapped

    return rule


# --- with gradients ---


class Training(NamedTuple):
    """The steps of both passes."""

    forward: Step
    backward: Step


class Passes(NamedTuple):
    """Both passes of a kind of call that runs eagerly.

    forward: ``launch(q, k, v, None)`` returns (o, lse). repeats: whether ``backward`` was chosen to give the same bits
    every time.
    """

    forward: Launch
    backward: Step
    causal: bool
    scale: float | None
    repeats: bool


class _EagerAttention(torch.autograd.Function):
    """Both passes by their launches. Where somebody looks on at the backward pass, that is the operator's."""

    @staticmethod
    def forward(ctx, q, k, v, passes: Passes):
        o, lse = passes.forward(q, k, v, None)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.set_materialize_grads(False)
        ctx.passes = passes
        return o

    @staticmethod
    def backward(ctx, do):
        if do is None:
            return None, None, None, None
        _, backward, causal, scale, repeats = ctx.passes
        tensors = (*ctx.saved_tensors, do.contiguous())
        looked_on = torch.compiler.is_compiling() or modes() or transformed() or forward_ad._current_level >= 0
        past = not (looked_on or torch.is_grad_enabled()) and repeats == _must_repeat()
        if not past or (kind := kind_of_gradients(tensors, causal, scale)) is None:
            return *gradients(*tensors, causal, scale), None
        launch = backward.launches.find(kind) or backward.ready(*tensors, causal, scale)
        return *launch(*tensors, None), None


def _with_graph(q, k, v, causal: bool, scale: float | None, window: int | None):
    """Eagerly, for autograd; raises ValueError naming what is wrong."""
    repeats = _must_repeat()
    try:
        kind = kind_of(q, k, v, causal, scale, None), window, repeats
        ready = _launches.find(kind)
    except (AttributeError, TypeError, RuntimeError):  # no tensors, or of a kind of their own
        ready = None
    if ready is None:
        if any(isinstance(x, torch.Tensor) and has_own_dispatch(x) for x in (q, k, v)):
            return _unusual(q, k, v, causal, scale, window)
        q, k, v = plain(q=q, k=k, v=v)
        launch = _both_passes(q, k, v, causal, scale, window, repeats)
        kind = kind_of(q, k, v, causal, scale, None), window, repeats
        ready = Ready(launch, (causal, scale, window), _like(q, k, v))
        _launches.keep(kind, ready)
    return _known_at_once(ready, kind, q, k, v).launch(q, k, v, None)


def _both_passes(q, k, v, causal: bool, scale: float | None, window: int | None, repeats: bool) -> Launch:
    """``launch(q, k, v, None)`` returns o, which autograd knows the backward pass of."""
    problem, passes = Problem.of(q, k, v, causal, scale, window=window), None  # tells what is wrong
    if window is None and trains(_a_number(q.shape[3]), str(q.dtype), q.device, causal, repeats):
        forward, backward = training(problem, target_of(q.device), repeats)
        passes = Passes(forward.ready(q, k, v, causal, scale, return_lse=True), backward, causal, scale, repeats)

    def launch(q, k, v, _):
        if repeats != _must_repeat():  # since the call before
            return _with_graph(q, k, v, causal, scale, window)
        return _EagerAttention.apply(q, k, v, passes) if passes else _by_pytorch(q, k, v, causal, scale, window)

    return launch


def _differentiable(q, k, v, causal: bool, scale: float | None, window: int | None):
    compiling, inside = torch.compiler.is_compiling(), transformed()
    kernels = window is None and not (compiling and inside)  # which is traced through PyTorch's own alone
    if kernels and trains(_a_number(q.shape[3]), str(q.dtype), q.device, causal, _must_repeat()):
        return (_Transformed.apply if inside else attention_with_lse)(q, k, v, causal, scale)[0]
    # Under vmap the gradients of SDPA's fused kernels are wrong on a GPU (PyTorch 2.11), those of its plain way right.
    with sdpa_kernel(SDPBackend.MATH) if inside and not compiling and _mapped() else nullcontext():
        return _by_pytorch(q, k, v, causal, scale, window)


def _by_pytorch(q, k, v, causal: bool, scale: float | None, window: int | None):
    sign, positive_scale = positive(q.shape[-1] ** -0.5 if scale is None else scale)
    with torch.autocast(q.device.type, enabled=False):
        return reference.sdpa_masked(q if sign == 1 else q * sign, k, v, causal, positive_scale, window).contiguous()


def _mapped() -> bool:
    """Whether torch.vmap looks on."""
    return any(level.key() == TransformType.Vmap for level in torch._C._functorch.get_interpreter_stack())


def _a_number(head_dim: int) -> int:
    """A head_dim that torch.compile may take for a variable, as a number; what it makes is then for that alone."""
    for known in range(PIECE, MOST_HEAD_DIM + 1, PIECE):
        if head_dim == known:
            return known
    return 0  # one that no kernel with gradients takes


def _must_repeat() -> bool:
    """Whether the same call must give the same bits."""
    return torch.are_deterministic_algorithms_enabled()


@torch.compiler.assume_constant_result
def trains(head_dim: int, dtype: str, device: torch.device, causal: bool, repeats: bool = False) -> bool:
    """Whether both passes have a step that is recorded to be as fast as PyTorch's own; if not, that computes both.

    repeats: of steps whose gradients are the same bits every time. Lengths do not decide this, so that what
    torch.compile makes serves all of them.
    """
    if not head_dim or (device.type == "cuda" and not torch.cuda.is_available()):  # as of a fake tensor
        return False
    problem = replace(standard(causal=causal), head_dim=head_dim, dtype=dtype.removeprefix("torch."))
    return _trains(problem, target_of(device), repeats)


@cache
def _trains(problem: Problem, target: str, repeats: bool = False) -> bool:
    try:
        choices = [_best(problem, target, direction, repeats) for direction in ("forward", "backward")]
    except ValueError:
        return False
    return all(choice.beats_sdpa(target) for choice in choices)


def with_gradients(problem: Problem, target: str) -> Training | None:
    """The steps by which ``attention`` computes a problem whose gradients are wanted; None where PyTorch's own does."""
    asked = replace(standard(causal=problem.causal), head_dim=problem.head_dim, dtype=problem.dtype)
    kernels = problem.window is None and _a_number(problem.head_dim) and _trains(asked, target)
    return training(problem, target) if kernels else None


def _best(problem: Problem, target: str, direction: str, repeats: bool):
    among = (lambda step: step.deterministic) if repeats and direction == "backward" else None
    return best(problem, target, _recorded(direction), direction, among)


@torch.library.custom_op("fmha_tutorial::attention_with_lse", mutates_args=())
def attention_with_lse(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(o, lse) for a backward pass, by the fastest recorded step."""
    q, k, v = (x.detach() for x in plain(q=q, k=k, v=v))
    step = training(Problem.of(q, k, v, causal, scale), target_of(q.device), _must_repeat()).forward
    return step.attention(q, k, v, causal, scale, return_lse=True)


@attention_with_lse.register_fake
def _(q, k, v, causal=False, scale=None):
    _check_sizes(q, k, v, causal, scale)
    return q.new_empty(q.shape), q.new_empty(q.shape[:-1], dtype=torch.float32)


@torch.library.custom_op("fmha_tutorial::gradients", mutates_args=())
def gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    causal: bool,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(dq, dk, dv), contiguous, by the step that goes with ``attention_with_lse``."""
    step = training(Problem.of(q, k, v, causal, scale), target_of(q.device), _must_repeat()).backward
    return step.gradients(q, k, v, o, lse, do.contiguous(), causal, scale)


@gradients.register_fake
def _(q, k, v, o, lse, do, causal, scale):
    for name, x in (("k", k), ("v", v), ("o", o), ("lse", lse), ("do", do)):
        if x.device != q.device:  # one tensor on meta brings a real call here, too
            raise ValueError(f"{name} must be on q's device ({q.device}), got {x.device}")
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _keep(ctx, inputs, output):
    q, k, v, causal, scale = inputs
    o, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(q, k, v, o, lse)
    ctx.causal, ctx.scale = causal, scale


def _backward(ctx, do, _):
    q, k, v, o, lse = ctx.saved_tensors
    return *gradients(q, k, v, o, lse, do, ctx.causal, ctx.scale), None, None


def _refuse_second(*_):
    raise ValueError("gradients must be asked for once: those of attention have no gradients of their own")


attention_with_lse.register_autograd(_backward, setup_context=_keep)
gradients.register_autograd(_refuse_second)


class _Transformed(torch.autograd.Function):
    """``attention_with_lse`` for torch.func, which does not take gradients that are registered with an operator."""

    generate_vmap_rule = True

    @staticmethod
    @torch.no_grad
    def forward(q, k, v, causal, scale):
        return attention_with_lse(q, k, v, causal, scale)

    setup_context = staticmethod(_keep)

    @staticmethod
    def backward(ctx, do, _):
        q, k, v, o, lse = ctx.saved_tensors
        return *_TransformedGradients.apply(q, k, v, o, lse, do, ctx.causal, ctx.scale), None, None

    @staticmethod
    def jvp(ctx, *_):
        refuse_tangent("q, k or v")


class _TransformedGradients(torch.autograd.Function):
    """``gradients`` for torch.func, which would take what has no graph for a constant."""

    generate_vmap_rule = True

    @staticmethod
    @torch.no_grad
    def forward(q, k, v, o, lse, do, causal, scale):
        return gradients(q, k, v, o, lse, do, causal, scale)

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Nothing is kept."""

    @staticmethod
    def backward(ctx, *_):
        _refuse_second()

    jvp = backward


operator.register_vmap(_by_batches(3)(operator))
attention_with_lse.register_vmap(_by_batches(3)(attention_with_lse))
gradients.register_vmap(_by_batches(6)(gradients))


def training(problem: Problem, target: str, repeats: bool = False) -> Training:
    """The fastest recorded steps for both passes of a problem on "sm_90" and the like; raises Unsupported.

    repeats: of those whose gradients are the same bits every time.
    """
    asked = problem, target, repeats
    if (known := _trainings.find(asked)) is None:
        known = Training(*(_best(problem, target, direction, repeats).step for direction in ("forward", "backward")))
        _trainings.keep(asked, known)
    return known


# --- the choice ---


def chosen(problem: Problem, target: str) -> Step:
    """The step for a problem on "sm_90", "cpu" and the like: PyTorch's own where none is recorded to be as fast."""
    try:
        choice = best(problem, target, _recorded("forward"))
    except ValueError:  # an architecture that nothing is known of, or no recorded step takes the problem
        return get_step("sdpa")
    return choice.step if choice.beats_sdpa(target) else get_step("sdpa")


@cache
def _recorded(direction: str) -> tuple:
    return tuple(recorded_runs(RESULTS, direction))


def _made_ready(kind: tuple, q, k, v, causal: bool, scale: float | None, window: int | None) -> Ready:
    step = chosen(Problem.of(q, k, v, causal, scale, window=window), target_of(q.device))
    is_like = _like(q, k, v)
    far = has_long_strides(q, k, v) or rows_overlap(q, k, v)  # which not every step takes, nor PyTorch
    if far:
        q, k, v = (x.contiguous() for x in (q, k, v))
    ready = step.ready(q, k, v, causal, scale, window=window)

    def from_contiguous(q, k, v, out):
        return ready(q.contiguous(), k.contiguous(), v.contiguous(), out)

    def contiguous(q, k, v, out):
        return ready(q, k, v, out).contiguous()

    launch = contiguous if step.backend == "torch" else ready  # PyTorch's output may lie otherwise
    made = Ready(from_contiguous if far else launch, (causal, scale, window), is_like)
    _launches.keep(kind, made)
    return made


def _wants_gradients(*tensors) -> bool:
    return any(isinstance(x, torch.Tensor) and x.requires_grad for x in tensors)
