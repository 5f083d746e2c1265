"""Step 42: one fused kernel for all five products. The weights and dS stay on the chip.

A block owns a tile of keys and values and walks over the tiles of queries that see them. For dK and dV that is just
right: their sums over the queries grow in the block's registers. dQ is a sum over the keys, so that every block has a
part of it for every tile of queries. The blocks add their parts in device memory, with atomic additions in float32, and
a last small kernel scales and rounds what has come together. In which order blocks add is chance: two runs may differ
in the last bits of dQ.

A small kernel before it sums dO O over head_dim, a number for each query, which every block would need again.
"""

import cuda.tile as ct

from steps.backward_cutile import step41_formulas
from steps.backward_cutile.skeleton import CuTileGradients


def weigh_exp(scores, lse, scale):
    """The weights again: e^(scaled score - log-sum-exp of its row)."""
    return ct.exp(scores * scale - lse)


STEP = CuTileGradients(
    number=42,
    name="atomics",
    title="One kernel, dQ by atomics",
    change="The five products in one kernel; blocks that own keys add their parts of dQ atomically.",
    previous=step41_formulas.STEP,
    default_problem=step41_formulas.STEP.default_problem,
    weigh=weigh_exp,
)
