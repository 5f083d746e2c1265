"""Step 125: the first softmax for the next queries runs under the last product for these.

In the loop a softmax always has products beside it. At the end of a tile of queries that stops: a group begins its last
PV product, waits for it, divides, and stores the output. Only then it takes the scores of the next queries. Here the
first QK product for the next queries is begun in front of the last PV product, and the softmax of its scores runs under
that, as in the loop (``steps.hopper.ahead``). The output is written to shared memory behind this softmax. TMA is asked
to send it a whole tile of queries later, when products are under way again.

This needs a kernel whose two groups have as many tiles of keys, so no pairs of blocks. The launch rule takes it under a
causal mask from 2,048 queries on: up to 8,191, where pairs begin. In trials, which are not among the records, it was
slower without a mask, and not faster with 1,024 queries. Elsewhere the kernel is that of step 124.
"""

from dataclasses import replace

from steps.core.problems import HEADLINE
from steps.hopper import step124_quarter_query
from steps.hopper.variant import Roles

STEP = step124_quarter_query.STEP.evolve(
    number=125,
    name="softmax_ahead",
    title="The next softmax under the last product",
    change="The first softmax for the next queries runs under the last PV product for these.",
    default_problem=HEADLINE,
    roles=Roles(registers=240, loop=replace(step124_quarter_query.LOOP, softmax_ahead=True)),
)
