"""Step 164: the product for the weights' gradient begins with minus the row sums.

dS is the weights times what is left of their gradient when the row sum of dO * O is taken off. Until now the gradient
began with zero, and when the product was done a warp loaded the row sums from shared memory, waited for them, and took
them off: 32 subtractions of a thread, between two products.

wgmma adds to what is in the registers. So here it finds minus the row sums there, and not zeros. They are loaded before
the product begins, while that for the scores is under way. Between the products nothing is left to load or to subtract.

The price: in one of the two warp groups ptxas waits for the scores before it sets these registers. Then that warp group
has no product under way for a moment.

Only at head_dim 128. At 64 a trial on an H100, which is not recorded, found it slower.

To expect, as a hypothesis: the chain from dO to dS gets shorter, and a turn with it.
"""

from steps.backward_hopper import products, step163_no_turns
from steps.core.problems import standard

STEP = step163_no_turns.STEP.evolve(
    number=164,
    name="from_row_sums",
    title="The gradient begins with the row sums",
    change="The product for the weights' gradient begins with minus the row sums in its registers, not with zeros.",
    fork=True,
    gradient=products.FROM_ROW_SUMS,
    default_problem=standard(4096, causal=False),
)
