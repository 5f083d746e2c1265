"""Trial: at head_dim 64 warpgroups that are apart take tiles of 64 queries, and not of 128.

A tile of 128 queries takes all registers that a thread can have. Under a mask the compiler spills some, and with 64
queries fewer or none. But the loop takes twice as many iterations then, each with its barriers, and the two warpgroups
share dQ by columns, not by queries.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from steps import get_step
from steps.backward_hopper.skeleton import HopperGradients
from steps.core.problems import standard
from steps.core.tiles import Tile
from steps.trials.trial import Trial

FEWER = Tile(64, 128)
BEHIND = " with 64"  # a step's name


@dataclass(frozen=True, kw_only=True)
class WithFewer(HopperGradients):
    """A step with tiles of 64 queries, for which there is no launch rule at head_dim 64."""

    def variant(self, problem, arch="sm_90"):
        return replace(super().variant(problem, arch), tile=FEWER)

    def choices(self, problem, target):
        return ()


def made(value: str, problem) -> HopperGradients:
    """value: a step's name, or the same with the number of queries behind it."""
    step = get_step(value.removesuffix(BEHIND))
    its = {field.name: getattr(step, field.name) for field in fields(step)}
    return WithFewer(**its) if value.endswith(BEHIND) else step


TRIAL = Trial(
    name="fewer_queries",
    question="Would a tile of 64 queries, which needs fewer registers, be faster at head_dim 64?",
    base="decoupled_warpgroups",
    values=("decoupled_warpgroups", f"decoupled_warpgroups{BEHIND}", "newest_first", f"newest_first{BEHIND}"),
    problems=(standard(head_dim=64, causal=True), standard(head_dim=64)),
    made=made,
)
