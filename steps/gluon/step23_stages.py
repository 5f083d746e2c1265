"""Step 23: two stages.

With one stage a block waits for every tile that it has asked for. With two, the next tile of K and V is copied
(cp.async runs by itself) while this one is used. It costs twice the shared memory for K and V.
"""

from steps.gluon import step22_split_q

STEP = step22_split_q.STEP.evolve(
    number=23,
    name="stages",
    title="Two stages",
    change="The next tile of K and V is copied while this one is used.",
    stages=2,
)
