"""Trial: what the row sums after the loop are worth where the wait for the PV product is held after the maxima.

Alone they bring nothing (``hopper_deferred_sum``, inside step split_epilogue), and step pv_wait_after_max has them.
"""

from __future__ import annotations

from steps.core.problems import FULL, HEADLINE, standard
from steps.hopper.softmax import SUM_AT_END, SUM_EACH_TILE
from steps.trials.trial import Trial

# Off is the step with every tile's sums put together at once.
TRIAL = Trial(
    name="sums_last",
    question="Are row sums after the loop worth something where the wait for the PV product is held after the maxima?",
    base="pv_wait_after_max",
    values=("off", "on"),
    problems=(standard(head_dim=64), FULL, HEADLINE),
    holes=lambda value: {"sums": SUM_AT_END if value == "on" else SUM_EACH_TILE},
)
