"""Step 33: the output leaves in halves where head_dim is 256.

Blocks that stay want shared memory for the output, so that the next queries can arrive while the last output leaves
(step 22). At head_dim 256 there is not enough; but there is for half of it, if the halves leave one after the other.
"""

from steps import step32_own_end

STEP = step32_own_end.STEP.evolve(
    number=33,
    name="half_output",
    title="The output in halves",
    change="At head_dim 256 the output has shared memory of its own for one half at a time.",
    half_output=True,
)
