"""Step 26: eight warps for the larger tile.

``num_worker_warps`` is cuTile's word on how many warps share the arithmetic of a block. With eight, a thread holds as
much of a tile of 128 queries as one of four holds of 64, and on sm_90 nothing is spilled. Such a block fills an SM
alone, so the hints of steps 5 and 6, found for two smaller ones side by side, are taken back.
"""

from steps import step25_large_tile
from steps.cutile import Latency

STEP = step25_large_tile.STEP.evolve(
    number=26,
    name="eight_warps",
    title="Eight warps",
    change="Eight warps in place of four compute the larger tile; hints made for smaller blocks are left out.",
    warps=8,
    occupancy=None,
    latency=Latency(),
)
