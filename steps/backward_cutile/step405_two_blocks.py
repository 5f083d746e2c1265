"""Step 405: autotuned tiles, warps and blocks an SM.

A block of the steps before takes so many registers that an SM holds one, and at head_dim 128 so much shared memory.
While its four warps wait, or compute what stands between two products, nobody else is there to use the tensor cores.
The hint ``occupancy=2`` asks the compiler for code that leaves room for a second block: fewer registers, and fewer
tiles under way. At head_dim 128 the kernel for dQ is faster still with one block of larger tiles and eight warps.

``python -m steps.search --direction backward`` times each kernel over tiles, warps and this hint. The launch rules
(``steps/core/rules.toml``, tables ``searched_keys`` and ``searched_queries``) hold the fastest for an architecture and
head_dim. Where they hold none, the step is the one before.

``preprocess_kernel``, inside this step: the numbers of a query are made once.

Each block that owns keys loads the log-sum-exps of the queries that pass by, multiplies them by 1 / ln 2 and looks for
rows that see no key. So all blocks of a head do the same for the same queries. The small kernel that computes the row
sums has each query once. Here it also writes the log-sum-exp in base 2, with infinity for a row that sees no key.

What is left in the loop is a load of numbers that need no more work. Past the last query it may fill with zeros, as for
the row sums: Q and dO are zero there, and so is all that they add. FlashAttention-3 prepares it in base 2, too
(https://github.com/Dao-AILab/flash-attention, hopper/).
"""

import cuda.tile as ct

from steps.backward_cutile import step404_longest_first
from steps.backward_cutile.kernel import INVERSE_LN2, PREPARED


def weigh_prepared(scores, lse, scale):
    """As step folded_lse's, with the log-sum-exp in base 2 already."""
    return ct.exp2(scores * (scale * INVERSE_LN2) - lse, flush_to_zero=True)


PREPROCESS_KERNEL = step404_longest_first.STEP.evolve(
    name="preprocess_kernel",
    title="A preprocessing kernel",
    change="The kernel for delta also writes the log-sum-exp in base 2, and the loop only loads both.",
    inside="two_blocks",
    weigh=weigh_prepared,
    of_rows=PREPARED,
)

STEP = PREPROCESS_KERNEL.evolve(
    number=405,
    name="two_blocks",
    previous=step404_longest_first.STEP,
    title="Autotuned: two blocks per SM",
    change="Tiles, warps and blocks per SM are those that a search found fastest; one kernel prepares the rows.",
    searched=True,
)

INSIDE = (PREPROCESS_KERNEL,)
