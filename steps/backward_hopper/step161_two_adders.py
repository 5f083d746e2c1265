"""Step 161: two warps add in turn.

The warp that adds in step 132 does one thing after the other for every tile of queries. It asks global memory whether
its block's turn has come, waits for the sums, lets TMA add them, waits until TMA has written global memory, and tells
the next block. Only then does it see to the next tile. Four of these things are a way to L2 and back, or wait for one.
If they take longer together than the products of a tile, the warps that compute wait for the adder at every tile.

Here two warps add, each every other tile. While one waits for global memory, the other sees to the next tile. The
blocks' order is the same at every tile, so nothing changes in what is added up, or in which order.

At head_dim 256 dQ is added from registers, and the warps that compute passed tiles on themselves: with a fence that
waits until what they have added is in L2. Now each warp group has a warp that does this for it, as soon as the warp
group has added. The warp groups still ask for their turn themselves.

To expect, as a hypothesis: the more is gained, the shorter the products of a tile are, so most at head_dim 128, where a
tile has 64 queries. At head_dim 64 it has 128.
"""

from steps.backward_hopper import step160_sections_in_turn

STEP = step160_sections_in_turn.STEP.evolve(
    number=161,
    name="two_adders",
    title="Two warps add in turn",
    change="Two warps add to dQ, each every other tile. At head_dim 256 each warp group has a warp that passes tiles on.",
    fork=True,
    two_adders=True,
)
