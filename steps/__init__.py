"""The steps: attention from PyTorch's own to a tuned fused kernel, one optimization a step.

``STEPS`` is the ordered tuple of all steps; ``get_step(3)`` and ``get_step("exp2")`` find one. Both load the steps
when first asked for, so ``import steps`` alone costs nothing. To add a step, write ``stepNN_name.py`` with a
``STEP`` and add its module to ``MODULES``.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from steps.step import Unsupported

__all__ = ["MODULES", "STEPS", "Unsupported", "best", "get_step"]

MODULES = (
    "step00_sdpa",
    "step01_naive",
    "step02_mma",
    "step03_exp2",
    "step04_load_order",
    "step05_latency",
    "step06_occupancy",
    "step07_approx_division",
    "step08_explicit",
    "step09_swizzle",
    "step10_split_q",
    "step11_stages",
    "step12_shared_kv",
    "step13_q_registers",
    "step14_fine_grained",
    "step15_deferred_sum",
    "step16_wide_block",
    "step17_wgmma",
    "step18_producer",
    "step19_registers",
    "step20_ping_pong",
    "step21_overlap",
    "step22_dealt",
    "step23_linked",
    "step24_third_group",
    "step25_large_tile",
    "step26_eight_warps",
    "step27_stay",
    "step28_cluster",
    "step29_sections",
    "step30_found",
    "step31_turns",
    "step32_own_end",
    "step33_half_output",
    "step34_lean_sum",
    "step35_half_query",
    "step36_early_query",
    "step37_one_loop",
    "step38_halves",
    "step39_late_wait",
    "step40_at_maxima",
    "step41_diagonal_first",
    "step42_mask_loop",
    "step43_apart",
    "step44_counted",
)


@cache
def _load():
    return tuple(import_module(f"steps.{module}").STEP for module in MODULES)


def __getattr__(attribute: str):
    if attribute == "STEPS":
        return _load()
    raise AttributeError(f"module 'steps' has no attribute {attribute!r}")


def get_step(key: int | str):
    """The step with this number (3, "3") or name ("exp2"); raises ValueError that lists the steps there are."""
    for step in _load():
        if str(key) in (str(step.number), step.name):
            return step
    known = ", ".join(f"{step.number} {step.name}" for step in _load())
    raise ValueError(f"step must be one of: {known}; got {key!r}")


def best(problem, device: str):
    """The fastest recorded step for a problem on a device ("cuda", "sm_90"): see ``steps.choice.best``."""
    from steps.choice import best as choose

    return choose(problem, device)
