"""Step 8: a larger tile, and eight warps for it.

Every tile of K and V that a block fetches serves all its queries, so a block of twice as many queries fetches half as
much for each. But four warps then keep twice the output and twice the scores in registers, and what does not fit there
is spilled to memory: ``larger_tile_four_warps``, inside this step, is that trap. ``num_worker_warps`` is cuTile's word
on how many warps share the arithmetic of a block. With eight, a thread holds as much of a tile of 128 queries as one of
four holds of 64, and on sm_90 nothing is spilled. Such a block fills an SM alone, so the hints of steps latency and
occupancy, autotuned for two smaller ones side by side, are taken back.
"""

from steps.core.problems import standard
from steps.core.tiles import Tile
from steps.cutile import step007_approx_division
from steps.cutile.variant import Latency

LARGER_TILE_FOUR_WARPS = step007_approx_division.STEP.evolve(
    name="larger_tile_four_warps",
    title="A larger tile, four warps",
    change="A block takes 128 queries and 128 keys at a time, and four warps spill.",
    inside="larger_tile",
    tile=Tile(128, 128),
)

STEP = step007_approx_division.STEP.evolve(
    number=8,
    name="larger_tile",
    title="A larger tile, eight warps",
    change="A block takes 128 queries and 128 keys, in eight warps; hints made for smaller blocks are left out.",
    default_problem=standard(16384, causal=True),
    tile=Tile(128, 128),
    warps=8,
    occupancy=None,
    latency=Latency(),
)

INSIDE = (LARGER_TILE_FOUR_WARPS,)
