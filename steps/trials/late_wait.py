"""Trial: the wait for the PV product stays behind the whole softmax, on every kind of problem."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from steps import get_step
from steps.core.problems import FULL, HEADLINE, standard
from steps.hopper.softmax import wait_behind_softmax, wait_last
from steps.trials.trial import Trial


@dataclass(frozen=True)
class LateWait(Trial):
    """Off is where the compiler moves the wait to."""

    def version(self, value, problem, **named):
        step = get_step(self.base)
        softmax = {"off": wait_last, "on": wait_behind_softmax}[value]
        return dataclasses.replace(step, softmax=softmax, **named)


TRIAL = LateWait(
    name="late_wait",
    question="Would it be faster to keep the wait for the PV product behind the softmax in the machine code, too?",
    base="pv_wait_after_max",
    values=("off", "on"),
    problems=(standard(head_dim=64), FULL, HEADLINE, standard(head_dim=256)),
)
