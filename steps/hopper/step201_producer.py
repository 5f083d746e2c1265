"""Step 201: a warp that does nothing but fetch.

In step wgmma all eight warps must have read a tile before one of them may ask for the next into its slot, and so they
wait for one another every iteration. Here a warp of its own asks for tiles, and each of the two warpgroups takes 64
queries and runs for itself: it waits until a slot is full, and says when it has read it. Nobody waits for the
other group, so one's softmax can run while the other multiplies.

``register_reallocation``, inside this step: registers go to those who compute.

A block starts with the same number of registers for every thread. ``setmaxnreg`` moves them afterwards: the producer's
warps keep 24 a thread, the others get 240. What needs more than an even share, such as the output of 64 rows of 256
columns, then stays in registers.
"""

from steps.core.problems import FULL, standard
from steps.hopper import producer, step200_wgmma
from steps.hopper.lib import IN_TURN

STEP = step200_wgmma.STEP.evolve(
    number=201,
    name="producer",
    title="Producer and consumers",
    change="A producer warp fetches the tiles; two warpgroups of 64 queries each compute, independent of each other.",
    generation=producer.consume,
)

REGISTER_REALLOCATION = STEP.evolve(
    name="register_reallocation",
    title="Register reallocation",
    change="The producer gives up registers, and a consumer thread may have 240 instead of 168.",
    inside="producer",
    default_problem=standard(head_dim=256),
    registers=240,
)

# FlashAttention-3's ping-pong (Shah et al. 2024, section 3.1) is another: a turn there is the PV product of a tile and
# the QK product of the next, it is given on once both are begun, and a group's own softmax runs under its own product.
PING_PONG = REGISTER_REALLOCATION.evolve(
    name="ping_pong",
    title="Ping-pong",
    change="The two warpgroups issue their QK products in a fixed order, one after the other.",
    inside="producer",
    default_problem=FULL,
    turns=IN_TURN,
)

INSIDE = (REGISTER_REALLOCATION, PING_PONG)
