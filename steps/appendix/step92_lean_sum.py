"""Step 92, from step 38: row sums are put together at the end.

The change of step deferred_sum. Four lanes share a row of scores. Each sums what it holds, and only when all keys are
done do they add theirs together: that takes two shuffles a row off every turn. Not at head_dim 256, where a short trial
on an H100, not recorded, had it slower.
"""

from steps.core.problems import FULL
from steps.hopper import step38_room
from steps.hopper.softmax import SUM_AT_END

STEP = step38_room.STEP.evolve(
    number=92,
    name="lean_sum",
    title="Row sums at the end",
    change="Up to head_dim 128 every lane sums its own weights, and the sums meet after the last tile.",
    default_problem=FULL,
    sums=SUM_AT_END,
)
