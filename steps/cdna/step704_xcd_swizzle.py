"""Step 704: XCD swizzle. Blocks are counted by heads first.

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

``by_shape``, inside this step: a kernel for the shape.

The stages of step wave_priorities want full blocks of 256 queries, and enough iterations that their begin and end do
not matter. Direct copies want gfx950. A program that calls attention has all kinds of shapes on either GPU. So the last
step chooses: by the architecture, by head_dim, and by the lengths. What is chosen is how the holes of the same skeleton
are filled, so that every choice is a kernel that the steps before have explained.

What to expect: each shape gets the kernel that was made for it. Where the border lies is a guess until somebody
measures it: `python -m steps.run --steps cdna` on such a GPU does.
"""

from steps.cdna import step701_mfma, step703_wave_priorities
from steps.cdna.kernel import HEADS_FIRST
from tutorial_lib.problem import Problem

STEP = step703_wave_priorities.STEP.evolve(
    number=704,
    name="xcd_swizzle",
    title="XCD swizzle",
    change="Neighboring blocks work for different heads, so that one XCD's L2 holds a head's keys and values.",
    numbering=HEADS_FIRST,
)

STAGED_LENGTH = 384  # of queries and of keys, at least
STAGED_MULTIPLE = 256  # of them: the queries of a block, which are whole tiles of keys, too


def by_shape(problem: Problem, arch: str) -> dict:
    """What the holes are filled with otherwise, for a problem on "gfx942" or "gfx950"."""
    lengths = problem.seq_len_q, problem.seq_len_kv
    if arch == "gfx942":
        return {"transfer": step701_mfma.STEP.transfer, "stages": None}
    if problem.head_dim == 128 and all(n >= STAGED_LENGTH and n % STAGED_MULTIPLE == 0 for n in lengths):
        return {}
    return {"stages": None}


BY_SHAPE = STEP.evolve(
    name="by_shape",
    title="By shape",
    change="The kernel is chosen by architecture, head_dim and lengths: in stages, in order, or through registers.",
    inside="xcd_swizzle",
    choose=by_shape,
)

INSIDE = (BY_SHAPE,)
