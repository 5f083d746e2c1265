"""Step 67, a fork from step 65: blocks take the next tile when they are ready for one.

A list that is dealt before the launch stands on an estimate of how long tiles take, and on SMs that are all as fast.
Here no block has a list. There is one order for all of them: heads in sections, and inside a section the longest tiles
first. A counter in global memory says how far it was taken. The warp that asks for tiles adds one to it as soon as it
has asked for the last keys and values of a tile, which is before the others have computed with them. It tells the other
roles the number through shared memory, and two mbarriers say when the number is there and when all have read it.

Launches that run at the same time must not share a counter. Calls of one kind do, so they belong in one stream.

Newer hardware has this built in: on Blackwell, ``clusterlaunchcontrol.try_cancel`` gives a block the index of another
that has not begun, which then never begins (PTX ISA, "clusterlaunchcontrol"). Gluon has it since Triton 3.9
(``blackwell.clc``), and this step was written before.

To expect, as a hypothesis: where the estimate is good, nothing but the cost of the counter. Where SMs differ, or
another kernel holds some of them for a while, blocks end together that would not have. On Hopper the same was measured
(``steps/trials/taken.py``): it is slower under a causal mask, and brings nothing that counts without one.
"""

from steps.blackwell import step65_lasting_blocks
from steps.blackwell.variant import Correction, Roles

STEP = step65_lasting_blocks.STEP.evolve(
    number=67,
    name="taken",
    title="Tiles taken one by one",
    change="A block that stays takes the next tile of queries from a counter when it is ready for one.",
    fork=True,
    roles=Roles(correction=Correction(threshold=8.0), stay="taken"),
)
