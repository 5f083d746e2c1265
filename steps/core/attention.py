"""The front door for programs: ``steps.attention(q, k, v)``, by the best step for these tensors.

It is a PyTorch operator, ``torch.ops.fmha_tutorial.attention``: ``torch.compile(fullgraph=True)`` takes it as a whole,
and CUDA graphs capture it. A program that runs eagerly goes past the operator, as the dispatcher's way to Python costs
more than the launch.
"""

from functools import cache

import torch

from steps.core.choice import best
from steps.core.ladder import get_step
from steps.core.launch import Launch, Launches, kind_of
from steps.core.step import Step, target_of
from tutorial_lib.files import RESULTS
from tutorial_lib.problem import Problem
from tutorial_lib.results import recorded_runs

_launches = Launches()


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False, scale: float | None = None
) -> torch.Tensor:
    """Attention, ``softmax(scale * q @ k^T, masked) @ v``, by the step that ``steps.best`` names.

    q ``[B, Hq, Sq, D]``, k and v ``[B, Hkv, Skv, D]``, float16 or bfloat16, any strides, on one device. ``causal``
    hides key j from query i where j > i, ``scale`` None means 1 / sqrt(D). Returns o ``[B, Hq, Sq, D]``, contiguous.
    The choice is made once for every kind of call. Where no step is recorded to be as fast as PyTorch's own attention,
    on the CPU for one, that computes it.

    Raises ValueError naming the argument, what it must be and what came. There is no backward pass yet: PyTorch says so
    when one is asked for.
    """
    causal, scale = bool(causal), None if scale is None else float(scale)
    if torch.compiler.is_compiling() or (torch.is_grad_enabled() and _wants_gradients(q, k, v)):
        return operator(q, k, v, causal, scale)
    try:
        kind = kind_of(q, k, v, causal, scale, None)
    except (AttributeError, TypeError, RuntimeError):  # no tensors, which is told, or without memory: of a tracer, say
        Problem.of(q, k, v, causal, scale)
        return operator(q, k, v, causal, scale)
    return (_launches.find(kind) or _made_ready(kind, q, k, v, causal, scale))(q, k, v, None)


@torch.library.custom_op("fmha_tutorial::attention", mutates_args=())
def operator(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False, scale: float | None = None
) -> torch.Tensor:
    """``attention`` as PyTorch's dispatcher calls it."""
    kind = kind_of(q, k, v, causal, scale, None)
    return (_launches.find(kind) or _made_ready(kind, q, k, v, causal, scale))(q, k, v, None)


@operator.register_fake
def _(q, k, v, causal=False, scale=None):
    return q.new_empty(q.shape)


def chosen(problem: Problem, target: str) -> Step:
    """The step for a problem on "sm_90", "cpu" and the like: PyTorch's own where none is recorded to be as fast."""
    try:
        choice = best(problem, target, _recorded())
    except ValueError:  # an architecture that nothing is known of, or no recorded step takes the problem
        return get_step("sdpa")
    return choice.step if choice.beats_sdpa(target) else get_step("sdpa")


@cache
def _recorded() -> tuple:
    return tuple(recorded_runs(RESULTS))


def _made_ready(kind: tuple, q, k, v, causal: bool, scale: float | None) -> Launch:
    step = chosen(Problem.of(q, k, v, causal, scale), target_of(q.device))
    ready = step.ready(q, k, v, causal, scale)

    def contiguous(q, k, v, out):
        return ready(q, k, v, out).contiguous()

    launch = contiguous if step.backend == "torch" else ready  # PyTorch's output may lie otherwise
    _launches.keep(kind, launch)
    return launch


def _wants_gradients(*tensors) -> bool:
    return any(isinstance(x, torch.Tensor) and x.requires_grad for x in tensors)
