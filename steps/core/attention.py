"""The front door for programs: ``steps.attention(q, k, v)``, by the best steps for these tensors.

It is a PyTorch operator, ``torch.ops.fmha_tutorial.attention``: ``torch.compile(fullgraph=True)`` takes it as a whole,
and CUDA graphs capture it. Where gradients or the log-sum-exp are wanted it is another, ``attention_with_lse``, which
autograd knows the backward pass of, ``gradients``. A program that runs eagerly goes past the operators, as the
dispatcher's way to Python costs more than the launches: without gradients straight to the kernel, and with them by one
node of autograd's graph, ``_EagerAttention`` or ``_EagerWithMore``. Whatever no step computes, or none is recorded to
compute as fast, and PyTorch's own does not know, ``tutorial_lib.blockwise`` does.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import cache, lru_cache, partial
from typing import NamedTuple

import torch
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from steps.core.alike import aligned, like, never
from steps.core.asked import CU_SEQLENS, Asked, asked_of, check_sizes, for_steps, has_more, problem_of, refuse, scoring
from steps.core.choice import best
from steps.core.driver import ALIGNED
from steps.core.ladder import get_step
from steps.core.launch import KEPT, Launch, Launches, kind_of
from steps.core.problems import standard
from steps.core.recorded import recorded_timings
from steps.core.step import PIECE, Step, target_of
from steps.core.tensors import (
    has_long_strides,
    has_own_dispatch,
    is_plain,
    packed_tight,
    plain,
    refuse_tangent,
    refuse_tangents,
    rows_overlap,
)
from steps.core.transformed import by_batches, is_mapped, layers
from tutorial_lib import blockwise, reference
from tutorial_lib.files import RESULTS
from tutorial_lib.packing import as_batch, as_packed
from tutorial_lib.problem import Problem, check_window, flag, number, positive

is_compiling = torch.compiler.is_compiling
BLOCKWISE = object()  # in a step's place: ``tutorial_lib.blockwise``
modes, transformed = torch._C._len_torch_dispatch_stack, torch._C._are_functorch_transforms_active  # of torch.func
_must_repeat = torch._C._get_deterministic_algorithms  # whether the same call must give the same bits
MOST_HEAD_DIM = 256  # of a kernel with gradients
UNTIMED = {"softcap", "lengths"}  # of ``Problem.features``: those of Hopper's gradients that a record must have, too
ASKED = (  # ``Asked``, as PyTorch writes it
    "bool causal=False, float? scale=None, int? window=None, int? right=None, float? softcap=None, "
    "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, Tensor? sinks=None"
)
GIVEN = f"Tensor q, Tensor k, Tensor v, {ASKED}"

_launches = Launches()
_trainings = Launches()
_packed = Launches()  # (the step for gradients of packed sequences, or None,)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    scale: float | None = None,
    window: int | tuple[int, int] | None = None,
    *,
    softcap: float | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    return_lse: bool = False,
    **of_sdpa,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention, ``softmax(scale * q @ k^T, masked) @ v``, by the step that ``steps.best`` names; differentiable.

    q ``[B, Hq, Sq, D]``, k ``[B, Hkv, Skv, D]``, v ``[B, Hkv, Skv, Dv]``, float16 or bfloat16, any strides, on one
    device. ``causal`` hides key j from query i where j > i, ``scale`` None means 1 / sqrt(D). Returns o
    ``[B, Hq, Sq, Dv]``, contiguous, in q's dtype, under autocast as well.

    ``window``: under a causal mask a number hides keys j <= i - window, too. A pair (left, right) hides keys
    j < i - left and j > i + right, and -1 nothing, as flash-attn's ``window_size``; but i and j count from the first
    query and the first key, as under ``causal``, while flash-attn counts from the last. Every query must see a key.
    ``softcap``: a scaled score s becomes softcap * tanh(s / softcap), before the mask.
    ``cu_seqlens_q``, int32 ``[sequences + 1]`` on q's device: sequences are packed, q ``[tokens, Hq, D]``, k and v
    ``[tokens, Hkv, ...]``, o as q; it holds where each begins, and last the number of tokens. ``cu_seqlens_k`` says the
    same of the keys, None: as of the queries. A step checks what both hold at the first call of a kind, PyTorch at
    every call, for which the host waits for the device.
    ``sinks`` ``[Hq]``, float32, float16 or bfloat16: one more logit for every query of a head, which is not scaled,
    takes part in the softmax's sum, and has no value. It has a gradient.
    ``return_lse``: returns (o, lse); lse ``[B, Hq, Sq]``, of packed sequences ``[Hq, tokens]``, in float32, is the
    natural logarithm of the sum of exp(score) over the keys that a query sees, and its sink. It is differentiable.

    The choice is made once for every kind of call. Where no step is recorded to be as fast as PyTorch's own attention,
    on the CPU for one, that computes it; where a tensor requires gradients, both passes must have such a step. What
    neither PyTorch's own nor a step knows, in one of the passes, and that for which PyTorch's own would hold all
    scores, PyTorch computes a tile of queries at a time (``tutorial_lib.blockwise``). Memory grows with the length, and
    not with its square. Under ``torch.use_deterministic_algorithms`` gradients come from a step that gives the same
    bits every time, or from PyTorch.

    A query whose scores are all minus infinity gets 0 on the CPU and NaN from a step's kernel, and its lse is minus
    infinity. With a finite sink it gets 0 everywhere. A soft cap makes such scores finite.

    Raises ValueError naming the argument, what it must be and what came; of_sdpa: arguments that
    ``scaled_dot_product_attention`` has, and this has not. Gradients have no gradients of their own, and there are no
    derivatives in forward mode.
    """
    if of_sdpa or type(causal) is not bool:
        refuse(causal, **of_sdpa)
        causal = flag("causal", causal)
    if scale is not None:
        scale = number("scale", scale)
    counted = window is None or type(window) is int
    if return_lse or not (counted and softcap is cu_seqlens_q is cu_seqlens_k is sinks is None):
        asked = asked_of(causal, scale, window, softcap, cu_seqlens_q, cu_seqlens_k, sinks)
        return _with_more(q, k, v, asked, flag("return_lse", return_lse))
    if window is not None:
        check_window(window, causal)
    if is_compiling():
        return _in_graph(q, k, v, Asked(causal, scale, window))
    if modes() or transformed() or forward_ad._current_level >= 0:  # ``watched``, for less of the host
        return _watched(q, k, v, Asked(causal, scale, window))
    last, called = _launches.last, (causal, scale, window, _must_repeat())
    try:
        known = last is not None and last.called == called and last.is_like(q, k, v)
        if known:  # and ``aligned``, for less of the host
            a, b, c = q.data_ptr(), k.data_ptr(), v.data_ptr()
            known = a and b and c and not (a | b | c) % ALIGNED
        if not known:
            with_graph = (q.requires_grad or k.requires_grad or v.requires_grad) and torch.is_grad_enabled()
            kind = _kind(q, k, v, Asked(causal, scale, window), False, with_graph)
    except (AttributeError, TypeError, RuntimeError):  # no tensors, or of a kind of their own
        return _with_more(q, k, v, Asked(causal, scale, window), False)
    return (last if known else _looked_up(kind, q, k, v, Asked(causal, scale, window))).launch(q, k, v, None)


class Ready(NamedTuple):
    """What was made ready for a kind of call, and a short way to know another of its kind: ``like``.

    called: (causal, scale, window, whether bits must repeat).
    """

    launch: Launch
    called: tuple
    is_like: Callable[..., bool]


def _kind(q, k, v, asked: Asked, return_lse: bool, with_graph: bool) -> tuple:
    """All that a launch may depend on; raises as ``kind_of``."""
    more = (x if x is None else (x.shape, x.dtype, x.device) for x in asked[-3:])
    return kind_of(q, k, v, *asked[:2], None), *asked[2:5], *more, return_lse, with_graph, _must_repeat()


def _looked_up(kind: tuple, q, k, v, asked: Asked) -> Ready:
    """What is ready for this kind of call, which the next one will be compared with before it is looked up."""
    ready = _launches.find(kind)
    if ready is None:
        if not (is_plain(q) and is_plain(k) and is_plain(v)):
            return Ready(lambda q, k, v, _: _with_more(q, k, v, asked, False), (), never)
        ready = _made_ready(kind, q, k, v, asked, False)
    elif ready is _launches.last and ready.is_like is not never:  # and was not known, so other modes are on
        ready = ready._replace(is_like=_like(kind, q, k, v))
        _launches.keep(kind, ready)
    _launches.last = ready
    return ready


def watched() -> bool:
    """Whether somebody looks at operators as they are called."""
    return modes() or transformed() or forward_ad._current_level >= 0


def _with_more(q, k, v, asked: Asked, return_lse: bool):
    """With arguments beside causal and scale. Raises ValueError naming what is wrong."""
    if torch.compiler.is_compiling():
        return _in_graph(q, k, v, asked, return_lse)
    if watched():
        return _watched(q, k, v, asked, return_lse)
    for name, x in _tensors(q, k, v, asked).items():
        if isinstance(x, torch.Tensor) and has_own_dispatch(x):
            return _dispatched(name, x, q, k, v, asked, return_lse)
    if _wants_gradients(q, k, v, asked.sinks):
        q, k, v, asked = _plain(q, k, v, asked)
        check_sizes(q, k, v, asked)
        return _differentiable(q, k, v, asked, return_lse, _EagerWithMore.apply)
    return computed(q, k, v, asked, return_lse)


def _tensors(q, k, v, asked: Asked) -> dict:
    """The tensors of a call, by name."""
    more = {name: getattr(asked, name) for name in (*CU_SEQLENS, "sinks")}
    return {"q": q, "k": k, "v": v} | {name: x for name, x in more.items() if x is not None}


def _plain(q, k, v, asked: Asked) -> tuple:
    """(q, k, v, asked) with numbers in memory; raises ValueError naming what cannot be had so."""
    named = _tensors(q, k, v, asked)
    q, k, v, *others = plain(**named)
    return q, k, v, asked._replace(**dict(zip(list(named)[3:], others)))


def _watched(q, k, v, asked: Asked, return_lse: bool = False):
    """By the operators, which whoever watches sees; raises ValueError for derivatives in forward mode."""
    named = _tensors(q, k, v, asked)
    refuse_tangents(**named)
    for name, x in named.items():
        if isinstance(x, torch.Tensor) and x.device.type == "meta":
            plain(**{name: x})
    check_sizes(q, k, v, asked)
    wanted = _wants_gradients(*(inner for x in (q, k, v, asked.sinks) for inner in layers(x)))
    return _by_operators(q, k, v, asked, return_lse, wanted)


def _in_graph(q, k, v, asked: Asked, return_lse: bool = False):
    if forward_ad._current_level >= 0:  # what is traced shows no tangents, and the operators would drop them
        refuse_tangent("q, k or v")
    return _by_operators(q, k, v, asked, return_lse, _wants_gradients(q, k, v, asked.sinks))


def _by_operators(q, k, v, asked: Asked, return_lse: bool, wants_gradients: bool):
    if wants_gradients:
        return _differentiable(q, k, v, asked, return_lse)
    return (attention_with_lse if return_lse else operator)(q, k, v, *asked)


def _dispatched(name: str, x, q, k, v, asked: Asked, return_lse: bool = False):
    """Where a tensor, ``x``, has operators go its own way."""
    try:
        return _watched(q, k, v, asked, return_lse)
    except (NotImplementedError, TypeError) as error:  # as its class refuses what it does not know
        raise ValueError(f"{name} must be a tensor that takes new operators, got a {type(x).__name__}") from error


@torch.library.custom_op("fmha_tutorial::attention", mutates_args=(), schema=f"({GIVEN}) -> Tensor")
def operator(q, k, v, *asked):
    """``attention`` as PyTorch's dispatcher calls it."""
    return computed(q, k, v, Asked(*asked), False)


@operator.register_fake
def _(q, k, v, *asked):
    check_sizes(q, k, v, Asked(*asked))
    return q.new_empty(*q.shape[:-1], v.shape[-1])


def computed(q, k, v, asked: Asked, return_lse: bool):
    """o or (o, lse), eagerly and without a graph, by a step or a tile at a time; raises ValueError."""
    refuse_tangents(**_tensors(q, k, v, asked))
    q, k, v, asked = _plain(q, k, v, asked)
    try:
        kind = _kind(q, k, v, asked, return_lse, False)
    except AttributeError:  # no tensors
        problem_of(q, k, v, asked)
        raise
    ready = _launches.find(kind) or _made_ready(kind, q, k, v, asked, return_lse)
    return ready.launch(q, k, v, None, *(x for x in asked[-3:] if x is not None))


def _made_ready(kind: tuple, q, k, v, asked: Asked, return_lse: bool) -> Ready:
    *_, with_graph, repeats = kind
    launch = _with_graph(q, k, v, asked) if with_graph else _without_graph(q, k, v, asked, return_lse)
    ready = Ready(launch, (*asked[:3], repeats), _like(kind, q, k, v))
    _launches.keep(kind, ready)
    return ready


def _like(kind: tuple, q, k, v) -> Callable[..., bool]:
    """``like``, which does not see whether gradients are on: without a graph it must not know what requires them."""
    *_, with_graph, _ = kind
    return like(q, k, v) if with_graph or not (q.requires_grad or k.requires_grad or v.requires_grad) else never


def _without_graph(q, k, v, asked: Asked, return_lse: bool) -> Launch:
    """``launch(q, k, v, None, *tensors)`` of the step that is chosen, or a tile at a time; tensors: those of ``asked``.

    Raises ValueError for what is wrong.
    """
    step, numbers = _step_for(q, k, v, asked, return_lse), asked[:5]
    names = [name for name in (*CU_SEQLENS, "sinks") if getattr(asked, name) is not None]
    far = has_long_strides(q, k, v) or rows_overlap(q, k, v)  # which not every step takes, nor PyTorch
    if far:
        q, k, v = packed_tight(q, k, v)
    how = {"return_lse": return_lse, "window": asked.window, "softcap": asked.softcap}
    if step is BLOCKWISE:

        def launch(q, k, v, _, *tensors):
            o, lse = _by_blocks(blockwise.forward, q, k, v, Asked(*numbers, **dict(zip(names, tensors))))
            return (o, lse) if return_lse else o

    elif step.backend == "torch" and not names:
        launch = _left_to_pytorch(q, k, *numbers[:2])
    elif names:

        @torch.no_grad()
        def launch(q, k, v, _, *tensors):
            return step.attention(q, k, v, *numbers[:2], **how, **dict(zip(names, tensors)))

    else:
        launch = step.ready(q, k, v, *numbers[:2], **how)

    def from_contiguous(q, k, v, *others):
        return launch(*packed_tight(q, k, v), *others)

    def contiguous(*given):
        return launched(*given).contiguous()

    launched = from_contiguous if far else launch
    packed = step is not BLOCKWISE and step.backend == "torch" and names
    return contiguous if packed else launched  # as what PyTorch returns may lie otherwise


def _step_for(q, k, v, asked: Asked, return_lse: bool) -> Step | object:
    """Which step computes what is asked for, or ``BLOCKWISE``; raises ValueError for what is wrong."""
    problem = problem_of(q, k, v, asked)
    if not for_steps(asked):
        return BLOCKWISE
    target = target_of(q.device)
    step = chosen(problem, target)
    narrow = q.device.type == "cpu" and q.shape[-1] != v.shape[-1]
    whole = asked.window is not None or narrow  # for these PyTorch holds all scores, or a mask of as many
    pytorchs = step.backend == "torch" and (return_lse or whole or step.unsupported(problem, target))
    return BLOCKWISE if pytorchs else step


def _by_blocks(function: Callable, q, k, v, asked: Asked, *others, **more) -> list:
    """What a ``function`` of ``tutorial_lib.blockwise`` returns of (q, k, v, *others), shaped as these are."""
    tensors, pairs = (q, k, v, *others), None
    if asked.cu_seqlens_q is not None:
        pairs = problem_of(q, k, v, asked).pairs_of_lengths
        tensors = [as_batch(x) if x.ndim == 3 else x[None] for x in tensors]
    made = function(*tensors, scoring(asked, q.shape[-1]), asked.sinks, pairs, **more)
    if pairs is None:
        return list(made)
    back = {4: lambda x: as_packed(x).contiguous(), 3: lambda x: x[0], 1: lambda x: x}
    return [x if x is None else back[x.ndim](x) for x in made]


# --- with gradients ---


class Training(NamedTuple):
    """The steps of both passes."""

    forward: Step
    backward: Step


class Passes:
    """Both passes of a kind of call that runs eagerly, by steps.

    forward: ``launch(q, k, v, None)`` returns (o, lse). repeats: whether the backward step was chosen to give the same
    bits every time.
    """

    def __init__(self, q, k, v, causal: bool, scale: float | None, repeats: bool):
        both = training(Problem.of(q, k, v, causal, scale), target_of(q.device), repeats)
        self.forward = both.forward.ready(q, k, v, causal, scale, return_lse=True)
        self.step, self.asked, self.repeats = both.backward, (causal, scale), repeats
        self._last: tuple[Launch | None, Callable] = None, never

    def backward(self, tensors: tuple) -> Launch | None:
        """``launch(*tensors, None)`` for (q, k, v, o, lse, do); None where one of them is not ``plain``."""
        launch, is_like = self._last
        if is_like(*tensors) and aligned(*tensors):
            return launch
        if not all(map(is_plain, tensors)):
            return None
        launch = self.step.ready(*tensors, *self.asked)
        self._last = launch, like(*tensors)
        return launch


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
        passes, tensors = ctx.passes, (*ctx.saved_tensors, do.contiguous())
        if not _backward_watched() and passes.repeats == _must_repeat() and (launch := passes.backward(tensors)):
            return *launch(*tensors, None), None
        return *gradients(*tensors, *passes.asked)[:3], None


def _backward_watched() -> bool:
    """Whether somebody looks at the operators of a backward pass, or wants gradients of it."""
    return torch.is_grad_enabled() or torch.compiler.is_compiling() or watched()


def _with_graph(q, k, v, asked: Asked) -> Launch:
    """``launch(q, k, v, None)`` returns o, which autograd knows the backward pass of; raises ValueError."""
    problem_of(q, k, v, asked)  # tells what is wrong
    if not _trained(q, k, v, asked, _must_repeat()):
        return lambda q, k, v, _: _differentiable(q, k, v, asked, by=_EagerWithMore.apply)
    if has_long_strides(q, k, v):  # which not every step takes
        passes = Passes(*packed_tight(q, k, v), *asked[:2], _must_repeat())
        return lambda q, k, v, _: _EagerAttention.apply(*packed_tight(q, k, v), passes)
    passes = Passes(q, k, v, *asked[:2], _must_repeat())
    return lambda q, k, v, _: _EagerAttention.apply(q, k, v, passes)


def _differentiable(q, k, v, asked: Asked, return_lse: bool = False, by: Callable | None = None):
    """o or (o, lse), of which autograd knows the gradients; by: what takes the operator's place."""
    compiling, inside = torch.compiler.is_compiling(), transformed()
    if compiling and inside and (return_lse or has_more(asked)):
        raise ValueError(
            "window, softcap, cu_seqlens_q, sinks and return_lse must be left out where torch.compile traces "
            "torch.func.grad or vjp: take autograd's gradients there"
        )
    if not (return_lse or has_more(asked)) and _sdpa_is_better(q, k, v, asked, compiling and inside):
        # Under vmap the gradients of SDPA's fused kernels are wrong on a GPU (PyTorch 2.11), those of its plain way
        # right.
        with sdpa_kernel(SDPBackend.MATH) if inside and not compiling and is_mapped() else nullcontext():
            return _by_pytorch(q, k, v, *asked[:2])
    o, lse = (_Transformed.apply if inside else by or attention_with_lse)(q, k, v, *asked)
    return (o, lse) if return_lse else o


def _sdpa_is_better(q, k, v, asked: Asked, traced: bool) -> bool:
    """Whether PyTorch's own computes both passes of plain attention; traced: whether nothing else can be.

    Of values of another width its kernels for GPUs take those of as many heads. Elsewhere it holds all scores at once.
    """
    if traced:
        return True
    if q.shape[-1] != v.shape[-1]:
        return q.is_cuda and q.shape[1] == k.shape[1] and not (q.shape[-1] % PIECE or v.shape[-1] % PIECE)
    return not _trained(q, k, v, asked, torch.are_deterministic_algorithms_enabled())  # which torch.compile knows


def _trained(q, k, v, asked: Asked, repeats: bool) -> bool:
    """Whether steps compute both passes of what is asked for."""
    if has_more(asked) or q.shape[-1] != v.shape[-1]:
        return False
    return trains(_a_number(q.shape[3]), str(q.dtype), q.device, asked.causal, repeats)


def _left_to_pytorch(q, k, causal: bool, scale: float | None) -> Launch:
    """``launch(q, k, v, None)`` is ``_by_pytorch`` for tensors of these shapes, for less of the host."""
    sign, positive_scale = positive(q.shape[-1] ** -0.5 if scale is None else scale)
    own, autocast = reference.ready_sdpa(q, k, causal, positive_scale), torch._C._is_any_autocast_enabled

    def launch(q, k, v, _):
        if sign != 1 or autocast():
            return _by_pytorch(q, k, v, causal, scale)
        return own(q, k, v).contiguous()

    return launch


def _by_pytorch(q, k, v, causal: bool, scale: float | None):
    sign, positive_scale = positive(q.shape[-1] ** -0.5 if scale is None else scale)
    with torch.autocast(q.device.type, enabled=False):
        return reference.sdpa(q if sign == 1 else q * sign, k, v, causal, positive_scale).contiguous()


def _a_number(head_dim: int) -> int:
    """A head_dim that torch.compile may take for a variable, as a number; what it makes is then for that alone."""
    for known in range(PIECE, MOST_HEAD_DIM + 1, PIECE):
        if head_dim == known:
            return known
    return 0  # one that no kernel with gradients takes


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
    if problem.features:
        backward = _backward_of_more(replace(problem, scale=None), target, False)
        return Training(chosen(problem, target), backward) if backward else None
    asked = replace(standard(causal=problem.causal), head_dim=problem.head_dim, dtype=problem.dtype)
    kernels = _a_number(problem.head_dim) and _trains(asked, target)
    return training(problem, target) if kernels else None


def _best(problem: Problem, target: str, direction: str, repeats: bool, runs: Sequence | None = None, but: str = ""):
    """As ``best``; runs: those that count (None: all); but: of which backend no step is wanted."""

    def among(step: Step) -> bool:
        return step.backend != but and (direction != "backward" or not repeats or step.deterministic)

    return best(problem, target, _recorded(direction) if runs is None else runs, direction, among)


def _attention_with_lse(q, k, v, *asked):
    """(o, lse) for a backward pass, by the fastest recorded step."""
    asked, repeats = Asked(*asked), _must_repeat()
    if not _trained(q, k, v, asked, repeats):
        return computed(q, k, v, asked, True)
    q, k, v = (x.detach() for x in plain(q=q, k=k, v=v))
    step = training(Problem.of(q, k, v, *asked[:2]), target_of(q.device), repeats).forward
    return step.attention(q, k, v, *asked[:2], return_lse=True)


attention_with_lse = torch.library.custom_op(
    "fmha_tutorial::attention_with_lse", _attention_with_lse, mutates_args=(), schema=f"({GIVEN}) -> (Tensor, Tensor)"
)


@attention_with_lse.register_fake
def _(q, k, v, *asked):
    check_sizes(q, k, v, Asked(*asked))
    rows = q.shape[:-1] if q.ndim == 4 else (q.shape[1], q.shape[0])
    return q.new_empty(*q.shape[:-1], v.shape[-1]), q.new_empty(rows, dtype=torch.float32)


def _gradients(
    q, k, v, o, lse, do, causal=False, scale=None, window=None, right=None, softcap=None, cu_seqlens_q=None,
    cu_seqlens_k=None, sinks=None, dlse=None, *, of_sinks=True,
):  # fmt: skip
    """(dq, dk, dv, dsinks), contiguous, of what ``attention_with_lse`` returned; dsinks is empty without sinks.

    By the step that goes with it; with a gradient of lse, and where there is no step, a tile of queries at a time.
    of_sinks: whether dsinks is wanted; a step leaves it empty else.
    """
    asked, repeats = Asked(causal, scale, window, right, softcap, cu_seqlens_q, cu_seqlens_k, sinks), _must_repeat()
    if dlse is None and (step := _backward_step(q, k, v, asked, repeats)):
        more = {"window": window, "softcap": softcap, "sinks": sinks if of_sinks else None}
        more |= {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
        if has_long_strides(q, k, v) and not step.takes_long_strides:
            q, k, v = packed_tight(q, k, v)
        made = step.gradients(q, k, v, o, lse, do.contiguous(), causal, scale, **more)
        return made if more["sinks"] is not None else (*made, q.new_empty(0))
    if dlse is not None and asked.cu_seqlens_q is not None:
        dlse = dlse[None]
    *made, dsinks = _by_blocks(blockwise.gradients, q, k, v, asked, o, lse, do, dlse=dlse)
    return *made, q.new_empty(0) if dsinks is None else dsinks


def _backward_step(q, k, v, asked: Asked, repeats: bool) -> Step | None:
    """The step that computes these gradients; None where PyTorch does, a tile of queries at a time."""
    target = target_of(q.device)
    if not has_more(asked):
        plain_pair = _trained(q, k, v, asked, repeats) and training(Problem.of(q, k, v, *asked[:2]), target, repeats)
        return plain_pair.backward if plain_pair else None
    if not for_steps(asked):
        return None
    if asked.cu_seqlens_q is None:
        return _backward_of_more(replace(problem_of(q, k, v, asked), scale=None), target, repeats)
    kind = _kind(q, k, v, asked, False, False)
    if (found := _packed.find(kind)) is None:  # lengths do not decide this, and are read once
        found = (_backward_of_more(replace(problem_of(q, k, v, asked), scale=None), target, repeats),)
        _packed.keep(kind, found)
    return found[0]


@lru_cache(maxsize=KEPT)
def _backward_of_more(problem: Problem, target: str, repeats: bool) -> Step | None:
    """The step for the gradients of a problem with a window, a soft cap, sinks or packed sequences, if one takes it.

    Its own record decides; where there is none, any record of gradients on this architecture counts: by these
    ``steps.core.cost`` expects how long a step takes for the tiles that a window leaves to it. Sinks are no other
    kernel. For a window on sm_90 that names one of Hopper's steps. What a soft cap and packed sequences cost these no
    record of others tells: only records with them count, and where there are none, cuTile's steps take them. What these
    refuse, Hopper's take all the same.

    ``beats_sdpa`` is not asked: what computes these without a step is ``tutorial_lib.blockwise``, not SDPA, which would
    read a mask of all scores for a window. No record times ``blockwise``.
    """
    needed, known = UNTIMED.intersection(problem.features), _recorded("backward")
    telling = [run for run in known if needed.issubset(run.the_problem().features)]
    for runs, but in ((telling, ""), (known, "hopper"), (known, "")):
        with suppress(ValueError):
            choice = _best(problem, target, "backward", repeats, runs, but)
            if choice.record.machine["arch"] == target:
                return choice.step if choice.step.backend != "torch" else None
    return None


gradients = torch.library.custom_op(
    "fmha_tutorial::gradients",
    _gradients,
    mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor do, {ASKED}, Tensor? dlse=None) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
)


@gradients.register_fake
def _(q, k, v, o, lse, do, *asked):
    for name, x in (("k", k), ("v", v), ("o", o), ("lse", lse), ("do", do)):
        if x.device != q.device:  # one tensor on meta brings a real call here, too
            raise ValueError(f"{name} must be on q's device ({q.device}), got {x.device}")
    sinks = Asked(*asked[: len(Asked())]).sinks  # whoever calls may leave out what has its default
    dsinks = q.new_empty(0) if sinks is None else sinks.new_empty(sinks.shape)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), dsinks


def _keep(ctx, inputs, output):
    (q, k, v, *asked), (o, lse) = inputs, output
    asked = Asked(*asked)
    ctx.save_for_backward(q, k, v, o, lse, *asked[-3:])
    ctx.set_materialize_grads(False)
    ctx.asked = asked[:-3]


def _backward_by(gradients: Callable) -> Callable:
    def backward(ctx, do, dlse):
        *given, cu_seqlens_q, cu_seqlens_k, sinks = ctx.saved_tensors
        if do is None and dlse is None:
            return (None,) * (3 + len(Asked()))
        do = torch.zeros_like(given[3]) if do is None else do
        dq, dk, dv, dsinks = gradients(*given, do, *ctx.asked, cu_seqlens_q, cu_seqlens_k, sinks, dlse)
        return dq, dk, dv, *(None for _ in Asked()[:-1]), None if sinks is None else dsinks

    return backward


def _refuse_second(*_):
    raise ValueError("gradients must be asked for once: those of attention have no gradients of their own")


# By its name, as it is looked up at each call.
attention_with_lse.register_autograd(_backward_by(lambda *given: gradients(*given)), setup_context=_keep)
gradients.register_autograd(_refuse_second)


class _EagerWithMore(torch.autograd.Function):
    """``attention_with_lse`` past PyTorch's dispatcher, whose way to Python costs more than the launches."""

    @staticmethod
    def forward(ctx, q, k, v, *asked):
        made = _attention_with_lse(q, k, v, *asked)
        _keep(ctx, (q, k, v, *asked), made)
        return made

    @staticmethod
    def backward(ctx, *given):
        of_sinks = ctx.needs_input_grad[-1]
        by = gradients if _backward_watched() else partial(_gradients, of_sinks=of_sinks)
        return _backward_by(by)(ctx, *given)


class _Transformed(torch.autograd.Function):
    """``attention_with_lse`` for torch.func, which does not take gradients that are registered with an operator."""

    generate_vmap_rule = True

    @staticmethod
    @torch.no_grad
    def forward(q, k, v, *asked):
        return attention_with_lse(q, k, v, *asked)

    setup_context = staticmethod(_keep)
    # Where torch.compile gives a program up, this runs by itself: its tracer fails at it.
    backward = staticmethod(torch.compiler.disable(_backward_by(lambda *given: _TransformedGradients.apply(*given))))

    @staticmethod
    def jvp(ctx, *_):
        refuse_tangent("q, k or v")


class _TransformedGradients(torch.autograd.Function):
    """``gradients`` for torch.func, which would take what has no graph for a constant."""

    generate_vmap_rule = True

    @staticmethod
    @torch.no_grad
    def forward(*given):
        return gradients(*given)

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Nothing is kept."""

    @staticmethod
    def backward(ctx, *_):
        _refuse_second()

    jvp = backward


operator.register_vmap(by_batches(3)(operator))
attention_with_lse.register_vmap(by_batches(3)(attention_with_lse))
gradients.register_vmap(by_batches(6)(gradients))


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
    """The step for a problem on "sm_90", "cpu" and the like: PyTorch's own where none is recorded to be as fast.

    Of what PyTorch's own does not compute, such as a soft cap, any record on this architecture counts, as what is left
    are many calls for each tile. But what a record without sinks says of a problem with them nobody knows.
    """
    own = get_step("sdpa")
    try:
        choice = best(problem, target, _recorded("forward"))
    except ValueError:  # an architecture that nothing is known of, or no recorded step takes the problem
        return own
    if problem.sinks and not choice.record.the_problem().sinks:
        return own
    if own.unsupported(problem, target):
        return choice.step if choice.record.machine["arch"] == target else own
    return choice.step if choice.beats_sdpa(target) else own


@cache
def _recorded(direction: str) -> tuple:
    return tuple(recorded_timings(RESULTS, direction))


def _wants_gradients(*tensors) -> bool:
    return torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in tensors)
