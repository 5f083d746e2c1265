"""Step 48: the numbers of a query are made once.

Each block that owns keys loads the log-sum-exps of the queries that pass by, multiplies them by 1 / ln 2 and looks for
rows that see no key. So all blocks of a head do the same for the same queries. The small kernel that computes the row
sums has each query once. Here it also writes the log-sum-exp in base 2, with infinity for a row that sees no key.

What is left in the loop is a load of numbers that need no more work. Past the last query it may fill with zeros, as for
the row sums: Q and dO are zero there, and so is all that they add. FlashAttention-3 prepares it in base 2, too
(https://github.com/Dao-AILab/flash-attention, hopper/).
"""

import cuda.tile as ct

from steps.backward_cutile import step47_longest_first
from steps.backward_cutile.kernel import INVERSE_LN2


def weigh_prepared(scores, lse, scale):
    """As step folded's, with the log-sum-exp in base 2 already."""
    return ct.exp2(scores * (scale * INVERSE_LN2) - lse, flush_to_zero=True)


STEP = step47_longest_first.STEP.evolve(
    number=48,
    name="prepared",
    title="Numbers of a query, made once",
    change="The kernel for the row sums also writes the log-sum-exp in base 2, and the loop only loads it.",
    weigh=weigh_prepared,
    prepared=True,
)
