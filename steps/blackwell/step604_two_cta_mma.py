"""Step 604: 2-CTA MMA. Two CTAs compute one product, and each holds half of the keys and values.

The blocks of a cluster are called its CTAs. They run at the same time, on SMs that reach each other's shared memory.
``tcgen05.mma.cta_group::2`` is one product of two of them (PTX ISA, "TensorCore 5th Generation Family Instructions"):
256 queries times a tile of keys. Each CTA has its 128 queries, its scores, weights and output as before.
Of the second factor each has half: 64 of 128 keys, and of the values half of the columns. The tensor cores of both read
both halves. So a block's tiles of keys and values take half the room in shared memory, and TMA brings each of them half
as many bytes, for the same products.

The first CTA begins a product. It must know that the tiles are in both, and so the barriers of tiles are joint ones,
in its shared memory. Both CTAs are told that a product has ended. Before a PV product both must have stored their
weights, rescaled their outputs and read their scores: there they meet at the cluster's barrier.

All warps do the same here, as in step tensor_memory and not as in step blackwell_persistent: with roles, one CTA's
softmax would have to arrive at a barrier of the other one, and all warps at the cluster's barrier. Before Triton 3.9
neither was compiled as it must be (``tests/blackwell/test_clusters.py`` looks at the code of both), and nobody has
written it since.

To expect, as a hypothesis: two blocks wait for the slower of them at every tile, and nothing else runs meanwhile. What
shared memory gains pays only where reading the second factor, or room for it, holds a kernel up.

``multicast``, inside this step: one copy brings a tile of keys or values to two CTAs.

The other way to share them in a cluster. Each CTA holds whole tiles and begins its own products, of 128 queries. One
request of TMA brings a tile to the same address in the shared memory of both (PTX ISA, "cp.async.bulk.tensor",
``.multicast::cluster``), and tells the same barrier in both. A tile comes from L2 once for two blocks.

The first CTA asks for the copies. It must not overwrite a tile before the other one's product has read it. So what
tells of a product's end, ``tcgen05.commit``, arrives in both CTAs, and each waits for both products.

To expect, as a hypothesis: half as many bytes leave L2. Shared memory is filled and read as in step tensor_memory. Two
blocks wait for the slower of them twice a tile.
"""

from steps.blackwell import step600_tensor_memory
from steps.blackwell.sharing import COPIES, HALVES

STEP = step600_tensor_memory.STEP.evolve(
    number=604,
    name="two_cta_mma",
    title="2-CTA MMA",
    change="Two blocks on two SMs compute every product together, and each holds half of the keys and values.",
    sharing=HALVES,
)

MULTICAST = STEP.evolve(
    name="multicast",
    title="One copy for two CTAs",
    change="Each CTA holds whole tiles of keys and values and multiplies alone; one TMA copy brings a tile to both.",
    inside="two_cta_mma",
    sharing=COPIES,
)

INSIDE = (MULTICAST,)
