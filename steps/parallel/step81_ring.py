"""Step 81: keys and values go round in a ring, a part at a time.

A rank sends the part it has to the next rank, and gets one from the rank before. After as many turns as there are ranks
it has seen all keys, and never held more than two parts. What it computes of each part is put together by the parts'
log-sum-exp. Here it waits for a part before it computes, and every turn takes both times.
"""

from steps.parallel import step80_gather
from steps.parallel.ring import Ring
from steps.parallel.shares import IN_ORDER

STEP = step80_gather.STEP.evolve(
    number=81,
    name="ring",
    title="A ring",
    change="Keys and values go round the ranks, a part a turn, and results are put together by their log-sum-exp.",
    share=IN_ORDER,
    function=Ring(IN_ORDER, ahead=False),
)
