"""Step 304: weights up to 256.

The largest weight of a row is 1, and of a long row most are far less. The least normal number of e4m3 is 2^-6. Below
that, numbers are 2^-9 apart, and what is less than half of that becomes zero. Above 1 there is room up to 448 that no
weight uses.

Here all weights are 2^8 times as large. That costs nothing: the softmax subtracts the maximum less 8. The sums have the
same factor, and the division takes it out. So it is in the log-sum-exp, too. FlashAttention-3 does the same.

The step is not there for speed. It buys digits in rows where much of the sum is in small weights.

Three variants inside this step try on it what the 16-bit kernels have: ``fp8_ping_pong``, the two warpgroups issue
their products in turn; ``fp8_no_redundant_barriers``, warps meet only where they must; ``fp8_three_warpgroups``, three
warpgroups where head_dim is 64. There the exponentials bound the time, and the outputs of 64 queries take 32 registers
a thread, so that a third warpgroup fits. A tile of 192 queries sees the diagonal pass through two tiles of keys.
"""

from dataclasses import replace

from steps.fp8 import step303_permuted_keys
from steps.hopper.conditions import up_to_64
from steps.hopper.lib import IN_TURN, WITHOUT_MEETINGS

STEP = step303_permuted_keys.STEP.evolve(
    number=304,
    name="p_offset",
    title="Weights times 2^8",
    change="Weights are multiplied by 2^8 before they are rounded to e4m3: else many fall below its smallest number.",
    offset=8,
)

FP8_PING_PONG = STEP.evolve(
    name="fp8_ping_pong",
    title="fp8 ping-pong",
    change="The two warpgroups issue their products in a fixed order, one after the other.",
    inside="p_offset",
    turns=IN_TURN,
)

FP8_NO_REDUNDANT_BARRIERS = STEP.evolve(
    name="fp8_no_redundant_barriers",
    title="fp8 without redundant bar.sync",
    change="Warps of a warpgroup no longer synchronize before waits, nor before arrivals after a complete product.",
    inside="p_offset",
    hold=WITHOUT_MEETINGS,
)

FP8_THREE_WARPGROUPS = STEP.evolve(
    only_for=up_to_64,
    name="fp8_three_warpgroups",
    title="fp8, three warpgroups",
    change="At head_dim 64 three consumer warpgroups of 64 queries compute instead of two.",
    inside="p_offset",
    default_problem=replace(STEP.default_problem, head_dim=64),
    warpgroups=3,
)

INSIDE = (FP8_PING_PONG, FP8_NO_REDUNDANT_BARRIERS, FP8_THREE_WARPGROUPS)
