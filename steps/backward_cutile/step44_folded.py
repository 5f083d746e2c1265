"""Step 44: powers of two, with the log-sum-exp folded in.

As in the forward pass (step 3), the hardware's exponential is one of base 2. 1 / ln 2 goes into the scale and into the
log-sum-exp, of which there is one number for a query: what is left for each score is one multiply-add and MUFU.EX2.
"""

import cuda.tile as ct

from steps.backward_cutile import step43_relaxed
from steps.backward_cutile.kernel import INVERSE_LN2


def weigh_exp2(scores, lse, scale):
    """As step atomics's, in base 2."""
    return ct.exp2(scores * (scale * INVERSE_LN2) - lse * INVERSE_LN2, flush_to_zero=True)


STEP = step43_relaxed.STEP.evolve(
    number=44,
    name="folded",
    title="exp2, log-sum-exp folded in",
    change="Exponentials in base 2 with subnormals flushed; 1/ln 2 in the scale and in the log-sum-exp.",
    weigh=weigh_exp2,
)
