"""Step 125: the first maxima for the next queries are taken under the last product for these.

In the loop a group takes the maxima of its scores while the PV product is under way. At the end of a tile of queries it
does not. There it begins the last PV product for these queries, and the first QK product for the next. It waits for the
PV product, divides, and stores the output. The scores come after that. Here the QK product is begun in front of the PV
product, and the maxima of its scores are taken under that, as in the loop (``steps.hopper.ahead``). The output is
written to shared memory behind the exponentials. TMA is asked to send it at the end of the next tile of queries, when
products are under way again.

This needs a kernel whose two groups have as many tiles of keys, so no pairs of blocks. The launch rule takes it under a
causal mask from 2,048 to 8,191 queries, as pairs begin at 8,192. In trials, which are not among the records, it was
slower without a mask, and not faster with 1,024 queries. Elsewhere the kernel is that of step quarter_query.
"""

from steps.core.problems import HEADLINE
from steps.hopper import ahead, step124_quarter_query

STEP = step124_quarter_query.STEP.evolve(
    number=125,
    name="softmax_ahead",
    title="The next maxima under the last product",
    change="The maxima for the next queries are taken under the last PV product for these.",
    default_problem=HEADLINE,
    generation=ahead.fmha,
)
