"""Step 28: two blocks share the larger tile.

The other way out of step 25. ``num_ctas=2`` makes a cluster of two blocks on neighbouring SMs work on one tile: each
keeps the 64 queries that its four warps have room for, fetches half of K and V, and the TMA unit writes what it fetched
into the shared memory of both (PTX ISA, cp.async.bulk.tensor, ".multicast::cluster"). Two blocks an SM still run side
by side, so that one computes its softmax while the other multiplies.
"""

from steps import step25_large_tile

STEP = step25_large_tile.STEP.evolve(
    number=28,
    name="cluster",
    title="A cluster of two blocks",
    change="A cluster of two blocks shares the larger tile, and each fetches K and V for both.",
    cluster=2,
)
