"""Step 4: keys are loaded already transposed.

The QK product needs the tile of keys as [head_dim, key]. Instead of loading [key, head_dim] and permuting it in a
second operation, ``order`` names the axes in the order in which the tile wants them, and the load does it.
"""

import cuda.tile as ct

from steps.cutile import step003_exp2


def load_key_transposed(K, batch, head, j, tile, head_dim, latency):
    """The j-th tile of keys, its axes swapped by the load itself: [head_dim, key]."""
    k = ct.load(
        K,
        (batch, head, 0, j),
        (1, 1, head_dim, tile.key),
        order=(0, 1, 3, 2),
        padding_mode=ct.PaddingMode.ZERO,
        latency=latency,
    )
    return ct.reshape(k, (head_dim, tile.key))


STEP = step003_exp2.STEP.evolve(
    number=4,
    name="load_order",
    title="K loaded transposed",
    change="The load of K swaps its axes (order=), in place of a permute after it.",
    load_key=load_key_transposed,
)
