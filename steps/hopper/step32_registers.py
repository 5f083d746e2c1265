"""Step 32: registers go to those who compute.

A block starts with the same number of registers for every thread. ``setmaxnreg`` moves them afterwards: the producer's
warps keep 24 a thread, the others get 240. What needs more than an even share, such as the output of 64 rows of 256
columns, then stays in registers.
"""

from steps.core.problems import standard
from steps.hopper import step31_producer

STEP = step31_producer.STEP.evolve(
    number=32,
    name="registers",
    title="Register budgets",
    change="The producer gives registers up, and a thread that computes may have 240 in place of 168.",
    default_problem=standard(head_dim=256),
    registers=240,
)
