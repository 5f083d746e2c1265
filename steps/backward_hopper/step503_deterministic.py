"""Step 503, a fork from step decoupled_warpgroups: the same bits every time.

Blocks add to dQ in an order that chance decides, and a float32 sum depends on it: two runs on the same inputs differ in
the last bits. Here blocks add one after the other, in the same order every time (``adding``). What dK and dV add up
to was always the same, as one block does it.

To expect, as a hypothesis: a block waits for the one before it at its first tile, and from then on follows it at a
distance. What is lost is that first wait, and more so the fewer tiles of queries there are.
"""

from steps.backward_hopper import adding, step502_decoupled_warpgroups
from steps.core.problems import HEADLINE

STEP = step502_decoupled_warpgroups.STEP.evolve(
    number=503,
    name="deterministic",
    title="Deterministic",
    change="Blocks add to a tile of dQ in a fixed order: each waits for those before it.",
    fork=True,
    sequence=adding.IN_ORDER,
    default_problem=HEADLINE,
)
