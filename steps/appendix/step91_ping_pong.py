"""Step 91, from step 32: the warp groups take turns at the tensor cores.

Two independent warp groups may compute their softmax at the same time, and want the tensor cores at the same time.
FlashAttention-3 (Shah et al. 2024, section 3.1) orders them: a group issues its QK product only when the other has
issued its own, and so falls half a period behind it.
"""

from steps.core.problems import FULL
from steps.hopper import step32_registers
from steps.hopper.variant import Roles, Waiting

STEP = step32_registers.STEP.evolve(
    number=91,
    name="ping_pong",
    title="Ping-pong",
    change="The two warp groups issue their QK products in turn, one after the other.",
    default_problem=FULL,
    roles=Roles(registers=240, loop=Waiting(in_turn=True)),
)
