"""Step 91, from step 32: the warp groups take turns at the tensor cores.

Two independent warp groups may compute their softmax at the same time, and want the tensor cores at the same time. Here
a group begins its QK product only when the other group's is complete; the PV products have no order. FlashAttention-3's
ping-pong (Shah et al. 2024, section 3.1) is another: a turn there is the PV product of a tile and the QK product of the
next, it is given on once both are begun, and a group's own softmax runs under its own product.
"""

from steps.core.problems import FULL
from steps.hopper import step32_registers
from steps.hopper.lib import IN_TURN

STEP = step32_registers.STEP.evolve(
    number=91,
    name="ping_pong",
    title="Ping-pong",
    change="The two warp groups issue their QK products in turn, one after the other.",
    default_problem=FULL,
    turns=IN_TURN,
)
