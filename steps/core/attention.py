"""The front door for programs: ``steps.attention(q, k, v)``, by the best steps for these tensors.

It is a PyTorch operator, ``torch.ops.fmha_tutorial.attention``: ``torch.compile(fullgraph=True)`` takes it as a whole,
and CUDA graphs capture it. Where gradients are wanted it is another, ``attention_with_lse``, which autograd knows the
backward pass of, ``gradients``. A program that runs eagerly and wants none goes past the operator, as the dispatcher's
way to Python costs more than the launch.
"""

from dataclasses import replace
from functools import cache
from typing import NamedTuple

import torch

from steps.core.choice import best
from steps.core.ladder import get_step
from steps.core.launch import Launch, Launches, kind_of
from steps.core.problems import standard
from steps.core.step import Step, target_of
from tutorial_lib import reference
from tutorial_lib.files import RESULTS
from tutorial_lib.problem import Problem, check_window, positive
from tutorial_lib.results import recorded_runs

_launches = Launches()
_trainings = Launches()


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
) -> torch.Tensor:
    """Attention, ``softmax(scale * q @ k^T, masked) @ v``, by the step that ``steps.best`` names; differentiable.

    q ``[B, Hq, Sq, D]``, k and v ``[B, Hkv, Skv, D]``, float16 or bfloat16, any strides, on one device. ``causal``
    hides key j from query i where j > i, ``scale`` None means 1 / sqrt(D). ``window`` hides, under a causal mask, keys
    j <= i - window, too (a sliding window; its gradients are PyTorch's). Returns o ``[B, Hq, Sq, D]``, contiguous.
    The choice is made once for every kind of call. Where no step is recorded to be as fast as PyTorch's own attention,
    on the CPU for one, that computes it; where a tensor requires gradients, both passes must have such a step.

    Raises ValueError naming the argument, what it must be and what came. Gradients have no gradients of their own.
    """
    causal, scale = bool(causal), None if scale is None else float(scale)
    if window is not None:
        check_window(window, causal)  # here, as torch.compile traces past what is checked further on
    if torch.is_grad_enabled() and _wants_gradients(q, k, v):
        return _differentiable(q, k, v, causal, scale, window)
    if torch.compiler.is_compiling():
        return operator(q, k, v, causal, scale, window)
    try:
        kind = kind_of(q, k, v, causal, scale, None), window
    except (AttributeError, TypeError, RuntimeError):  # no tensors, which is told, or without memory: of a tracer, say
        Problem.of(q, k, v, causal, scale, window=window)
        return operator(q, k, v, causal, scale, window)
    return (_launches.find(kind) or _made_ready(kind, q, k, v, causal, scale, window))(q, k, v, None)


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
    kind = kind_of(q, k, v, causal, scale, None), window
    return (_launches.find(kind) or _made_ready(kind, q, k, v, causal, scale, window))(q, k, v, None)


@operator.register_fake
def _(q, k, v, causal=False, scale=None, window=None):
    return q.new_empty(q.shape)


# --- with gradients ---


class Training(NamedTuple):
    """The steps of both passes."""

    forward: Step
    backward: Step


def _differentiable(q, k, v, causal: bool, scale: float | None, window: int | None):
    if not torch.compiler.is_compiling():
        Problem.of(q, k, v, causal, scale, window=window)  # tells what is wrong
    if window is None and trains(int(q.shape[3]), str(q.dtype), q.device, causal):
        return attention_with_lse(q, k, v, causal, scale)[0]
    sign, positive_scale = positive(q.shape[-1] ** -0.5 if scale is None else scale)
    return reference.sdpa_masked(q if sign == 1 else q * sign, k, v, causal, positive_scale, window).contiguous()


@torch.compiler.assume_constant_result
def trains(head_dim: int, dtype: str, device: torch.device, causal: bool) -> bool:
    """Whether both passes have a step that is recorded to be as fast as PyTorch's own; if not, that computes both.

    Lengths do not decide this, so that what torch.compile makes serves all of them.
    """
    problem = replace(standard(causal=causal), head_dim=head_dim, dtype=dtype.removeprefix("torch."))
    return _trains(problem, target_of(device))


@cache
def _trains(problem: Problem, target: str) -> bool:
    try:
        choices = [best(problem, target, _recorded(direction), direction) for direction in ("forward", "backward")]
    except ValueError:
        return False
    return all(choice.beats_sdpa(target) for choice in choices)


@torch.library.custom_op("fmha_tutorial::attention_with_lse", mutates_args=())
def attention_with_lse(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(o, lse) for a backward pass, by the fastest recorded step."""
    step = training(Problem.of(q, k, v, causal, scale), target_of(q.device)).forward
    return step.attention(q, k, v, causal, scale, return_lse=True)


@attention_with_lse.register_fake
def _(q, k, v, causal=False, scale=None):
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
    step = training(Problem.of(q, k, v, causal, scale), target_of(q.device)).backward
    return step.gradients(q, k, v, o, lse, do.contiguous(), causal, scale)


@gradients.register_fake
def _(q, k, v, o, lse, do, causal, scale):
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


attention_with_lse.register_autograd(_backward, setup_context=_keep)


def training(problem: Problem, target: str) -> Training:
    """The fastest recorded steps for both passes of a problem on "sm_90" and the like; raises Unsupported."""
    if (known := _trainings.find((problem, target))) is None:
        steps = [best(problem, target, _recorded(direction), direction).step for direction in ("forward", "backward")]
        known = Training(*steps)
        _trainings.keep((problem, target), known)
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


def _made_ready(kind: tuple, q, k, v, causal: bool, scale: float | None, window: int | None) -> Launch:
    step = chosen(Problem.of(q, k, v, causal, scale, window=window), target_of(q.device))
    ready = step.ready(q, k, v, causal, scale, window=window)

    def contiguous(q, k, v, out):
        return ready(q, k, v, out).contiguous()

    launch = contiguous if step.backend == "torch" else ready  # PyTorch's output may lie otherwise
    _launches.keep(kind, launch)
    return launch


def _wants_gradients(*tensors) -> bool:
    return any(isinstance(x, torch.Tensor) and x.requires_grad for x in tensors)
