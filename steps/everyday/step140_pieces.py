"""Step 140: a head_dim between powers of two is multiplied in two pieces.

The sizes of tensors in Gluon are powers of two, and so are those of cuTile's tiles. A head of 192 columns comes to
shared memory as one of 256, whose last 64 are zeros, and every kernel so far multiplies these zeros. Here a product
takes two pieces of the tile, of 128 and 64 columns. The scores are the sum of both products. The output has two
accumulators, and fewer registers hold it. What TMA brings, and where it lies, stays as it was.
"""

from steps.hopper import step120_kv_multicast
from tutorial_lib.problem import Problem

STEP = step120_kv_multicast.STEP.evolve(
    number=140,
    name="pieces",
    title="Two pieces of a head",
    change="Products take the columns of a head_dim between powers of two in two pieces, without those that are zeros.",
    fork=True,
    default_problem=Problem(batch=4, heads=16, seq_len_q=4096, seq_len_kv=4096, head_dim=192, causal=True),
    in_pieces=True,
)
