"""Step 16: 128 queries a block, 32 a warp.

With 16 queries a warp, every fragment of K and V that ldmatrix fetches from shared memory feeds one mma: 16 KiB of K
and of V a warp and tile at head_dim 128, and shared memory delivers 128 bytes a clock to all warps together. With 32
queries a warp the same fragment feeds two. The price is registers: output and scores of twice as many rows. Beyond
head_dim 128 they would not fit, and the block stays as it was.
"""

from steps import step15_deferred_sum
from steps.tiles import Tile

STEP = step15_deferred_sum.STEP.evolve(
    number=16,
    name="wide_block",
    title="128 queries a block",
    change="A block takes 128 queries instead of 64, so that every warp uses a fragment of K or V twice.",
    tile=Tile(128, 64),
)
