"""Step 32: registers go to those who compute.

A block starts with the same number of registers for every thread. ``setmaxnreg`` moves them afterwards: the producer's
warps keep 24 a thread, the others get 240. What needs more than an even share, such as the output of 64 rows of 256
columns, then stays in registers.
"""

from steps.core.problems import FULL, standard
from steps.hopper import step31_producer
from steps.hopper.lib import IN_TURN

STEP = step31_producer.STEP.evolve(
    number=32,
    name="registers",
    title="Register budgets",
    change="The producer gives registers up, and a thread that computes may have 240 in place of 168.",
    default_problem=standard(head_dim=256),
    registers=240,
)

# FlashAttention-3's ping-pong (Shah et al. 2024, section 3.1) is another: a turn there is the PV product of a tile and
# the QK product of the next, it is given on once both are begun, and a group's own softmax runs under its own product.
PING_PONG = STEP.evolve(
    name="ping_pong",
    title="Ping-pong",
    change="The two warp groups issue their QK products in turn, one after the other.",
    inside="registers",
    default_problem=FULL,
    turns=IN_TURN,
)

INSIDE = (PING_PONG,)
