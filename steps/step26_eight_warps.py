"""Step 26: eight warps for the larger tile.

``num_worker_warps`` is cuTile's word on how many warps share the arithmetic of a block. With eight, a thread holds as
much of a tile of 128 queries as one of four holds of 64, and nothing is spilled.
"""

from steps import step25_large_tile

STEP = step25_large_tile.STEP.evolve(
    number=26,
    name="eight_warps",
    title="Eight warps",
    change="Eight warps in place of four compute the larger tile.",
    warps=8,
)
