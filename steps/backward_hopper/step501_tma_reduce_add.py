"""Step 501: TMA reduce-add. TMA adds to dQ.

A part of dQ goes to shared memory, and TMA adds the tile to what other blocks have added: one thread asks for it, and
no warp issues additions [PTX ISA: cp.reduce.async.bulk.tensor]. The price: 32 KiB of shared memory are written and read
once more for every tile. The sums hold their columns in order again.

``async_products``, inside this step: products under way while others are waited for.

The five products of an iteration depend on each other only in part. The weights' gradient is begun with the scores, and
runs under the exponentials. dS is computed under dV. And dQ is added while dK is computed.

``vectorized_atomics``, inside this step: four numbers of dQ at a time.

An instruction can add four numbers that lie side by side, and wgmma leaves a lane only two. But nobody says in which
order the columns of the sums must lie: of 16 columns, a lane's two and the two that lie 8 further are put side by side,
and the last kernel puts them back. No number moves from lane to lane.
"""

from steps.backward_hopper import adding, step500_transposed_scores, together

ASYNC_PRODUCTS = step500_transposed_scores.STEP.evolve(
    name="async_products",
    title="Asynchronous products",
    change="Products are issued as early as their factors allow, and waited for only where they are needed.",
    inside="tma_reduce_add",
    compute=together.under_way,
)

VECTORIZED_ATOMICS = ASYNC_PRODUCTS.evolve(
    name="vectorized_atomics",
    title="Vectorized atomics",
    change="The sums for dQ hold columns in another order, so that a lane adds four numbers at once.",
    inside="tma_reduce_add",
    adding=adding.FOURS,
)

STEP = VECTORIZED_ATOMICS.evolve(
    number=501,
    name="tma_reduce_add",
    previous=step500_transposed_scores.STEP,
    title="dQ by TMA reduce-add",
    change="Products are begun as early as their factors allow, and TMA adds dQ to the sums in place of the warps.",
    adding=adding.BY_TMA,
)

INSIDE = (ASYNC_PRODUCTS, VECTORIZED_ATOMICS)
