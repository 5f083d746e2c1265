"""Step 76: blocks counted by heads first.

Blocks that read the same keys and values should find them in the same cache. On NVIDIA's GPUs one L2 serves all SMs, so
blocks that run together take neighbouring queries of one head. MI300X and MI355X are made of eight dies (XCDs), each
with compute units and an L2 of its own (AMD GPU specifications, ROCm documentation). Blocks are dealt to the dies in
turn: block 0 to the first, block 1 to the second, block 8 to the first again
(https://docs.modular.com/mojo/kernels/linalg/matmul/gpu/amd/pingpong_kernel/chiplet_transform_chunked). Neighbouring
queries of one head then go to eight dies, and each of them loads the same keys and values.

So the grid counts heads first, then tiles of queries, then the batch. Where the number of heads is a multiple of eight,
all blocks of a head go to the same die. With grouped heads it is still less than it could be: the query heads that
share keys and values are neighbours, go to different dies, and each of these loads them.

What to expect: less traffic between the dies and memory. The code of a block is the same.
"""

from steps.cdna import step75_priorities

STEP = step75_priorities.STEP.evolve(
    number=76,
    name="heads_first",
    title="Heads first",
    change="Blocks are counted by heads first, so that one die's L2 has a head's keys and values.",
    heads_first=True,
)
