"""Trial: what it brings that two blocks share what TMA brings of keys and values, in a load that goes on.

Energy decides there. Step kv_multicast is set beside the step that it changes and beside flash-attn-4, as recorded by
``python -m steps.trials pairs --iterations 3 --sustained --peers flash_attn_4``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from steps import get_step
from steps.core.grids import MASKS
from steps.core.problems import standard
from steps.trials.trial import Trial

STEPS = {"off": "pv_wait_after_max", "on": "kv_multicast"}
LENGTHS, HEAD_DIMS = (4096, 16384), (64, 128, 256)
NOT_MEASURED = standard(16384, 256)


@dataclass(frozen=True)
class Pairs(Trial):
    """Off is the step whose blocks fetch everything themselves."""

    def version(self, value, problem, **named):
        return replace(get_step(STEPS[value]), **named)


TRIAL = Pairs(
    name="pairs",
    question="Where is it faster that blocks come in pairs, and TMA brings keys and values to both at once?",
    base="pv_wait_after_max",
    values=tuple(STEPS),
    problems=tuple(
        problem
        for problem in (standard(*shape) for shape in product(LENGTHS, HEAD_DIMS, MASKS))
        if problem != NOT_MEASURED
    ),
)
