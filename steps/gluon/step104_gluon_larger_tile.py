"""Step 104: 128 queries a block, 32 a warp.

With 16 queries a warp, every fragment of K and V that ldmatrix fetches from shared memory feeds one mma: 16 KiB of K
and of V a warp and tile at head_dim 128, and shared memory delivers 128 bytes a clock to all warps together. With 32
queries a warp the same fragment feeds two. The price is registers: output and scores of twice as many rows. Beyond
head_dim 128 they would not fit, and the block stays as it was. Every lane also sums its own columns only, and the lanes
of a row are added up after the loop. That alone brings nothing: ``deferred_sum``, inside step stages, is that and no
more.
"""

from steps.core.problems import few_heads
from steps.core.tiles import Tile
from steps.gluon import step103_stages
from steps.gluon.softmax import SUM_AT_END

STEP = step103_stages.STEP.evolve(
    number=104,
    name="gluon_larger_tile",
    title="A larger tile",
    change="A block takes 128 queries: each matrix read from K or V feeds two products. Lanes add their sums last.",
    default_problem=few_heads(),
    tile=Tile(128, 64),
    sums=SUM_AT_END,
)
