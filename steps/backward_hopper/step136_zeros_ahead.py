"""Step 136: where sequences are short, TMA clears the sums for dQ.

With 1,024 queries and a causal mask spare warps would not keep pace with the blocks (step spare_warps). So two small kernels do
all that is small there. Half of the bytes of the first one are zeros, for the sums that dQ is added to.

Zeros need no loads, and TMA can write them. Here one spare warp fills a place in shared memory with zeros, once. It
asks TMA to store the place again and again, for its block's share of the sums of a head whose blocks begin later. TMA
writes them while the block multiplies. What is left to the kernel are the first heads, and what it computes for each
query.

Where spare warps do all, and at head_dim 256, nothing changes.
"""

from steps.backward_hopper import spare, step135_keys_kept
from steps.core.problems import standard

STEP = step135_keys_kept.STEP.evolve(
    number=136,
    name="zeros_ahead",
    title="Zeros by TMA",
    change="Where spare warps cannot keep pace with all small work, one lets TMA clear sums of later heads.",
    fork=True,
    short_helpers=spare.CLEARS,
    default_problem=standard(1024, causal=True),
)
