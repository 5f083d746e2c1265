"""Step 12: blocks count where there is nothing to deal.

A list of tiles (step stay) is worth its price where tiles differ in length. Without a mask they do not: every n-th tile
is as fair a deal as any, and the number of the next one is an addition, not a load that Q must wait for.
"""

from steps.core.order import COUNTED
from steps.core.problems import standard
from steps.cutile import step11_apart

STEP = step11_apart.STEP.evolve(
    number=12,
    name="counted",
    title="Counted, not looked up",
    change="Without a mask a block takes every n-th tile of queries, of n blocks, and reads no list.",
    default_problem=standard(2048),
    order=COUNTED,
)
