"""Step 124: a quarter of the queries' columns stays in registers.

For a QK product a warp group reads its queries from shared memory, again for every tile of keys. In the loop shared
memory is busy for most of the time: with both factors of the QK product, with V, and with the tiles that TMA writes.
Here a warp keeps the first 32 of 128 columns of its queries in registers, and wgmma reads these from there.

Why not more of them? With a half or all of Q in registers the kernel was slower under a causal mask, and without one
no faster than with a quarter (a trial, which is not among the records). All queries stay in shared memory where blocks
come in pairs under a causal mask, and below 2,048 queries: by the same trial the kernel was slower there, or no faster.

A warp's own loads from shared memory need care where warps do not meet (step no_meetings): ``tutorial_lib.meetings`` lets a
meeting stay where a warp may still be loading.
"""

from steps.core.problems import FULL
from steps.hopper import step123_no_meetings
from steps.hopper.products import QUARTER_HELD

STEP = step123_no_meetings.STEP.evolve(
    number=124,
    name="quarter_query",
    title="A quarter of Q in registers",
    change="A quarter of the columns of Q stays in registers, and the QK product reads it from there.",
    default_problem=FULL,
    queries=QUARTER_HELD,
)
