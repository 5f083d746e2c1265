"""Trial: what it brings that two blocks share what TMA brings of keys and values, on all sixty standard problems.

Step kv_multicast is recorded beside the whole ladder on some problems. Here it is set beside the step that it changes
on all of them, in few rounds, and with ``--peers flash_attn_4`` beside the fastest other library.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from steps import get_step
from steps.core.grids import GRIDS
from steps.trials.trial import Trial

STEPS = {"off": "at_maxima", "on": "kv_multicast"}


@dataclass(frozen=True)
class Pairs(Trial):
    """Off is the step whose blocks fetch everything themselves."""

    def version(self, value, problem, **named):
        return replace(get_step(STEPS[value]), **named)


TRIAL = Pairs(
    name="pairs",
    question="Where is it faster that blocks come in pairs, and TMA brings keys and values to both at once?",
    base="at_maxima",
    values=tuple(STEPS),
    problems=GRIDS["standard"].problems,
)
