"""The online softmax on CDNA, in base 2: when the maximum moves, and who rescales the output."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

REGISTERS = 16  # of a lane, that one MFMA fills: 32 x 32 results in 64 lanes


def _vote() -> str:
    """Instructions that multiply registers by a factor unless it is 1 in all lanes of the wave.

    The comparison writes a bit a lane, and the branch asks whether all are zero: that is the vote. $0 to $15 are the
    results, $16 to $31 the same registers before, $32 to $47 the factor of each, which is that of the row: one for all.
    """
    products = [f"v_mul_f32 ${n}, ${n}, ${2 * REGISTERS}" for n in range(REGISTERS)]
    return "\n".join([f"v_cmp_neq_f32 vcc, 1.0, ${2 * REGISTERS}", "s_cbranch_vccz 0f", *products, "0:"])


def _operands() -> str:
    """What the vote's operands are: results in vector registers, the same ones before, and the factors."""
    before = [str(n) for n in range(REGISTERS)]
    return ",".join(["=v"] * REGISTERS + before + ["v"] * REGISTERS + ["~{vcc}"])


VOTE = gl.constexpr(_vote())
OPERANDS = gl.constexpr(_operands())
PACK = gl.constexpr(REGISTERS)


@gluon.jit
def softmax(scores, row_max, scale, variant: gl.constexpr):
    """One step of the online softmax in base 2: weights [query, key], correction [query], new maximum [query].

    With a threshold, the maximum of a row stays until some score exceeds it by more than that. The weights are then at
    most 2^threshold instead of 1, and the correction is 1.
    """
    highest = gl.max(scores, 1)
    if not variant.scale_query:
        highest = highest * scale
    new_max = gl.maximum(row_max, highest)
    if variant.threshold is not None:
        new_max = gl.where(new_max > row_max + variant.threshold, new_max, row_max)
    if not variant.scale_query:
        scores = scores * scale
    return gl.exp2(scores - new_max[:, None]), gl.exp2(row_max - new_max), new_max


@gluon.jit
def rescale(accumulator, correction, variant: gl.constexpr):
    """The output so far [query, head_dim], times the correction [query] of its rows.

    With a threshold most corrections are 1. A wave multiplies only if one of its lanes has another.
    """
    if variant.threshold is None:
        return accumulator * correction[:, None]
    else:
        factors = [accumulator, correction[:, None]]
        return gl.inline_asm_elementwise(VOTE, OPERANDS, factors, dtype=gl.float32, is_pure=True, pack=PACK)
