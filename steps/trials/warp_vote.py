"""Trial: a warp rescales its output only where one of its rows needs it, as its lanes decide by a vote.

Trial lazy asked all warps of a warpgroup together: its condition goes through shared memory, with a barrier, in every
iteration of the loop. Here every row keeps its maximum until some score exceeds it by a threshold, in powers of two,
and ``vote.sync`` tells a warp whether one of its 16 rows has a factor that is not 1 (PTX ISA, "vote.sync"). It needs no
memory, and no warp waits for another. Gluon has no name for it: the branch and the multiplications are PTX.

Found on an H100: at head_dim 64 it is slower with either threshold, and at head_dim 128 no difference counts. Chapter
summary shows the record.
"""

from __future__ import annotations

from steps.core.problems import FULL, HEADLINE, standard
from steps.trials.trial import Trial

REGISTERS = 32  # of a lane, that one vote is for: of every four, two are of one row and two of another
ONE = "0f3F800000"


def ptx() -> str:
    """Multiply registers $0, … by their factors, unless both factors of each lane of the warp are 1.

    $0 to $31 are the results, $32 to $63 the same registers before, and $64 to $95 the factors, two different ones.
    """
    factors = 2 * REGISTERS
    lines = [
        "{ .reg .pred some;",
        f"setp.neu.f32 some, ${factors}, {ONE};",
        f"setp.neu.or.f32 some, ${factors + 2}, {ONE}, some;",
        "vote.sync.any.pred some, some, 0xffffffff;",
        "@!some bra done;",
        *(f"mul.f32 ${n}, ${n}, ${factors + n};" for n in range(REGISTERS)),
        "done: }",
    ]
    return " ".join(lines)


OPERANDS = ",".join(["=f"] * REGISTERS + [str(n) for n in range(REGISTERS)] + ["f"] * REGISTERS)


def functions(threshold: float) -> dict[str, str]:
    """threshold: at most 15, as float16 ends before 2^16."""
    raise_maxima = f"""
def raise_maxima(scores, row_max, scale):
    new_max = gl.maximum(row_max, gl.max(scores, 1) * scale)
    return gl.where(new_max > row_max + {float(threshold)}, new_max, row_max)
"""
    rescale = f"""
def rescale(accumulator, factor):
    return gl.inline_asm_elementwise(
        {ptx()!r},
        {OPERANDS!r},
        [accumulator, by_row(factor)],
        dtype=gl.float32,
        is_pure=True,
        pack={REGISTERS},
    )
"""
    return {"raise_maxima": raise_maxima, "rescale": rescale} if threshold else {}


TRIAL = Trial(
    name="warp_vote",
    question="Would it be faster if each warp decided by a vote whether its output must be rescaled?",
    base="pv_wait_after_max",
    values=(0, 4, 8),
    problems=(standard(head_dim=64), FULL, HEADLINE),
    axis="threshold, powers of two (0: always rescaled)",
    functions=functions,
)
