"""Step 13, a fork from step 7: two blocks share a larger tile.

The other way to a tile of 128 queries that does not spill (see step eight_warps). ``num_ctas=2`` makes a cluster of two
blocks on neighbouring SMs work on one tile: each keeps the 64 queries that its four warps have room for, fetches half
of K and V, and the TMA unit writes what it fetched into the shared memory of both (PTX ISA, cp.async.bulk.tensor,
".multicast::cluster"). Two blocks an SM still run side by side, so that one computes its softmax while the other
multiplies.
"""

from steps.core.problems import HEADLINE
from steps.core.tiles import Tile
from steps.cutile import step07_approx_division

STEP = step07_approx_division.STEP.evolve(
    number=13,
    name="cluster",
    title="A cluster of two blocks",
    change="A cluster of two blocks shares a tile of 128 queries and 128 keys, and each fetches K and V for both.",
    fork=True,
    default_problem=HEADLINE,
    tile=Tile(128, 128),
    cluster=2,
)
