"""Step 137: at head_dim 256 dQ is added by whole lines.

At head_dim 256 shared memory has no room for dQ, and warps add it from registers, as in step fours: a lane adds four sums
beside each other. wgmma leaves 16 columns of a row in four lanes. So an instruction of a warp adds 64 bytes in each of
eight rows, and touches eight lines of 128 bytes.

Here lanes exchange what they have, by shuffles, such that eight neighbouring lanes have 32 columns of a row. An
instruction then adds 128 bytes in each of four rows: as many bytes, in half as many lines.

Where TMA adds dQ nothing changes.
"""

from steps.backward_hopper import adding, step136_zeros_ahead
from tutorial_lib.problem import Problem

STEP = step136_zeros_ahead.STEP.evolve(
    number=137,
    name="whole_lines",
    title="dQ by whole lines",
    change="At head_dim 256 lanes exchange dQ, such that a warp adds to half as many lines at a time.",
    fork=True,
    wide_adding=adding.LINES,
    default_problem=Problem(batch=4, heads=16, seq_len_q=4096, seq_len_kv=4096, head_dim=256, causal=True),
)
