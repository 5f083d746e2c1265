"""Step 134: one word frees two places.

At the same point of every turn a warp group tells two things: the producer, that it has multiplied dO and its place may
be filled; and the other warp group, that it has multiplied dS of the turn before, whose place may be written. Each
takes an mbarrier, and in front of each the compiler lets the four warps meet (BAR.SYNC): all must have come so far
before one thread tells it.

Here the word about dO stands for both. Who writes dS waits for the barrier that the producer waits for.

At head_dim 256 warp groups tell each other other things, and nothing changes.
"""

from steps.backward_hopper import products, step133_heads_apart

STEP = step133_heads_apart.STEP.evolve(
    number=134,
    name="freed_together",
    title="One word frees two places",
    change="The place of dS is free when that of dO is: warps meet once less in a turn.",
    fork=True,
    exchange=products.WITH_D_OUTPUT,
)
