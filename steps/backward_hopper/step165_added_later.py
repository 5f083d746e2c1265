"""Step 165: dQ is added when the next scores are under way.

At the end of a turn a warp group stores its dQ of the turn before in shared memory, executes a fence, and asks TMA to
add it. Until the fence is passed it asks for no product. The product for dK is under way meanwhile, but the fence can
take longer than what is left of that.

Here the warp group stores dQ, and goes on. It asks for the next turn's scores, and for the gradient of their weights.
Then it executes the fence, and asks TMA. It would wait for the scores there anyway.

Only at head_dim 64 without a mask. With a mask, and at head_dim 128, registers are short: what tells TMA where to add
must be kept for longer, and the compiler moved more numbers to memory. Trials on an H100, which are not recorded, found
it slower there.

To expect, as a hypothesis: a turn takes less time by what warps waited at this fence.
"""

from steps.backward_hopper import adding, step164_from_row_sums
from steps.core.problems import standard

STEP = step164_from_row_sums.STEP.evolve(
    number=165,
    name="added_later",
    title="dQ is added under the next scores",
    change="TMA is asked to add dQ a turn later, when the next scores are under way, at head_dim 64 without a mask.",
    fork=True,
    adding_unmasked=adding.FOURS_LATER,
    default_problem=standard(4096, 64, causal=False),
)
