"""Step 403: two kernels in place of atomics.

One kernel computes dK and dV, a block for a tile of keys; another computes dQ, a block for a tile of queries. Each sum
grows in the registers of one block, nobody adds to anybody else's, and the same inputs give the same bits every time.
The price is work: the second kernel computes scores and dP again, so that there are seven products in place of five.
"""

from steps.backward_cutile import step402_relaxed_atomics
from steps.backward_cutile.kernel import OWN_KERNEL

STEP = step402_relaxed_atomics.FOLDED_LSE.evolve(
    number=403,
    name="two_kernels",
    previous=step402_relaxed_atomics.STEP,
    title="Two kernels",
    change="dK and dV by tiles of keys, dQ by tiles of queries: seven products, and no atomics.",
    d_query=OWN_KERNEL,
)
