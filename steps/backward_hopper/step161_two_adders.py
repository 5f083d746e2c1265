"""Step 161: two warps add in turn.

The warp that adds in step adder does one thing after the other for every tile of queries. It asks global memory whether
its block's turn has come, waits for the sums, lets TMA add them, waits until TMA has written global memory, and tells
the next block. Only then does it see to the next tile. If these waits take longer together than the warps that compute
need for a tile, these wait for the adder at every tile.

Here two warps add, each every other tile. While one waits for global memory, the other sees to the next tile. Every
tile has a count of its own, so the order in which blocks add to it stays the same.

At head_dim 256 dQ is added from registers, and the warps that compute passed tiles on themselves, behind a fence. Now
each warp group has a warp that does this for it, as soon as the warp group has added. The warp groups still ask for
their turn themselves.

To expect, as a hypothesis: the more is gained, the less time a tile takes, so most at head_dim 128. There a tile has 64
queries. At head_dim 64 it has 128, and twice as many exponentials.
"""

from steps.backward_hopper import adding, step160_sections_in_turn

STEP = step160_sections_in_turn.STEP.evolve(
    number=161,
    name="two_adders",
    title="Two warps add in turn",
    change="Two warps add to dQ, each every other tile. At head_dim 256 each warp group has one that passes tiles on.",
    fork=True,
    helpers=adding.TWO_ADDERS,
    wide_helpers=adding.PASS_ON,
)
