"""The online softmax on CDNA, in base 2: what is scaled, when the maximum moves, and who rescales the output."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from steps.core.fused import Pieces

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


THRESHOLD = gl.constexpr(8.0)  # powers of two


@gluon.jit
def softmax(scores, row_max, scale, variant: gl.constexpr):
    """One step of the online softmax in base 2: weights [query, key], correction [query], new maximum [query]."""
    highest = variant.scaling.score(gl.max(scores, 1), scale)
    new_max = variant.rescaling.move(row_max, gl.maximum(row_max, highest))
    scores = variant.scaling.score(scores, scale)
    return gl.exp2(scores - new_max[:, None]), gl.exp2(row_max - new_max), new_max


# --- what is multiplied by the scale ---


@dataclass(frozen=True)
class Scaling(Pieces):
    """query(q, scale): the queries as the product takes them. score(x, scale): scores, or maxima of them, scaled.

    most: up to which scale it is right, times 1 / sqrt(head_dim).
    """

    query: Callable
    score: Callable
    most: float = math.inf


@gluon.jit
def as_it_is(x, scale):
    """Nothing is multiplied: x."""
    return x


@gluon.jit
def times_scale(x, scale):
    """Scores times the scale."""
    return x * scale


@gluon.jit
def scaled_once(q, scale):
    """Q times the scale, rounded once more."""
    return (q.to(gl.float32) * scale).to(q.dtype)


SCALE_SCORES = Scaling(as_it_is, times_scale)
SCALE_QUERY = Scaling(scaled_once, as_it_is, most=2)  # with more, one more rounding of Q shows in the output


# --- when the maximum moves, and the output with it ---


@dataclass(frozen=True)
class Rescaling(Pieces):
    """move(row_max, new_max): the maxima [query] that weights are relative to, from what they were and what is highest.

    rescale(accumulator, correction): the output so far [query, head_dim], times the correction [query] of its rows.
    """

    move: Callable
    rescale: Callable


@gluon.jit
def at_once(row_max, new_max):
    """The highest score so far."""
    return new_max


@gluon.jit
def multiply(accumulator, correction):
    """The output, multiplied."""
    return accumulator * correction[:, None]


@gluon.jit
def beyond_threshold(row_max, new_max):
    """The maximum of a row stays until some score exceeds it by more than the threshold.

    Weights are then at most 2^threshold instead of 1, and the correction is 1.
    """
    return gl.where(new_max > row_max + THRESHOLD, new_max, row_max)


@gluon.jit
def multiply_by_vote(accumulator, correction):
    """The output; a wave multiplies only if one of its lanes has a correction that is not 1."""
    factors = [accumulator, correction[:, None]]
    return gl.inline_asm_elementwise(VOTE, OPERANDS, factors, dtype=gl.float32, is_pure=True, pack=PACK)


EVERY_TILE = Rescaling(at_once, multiply)
BY_VOTE = Rescaling(beyond_threshold, multiply_by_vote)
