"""Step 603: persistent blocks.

As in step lpt_scheduler: one block an SM stays, and computes a list of tiles of queries that was dealt to it before the
launch. Tensor memory is taken once, and the warps get their roles and registers once. Every role goes through the same
list, and counts on in its barriers from tile to tile. The output leaves from where the queries were, as shared memory
has no room for both at head_dim 128. So the next queries are asked for when the last output has left; the next keys and
values are asked for behind them.

To expect, as a hypothesis: under a causal mask blocks end together, since long and short tiles of queries are dealt
evenly. Without a mask little changes: a block that ends makes room for one that begins, and there is one an SM in
either case.

``dynamic_scheduler``, inside this step: blocks take the tiles of blocks that have not begun, when they are ready for
one.

A list that is dealt before the launch stands on an estimate of how long tiles take, and on SMs that are all as fast.
Here no block has a list. The launch has a block for every tile of queries, in one order: heads in sections, and inside
a section the longest tiles first. As many begin as the SMs hold, and these stay. With
``clusterlaunchcontrol.try_cancel`` a block is given the index of another that has not begun, which then never begins
(PTX ISA, "clusterlaunchcontrol"; in Gluon ``blackwell.clc``). It computes the tile of that one.

The warp that asks for tiles makes the request as soon as it has asked for the last keys and values of a tile, which is
before the others have computed with them. The answer comes to shared memory. One mbarrier says that it is there, and
every role reads it. The other says that all have read it: only then the next one may overwrite it.

Nothing of this is in global memory, so launches that run at the same time share nothing.

To expect, as a hypothesis: where the estimate is good, nothing but the cost of the requests. Where SMs differ, or
another kernel holds some of them for a while, blocks end together that would not have. Hopper has no such request. A
counter in global memory does the same there, and was measured (``steps/trials/taken.py``): it is slower under a causal
mask, and brings nothing that counts without one.
"""

from steps.blackwell import step602_lazy_rescaling
from steps.blackwell.taking import LAUNCHED, LISTS
from steps.core.problems import HEADLINE

STEP = step602_lazy_rescaling.EXP2_EMULATION.evolve(
    number=603,
    name="blackwell_persistent",
    previous=step602_lazy_rescaling.STEP,
    title="Persistent blocks",
    change="As many blocks as SMs, each with a list of tiles; a quarter of the exponentials are a polynomial.",
    default_problem=HEADLINE,
    schedule=LISTS,
)

DYNAMIC_SCHEDULER = STEP.evolve(
    name="dynamic_scheduler",
    title="Dynamic scheduler",
    change="A persistent block that is ready takes the tile of a block that has not begun.",
    inside="blackwell_persistent",
    schedule=LAUNCHED,
)

INSIDE = (DYNAMIC_SCHEDULER,)
