"""What a wider block costs in registers, and what it saves at shared memory."""

from tutorial_lib.exercises import Compared, Wrong

CASES = (  # queries, keys, head_dim, warps
    *((64, 64, 128, 4), (128, 64, 128, 4), (128, 64, 64, 4)),
    *((64, 64, 256, 4), (256, 64, 128, 8), (128, 128, 64, 8)),
)


def right(queries: int, keys: int, head_dim: int, warps: int) -> tuple[int, int]:
    """By Triton's layouts: registers of a lane that hold the output and the scores; products that a matrix feeds."""
    from triton.experimental.gluon import language as gl

    from tutorial_lib.layouts import _bases

    layout = gl.NVMMADistributedLayout([2, 0], [warps, 1], [16, 8])
    output, scores = (1 << len(_bases(layout, (queries, n))[0]) for n in (head_dim, keys))
    return output + scores, queries // warps // 16


def told(queries: int, keys: int, head_dim: int, warps: int) -> str:
    return (
        f"Output and scores are {queries * (head_dim + keys)} numbers of 32 bits, shared by {32 * warps} lanes. A warp "
        f"has {queries // warps} queries, and one mma.sync takes 16."
    )


EXERCISE = Compared(
    name="block_registers",
    function="wide_block",
    cases=lambda chance: chance.sample(CASES, len(CASES)),
    right=right,
    told=told,
    hints=(
        "How many numbers are in the output tile and in the scores? A register holds 32 bits, and both tiles are "
        "float32.",
        "With split-Q every number is held by one lane only, and a block has 32 * warps lanes. For the second result: "
        "how many groups of 16 queries does a warp have?",
        "registers = queries * (head_dim + keys) // (32 * warps); uses = queries // warps // 16.",
    ),
    solution="""
def wide_block(queries, keys, head_dim, warps):
    registers = queries * (head_dim + keys) // (32 * warps)
    uses = queries // warps // 16
    return registers, uses
""",
    wrong=(
        Wrong("a register holds two numbers", old="(32 * warps)", new="(64 * warps)"),
        Wrong("the scores are forgotten", old="(head_dim + keys)", new="head_dim"),
        Wrong("a warp is taken for a lane", old="(32 * warps)", new="warps"),
        Wrong("the queries of the whole block count", old="queries // warps // 16", new="queries // 16"),
        Wrong("a matrix feeds a product of each warp", old="queries // warps // 16", new="warps"),
    ),
    debrief="Twice the queries a warp: a matrix feeds twice as many products, and costs twice the registers. A thread "
    "has 255, and the factors, addresses and maxima need theirs, too.",
)
