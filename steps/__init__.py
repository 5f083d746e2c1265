"""The steps: attention from PyTorch's own to tuned fused kernels, one optimization a step, in parts.

A folder is a part, and the hundreds of a step's number tell which: ``reference`` and ``cutile`` (0 to 99), ``gluon``
(100s), ``hopper`` (200s), ``fp8`` (300s), ``backward_cutile`` (400s), ``backward_hopper`` (500s), ``blackwell`` (600s)
and ``cdna`` (700s, for AMD's GPUs), both compiled and simulated, not timed, ``parallel`` (800s: one sequence over
several GPUs), ``everyday`` (900s: grouped heads, decoding, masks). ``STEPS`` is the tuple of all steps of the forward
pass on one device, part by part in the order of their numbers, ``GRADIENTS`` that of the backward pass, ``PAGED`` that
of attention to keys in pages, ``QUANTIZED`` that of attention of inputs in fp8, ``PARALLEL`` those over several;
``get_step("exp2")`` finds one, ``best`` the fastest recorded one; ``attention`` is for programs, and uses that one. The
steps are loaded when they are first asked for, so ``import steps`` alone costs nothing. To add a step, write its
module: see CONTRIBUTING.md.
"""

from __future__ import annotations

from importlib import import_module

_WHERE = {
    "GRADIENTS": "steps.core.ladder",
    "INSIDE": "steps.core.ladder",
    "PAGED": "steps.core.ladder",
    "PARALLEL": "steps.core.ladder",
    "PARTS": "steps.core.ladder",
    "QUANTIZED": "steps.core.ladder",
    "STEPS": "steps.core.ladder",
    "Unsupported": "steps.core.step",
    "attention": "steps.core.attention",
    "best": "steps.core.choice",
    "get_step": "steps.core.ladder",
}
__all__ = list(_WHERE)


def __getattr__(name: str):
    if name in _WHERE:
        found = globals()[name] = getattr(import_module(_WHERE[name]), name)
        return found
    raise AttributeError(f"module 'steps' has no attribute {name!r}")
