"""Step 121: the maximum of a row in four chains of comparisons, not in one.

Of a tile of scores a lane has 32 of each of two rows (at head_dim 256, where tiles have 64 keys, 16). It compares the
first with the second, the larger with the third, and so on. Every comparison waits for the one before: that is a chain.
An SM needs a few clocks from one comparison of a chain to the next. Meanwhile it can begin others, if there are any.
There are those of the other row. At head_dim 128, and at 64 without a mask, ptxas puts the two rows' comparisons in
turn. Elsewhere it does one row after the other.

So it was with Triton 3.6.0, of which the records are. Triton 3.9 compares the scores of a row in pairs, and then their
maxima: it has several chains a row by itself, and leaves less to gain.

Here a lane has four chains for each row: for each half of its columns, and in each pair of neighbours for the left and
the right. Three more comparisons put them together. The number of comparisons stays the same.

At head_dim 256 without a mask the kernel stays as it was: with four chains it was slower in a trial, which is not
among the records.
"""

from steps.core.problems import standard
from steps.hopper import step39_at_maxima
from steps.hopper.softmax import in_four_chains

STEP = step39_at_maxima.STEP.evolve(
    number=121,
    name="four_chains",
    title="Four chains of maxima",
    change="A lane looks for the maximum of a row in four chains of comparisons in place of one.",
    fork=True,
    default_problem=standard(16384, head_dim=64, causal=True),
    highest=in_four_chains,
)
