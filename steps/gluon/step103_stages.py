"""Step 103: two stages.

With one stage a block waits for every tile that it has asked for. With two, the next tile of K and V is copied
(cp.async runs by itself) while this one is used. It costs twice the shared memory for K and V.

``wide_block``, inside this step: 128 queries a block, 32 a warp.

With 16 queries a warp, every fragment of K and V that ldmatrix fetches from shared memory feeds one mma: 16 KiB of K
and of V a warp and tile at head_dim 128, and shared memory delivers 128 bytes a clock to all warps together. With 32
queries a warp the same fragment feeds two. The price is registers: output and scores of twice as many rows. Beyond
head_dim 128 they would not fit, and the block stays as it was. Every lane also sums its own columns only, and the lanes
of a row are added up after the loop. That alone brings nothing: ``deferred_sum``, inside step stages, is that and no
more.
"""

from steps.core.tiles import Tile
from steps.gluon import step102_split_q

STEP = step102_split_q.STEP.evolve(
    number=103,
    name="stages",
    title="Two stages",
    change="The next tile of K and V is copied while this one is used.",
    stages=2,
)

# A row of scores lies in four lanes of a warp. Its maximum is needed at once, in all four; its sum at the end alone.
DEFERRED_SUM = STEP.evolve(
    name="deferred_sum",
    title="Deferred row sum",
    change="Every lane sums its own columns; the lanes of a row are added up once, after the loop.",
    inside="stages",
    defer_sum=True,
)

WIDE_BLOCK = STEP.evolve(
    name="wide_block",
    title="128 queries a block",
    change="A block takes 128 queries: every warp uses a fragment of K or V twice. Lanes add their sums last.",
    inside="stages",
    tile=Tile(128, 64),
    defer_sum=True,
)

INSIDE = (DEFERRED_SUM, WIDE_BLOCK)
