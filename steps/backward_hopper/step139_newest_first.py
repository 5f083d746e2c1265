"""Step 139: small kernels begin with the last head.

The large kernel ends with the last heads. Their sums for dQ are what L2 was given last. The kernel that scales sums
began with the first head, whose sums are the oldest: where L2 holds less than all, it has probably written them to
device memory. And what the kernel read then took the place of sums that L2 still had.

Here it begins with the last head. So does the kernel that prepares rows: the large kernel needs those of the first head
first, and finds them, and dO, in L2.

To expect, as a hypothesis: as many bytes, of which more come from L2, where the small kernels have much to do.
"""

from steps.backward_hopper import rows, step138_early
from steps.core.problems import standard

STEP = step138_early.STEP.evolve(
    number=139,
    name="newest_first",
    title="The newest rows first",
    change="Small kernels begin with the last head, whose sums L2 still holds.",
    fork=True,
    line_of_block=rows.last_head_first,
    default_problem=standard(1024, causal=True),
)
