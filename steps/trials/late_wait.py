"""Trial: the wait for the PV product stays behind the whole softmax, on every kind of problem."""

from __future__ import annotations

from steps.core.problems import FULL, HEADLINE, standard
from steps.hopper.softmax import wait_behind_softmax, wait_last
from steps.trials.trial import Trial

# Off is where the compiler moves the wait to.
TRIAL = Trial(
    name="late_wait",
    question="Would it be faster to keep the wait for the PV product after the softmax in the machine code, too?",
    base="pv_wait_after_max",
    values=("off", "on"),
    problems=(standard(head_dim=64), FULL, HEADLINE, standard(head_dim=256)),
    holes=lambda value: {"softmax": wait_behind_softmax if value == "on" else wait_last},
)
