"""Step 103: two stages.

With one stage a block waits for every tile that it has asked for. With two, the next tile of K and V is copied
(cp.async runs by itself) while this one is used. It costs twice the shared memory for K and V.
"""

from steps.gluon import step102_split_q
from steps.gluon.softmax import SUM_AT_END

STEP = step102_split_q.STEP.evolve(
    number=103,
    name="stages",
    title="Two stages",
    change="The next tile of K and V is copied while this one is used.",
    stages=2,
)

# A row of scores lies in four lanes of a warp. Its maximum is needed at once, in all four; its sum at the end alone.
DEFERRED_SUM = STEP.evolve(
    name="deferred_sum",
    title="Deferred row sum",
    change="Every lane sums its own columns; the lanes of a row are added up once, after the loop.",
    inside="stages",
    sums=SUM_AT_END,
)

INSIDE = (DEFERRED_SUM,)
