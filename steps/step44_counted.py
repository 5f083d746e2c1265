"""Step 44: blocks count where there is nothing to deal.

A list of tiles (step 27) is worth its price where tiles differ in length. Without a mask they do not: every n-th tile
is as fair a deal as any, and the number of the next one is an addition, not a load that Q must wait for.
"""

from steps import step43_apart
from steps.order import COUNTED

STEP = step43_apart.STEP.evolve(
    number=44,
    name="counted",
    title="Counted, not looked up",
    change="Without a mask a block takes every n-th tile of queries, of n blocks, and reads no list.",
    order=COUNTED,
)
