"""Step 162: products are asked for before the fence, not after.

A warp group stores dS of a turn in shared memory, where the other reads it by wgmma. Before it tells the other, it
executes a fence: stores of a thread and reads of wgmma take different ways to shared memory, and the fence puts them in
order [PTX ISA: fence.proxy.async]. The machine code of the fence waits until all stores of the thread are done. Until
now the warp group waited there first, and asked for its next products then.

But these products need nothing of what was stored. dQ is of the turn before, and dK takes dS from registers. Here a
warp group asks for both before the fence. While it waits at the fence, the tensor cores have work.
It also passes on its turn at the weights (step alternate) before the fence.

This depends on the compiler: Triton 3.6.0, of which the records are, leaves the order as it is. Triton 3.7.1 and 3.9.0
add a fence of their own before dQ's product. To ask for dQ before dS is stored kept 3.7.1 from that, and was slower:
chapter 162 has what was tried.

At head_dim 256 one warp group has all of dS, and asks for dK before the fence already. Nothing changes.

To expect, as a hypothesis: a turn takes less time by a part of the wait at the fence, most at head_dim 128. There a
turn is shorter, so that the wait is a larger part of it.
"""

from steps.backward_hopper import products, step139_newest_first
from steps.core.problems import standard

STEP = step139_newest_first.STEP.evolve(
    number=162,
    name="fence_behind",
    title="The fence behind the products",
    change="A warp group asks for dQ and dK before the fence behind its dS, not after.",
    fork=True,
    fence=products.FENCE_BEHIND,
    default_problem=standard(4096, causal=False),
)
