"""Step 402: one fused kernel for all five products, with atomic additions that order nothing else.

An atomic operation of cuTile acquires and releases by default: what a block wrote before it is seen by whoever sees the
addition, and the other way round. For that the compiler puts fences around each one. Nobody needs this here: the sums
are read by the next kernel, which begins when this one has ended. A *relaxed* addition is still one piece, with nobody
in between, and promises nothing about other reads and writes.

``ordered_atomics``, inside this step: one fused kernel for all five products. The weights and dS stay on the chip.

A block owns a tile of keys and values and walks over the tiles of queries that see them. For dK and dV that is just
right: their sums over the queries grow in the block's registers. dQ is a sum over the keys, so that every block has a
part of it for every tile of queries. The blocks add their parts in device memory, with atomic additions in float32, and
a last small kernel scales and rounds what has come together. In which order blocks add is chance: two runs may differ
in the last bits of dQ.

A small kernel before it sums dO O over head_dim, a number for each query, which every block would need again.

``folded_lse``, inside this step: powers of two, with the log-sum-exp folded in.

As in the forward pass (step 3), the hardware's exponential is one of base 2. 1 / ln 2 goes into the scale and into the
log-sum-exp, of which there is one number for a query: what is left for each score is one multiply-add and MUFU.EX2.
"""

import cuda.tile as ct

from steps.backward_cutile import step401_formulas
from steps.backward_cutile.kernel import INVERSE_LN2, RELAXED_ATOMICS
from steps.backward_cutile.skeleton import CuTileGradients


def weigh_exp(scores, lse, scale):
    """The weights again: e^(scaled score - log-sum-exp of its row)."""
    return ct.exp(scores * scale - lse)


ORDERED_ATOMICS = CuTileGradients(
    name="ordered_atomics",
    title="One kernel, ordered atomics",
    change="The five products in one kernel; blocks that own keys add their parts of dQ by atomics.",
    inside="relaxed_atomics",
    previous=step401_formulas.STEP,
    default_problem=step401_formulas.STEP.default_problem,
    weigh=weigh_exp,
)

STEP = ORDERED_ATOMICS.evolve(
    number=402,
    name="relaxed_atomics",
    previous=step401_formulas.STEP,
    title="One kernel, dQ by atomics",
    change="The five products in one kernel; blocks that own keys add to dQ by relaxed atomic additions.",
    d_query=RELAXED_ATOMICS,
)


def weigh_exp2(scores, lse, scale):
    """As step ordered_atomics's, in base 2."""
    return ct.exp2(scores * (scale * INVERSE_LN2) - lse * INVERSE_LN2, flush_to_zero=True)


FOLDED_LSE = STEP.evolve(
    name="folded_lse",
    title="exp2, LSE folded in",
    change="Exponentials in base 2 with subnormals flushed; 1/ln 2 in the scale and in the log-sum-exp.",
    inside="relaxed_atomics",
    weigh=weigh_exp2,
)

INSIDE = (ORDERED_ATOMICS, FOLDED_LSE)
