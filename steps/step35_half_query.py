"""Step 35: half of Q stays in registers where head_dim is 256.

A wgmma of 64 queries by 64 keys reads as many bytes of Q as of K, and with both in shared memory it takes all that
shared memory can deliver while the tensor cores compute. The first factor may come from registers. All of Q would take
64 of a thread's; half of it takes 32 and leaves shared memory a quarter of its time.
"""

from steps import step34_lean_sum

STEP = step34_lean_sum.STEP.evolve(
    number=35,
    name="half_query",
    title="Half of Q in registers",
    change="At head_dim 256 the first half of every query stays in registers, and is not read again for every tile.",
    half_query=True,
)
