"""Step 68: one copy brings a tile of keys or values to two CTAs.

The other way to share them in a cluster. Each CTA holds whole tiles and begins its own products, of 128 queries. One
request of TMA brings a tile to the same place in the shared memory of both (PTX ISA, "cp.async.bulk.tensor",
``.multicast::cluster``), and tells the same barrier in both. A tile comes from L2 once for two blocks.

The first CTA asks for the copies. It must not overwrite a tile before the other one's product has read it. So what
tells of a product's end, ``tcgen05.commit``, arrives in both CTAs, and each waits for both products.

To expect, as a hypothesis: half as many bytes leave L2. Shared memory is filled and read as in step tensor_memory. Two
blocks wait for the slower of them twice a tile.
"""

from steps.blackwell import step66_pair
from steps.blackwell.variant import Cluster

STEP = step66_pair.STEP.evolve(
    number=68,
    name="multicast",
    title="One copy for two CTAs",
    change="Each CTA holds whole tiles of keys and values and multiplies alone; one TMA copy brings a tile to both.",
    roles=Cluster("copies"),
)
