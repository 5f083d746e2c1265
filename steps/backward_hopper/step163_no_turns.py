"""Step 163: warp groups compute weights when they can.

Since step alternate one warp group at a time computes weights and dS at head_dim 128. While one takes exponentials, the other
is at its products, so that the tensor cores have some. The price: a warp group that is ready may have to wait
for the other. Step fence_behind moves products to where a warp group waited before, and tensor cores have work there, too.

Here nobody waits for the other's weights. Only at head_dim 128; at others there were no turns.

To expect, as a hypothesis: what the turns kept in order keeps itself in order, and what warps waited for turns is won.
"""

from steps.backward_hopper import step162_fence_behind
from steps.core.problems import standard
from steps.hopper.lib import NO_TURNS

STEP = step162_fence_behind.STEP.evolve(
    number=163,
    name="no_turns",
    title="Weights without turns",
    change="A warp group computes weights when its scores are there, whatever the other does.",
    fork=True,
    turns=NO_TURNS,
    default_problem=standard(4096, causal=True),
)
