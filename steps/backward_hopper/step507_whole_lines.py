"""Step 507: at head_dim 256 dQ is added by whole lines.

At head_dim 256 shared memory has no room for dQ, and warps add it from registers, as in step fours: a lane adds four
sums beside each other. wgmma leaves 16 columns of a row in four lanes. So an instruction of a warp adds 64 bytes in
each of eight rows, and touches eight lines of 128 bytes.

Here lanes exchange what they have, by shuffles, such that eight neighbouring lanes have 32 columns of a row. An
instruction then adds 128 bytes in each of four rows: as many bytes, in half as many lines.

Where TMA adds dQ nothing changes.

``zeros_ahead``, inside this step: where sequences are short, TMA clears the sums for dQ.

With 1,024 queries and a causal mask spare warps would not keep pace with the blocks (step spare_warps). So two small
kernels do all that is small there. Half of the bytes of the first one are zeros, for the sums that dQ is added to.

Zeros need no loads, and TMA can write them. Here one spare warp fills a place in shared memory with zeros, once. It
asks TMA to store the place again and again, for its block's share of the sums of a head whose blocks begin later. TMA
writes them while the block multiplies. What is left to the kernel are the first heads, and what it computes for each
query.

Where spare warps do all, and at head_dim 256, nothing changes.
"""

from steps.backward_hopper import adding, spare, step506_keys_kept
from steps.core.problems import standard
from tutorial_lib.problem import Problem

ZEROS_AHEAD = step506_keys_kept.STEP.evolve(
    name="zeros_ahead",
    title="Zeros by TMA",
    change="Where spare warps cannot keep pace with all small work, one lets TMA clear sums of later heads.",
    inside="whole_lines",
    short_helpers=spare.CLEARS,
    default_problem=standard(1024, causal=True),
)

STEP = ZEROS_AHEAD.evolve(
    number=507,
    name="whole_lines",
    previous=step506_keys_kept.STEP,
    title="dQ by whole lines",
    change="At head_dim 256 lanes exchange dQ, such that a warp adds to half as many lines at a time.",
    fork=True,
    wide_adding=adding.LINES,
    default_problem=Problem(batch=4, heads=16, seq_len_q=4096, seq_len_kv=4096, head_dim=256, causal=True),
)

INSIDE = (ZEROS_AHEAD,)
