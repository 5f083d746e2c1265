"""Step 76: blocks counted by heads first.

Blocks that read the same keys and values should find them in the same cache. On NVIDIA's GPUs one L2 serves all SMs, so
blocks that run together take neighbouring queries of one head. MI300 and MI350 are made of eight dies (XCDs), each with
compute units and an L2 of its own, and blocks are dealt to the dies in turn: block 0 to the first, block 1 to the
second, block 8 to the first again (AMD Instinct MI300X workload optimization guide, ROCm documentation). Neighbouring
queries of one head then go to eight dies, and each of them loads the same keys and values.

So the grid counts heads first, then tiles of queries, then the batch. Where eight divides the number of heads, all
blocks of a head go to the same die. Query heads that share keys and values do so where the group is a multiple of
eight, too; for smaller groups several dies load them.

What to expect: less traffic between the dies and memory where keys and values of the heads that run at once do not fit
into every L2. The code of a block is the same.
"""

from steps.cdna import step75_priorities

STEP = step75_priorities.STEP.evolve(
    number=76,
    name="heads_first",
    title="Heads first",
    change="Blocks are counted by heads first, so that one die's L2 has a head's keys and values.",
    heads_first=True,
)
