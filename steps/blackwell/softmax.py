"""What the Blackwell kernels do with scores: maxima, weights, and exponentials without the unit for exponentials.

A thread has all scores of its query, so that no lane asks another for a maximum or a sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from steps.blackwell.columns import rescale
from steps.core.fused import Pieces
from steps.gluon.softmax import exp2

THRESHOLD = gl.constexpr(8.0)  # in base 2: weights are up to 2^8 then, which float16 holds as precisely as 1


@gluon.jit
def hide(scores, first_query, first_key, seq_len_kv, variant: gl.constexpr):
    """Scores [query, key] with minus infinity where a query must not see a key, or there is no key.

    A thread compares the number of the last key that its query sees with a constant for each register. Compared the
    other way round, with the number of every key in a register, they would be 128 registers more.
    """
    key = gl.arange(0, variant.tile.key, gl.SliceLayout(0, scores.type.layout))
    last = seq_len_kv - 1 - first_key
    if variant.causal:
        seen = first_query - first_key + gl.arange(0, variant.rows, gl.SliceLayout(1, scores.type.layout))
        if variant.ragged:
            seen = gl.minimum(seen, last)
        return gl.where(key[None, :] <= seen[:, None], scores, float("-inf"))
    else:
        return gl.where((key <= last)[None, :], scores, float("-inf"))


@gluon.jit
def next_maxima(scores, row_max, scale, variant: gl.constexpr):
    """(maximum [query] that weights are relative to, in base 2; correction [query] of earlier sums)."""
    new_max = variant.rescaling.move(row_max, gl.maximum(row_max, gl.max(scores, 1) * scale))
    return new_max, exp2(row_max - new_max)


@gluon.jit
def weigh(scores, row_max, scale, variant: gl.constexpr):
    """Weights [query, key]: 2^(score - maximum)."""
    return variant.exponential(scores * scale - row_max[:, None])


@gluon.jit
def add_up(row_sum, correction, weights, variant: gl.constexpr):
    """The sums [query] so far, and those of one more tile of weights [query, key].

    Columns that lie side by side are added first, a few at a time. Of a whole row at once, Triton 3.9 first adds all
    its pairs (add.f32x2), for which all of its weights and their sums would be in registers together.
    """
    AT_ONCE: gl.constexpr = 16
    some = gl.reshape(weights, [variant.rows, variant.tile.key // AT_ONCE, AT_ONCE])
    total = gl.sum(gl.sum(some, 2), 1)
    return row_sum * correction + gl.convert_layout(total, row_sum.type.layout)


@gluon.jit
def exp2_by_polynomial(x):
    """2^x for x from -125 to 126, by additions and multiplications; for a smaller x, 2^-125.

    x is the sum of the nearest integer n and a rest from -1/2 to 1/2. 2^rest is a polynomial of degree 3, and adding n
    to the exponent of a float32 multiplies it by 2^n. Adding 1.5 * 2^23 to x leaves n in the last bits of the sum.
    """
    INTEGERS: gl.constexpr = 12582912.0  # 1.5 * 2^23: floats of this size are a distance of 1 from each other
    x = gl.maximum(x, -125.0)  # what is smaller has no exponent to add to
    shifted = x + INTEGERS
    rest = x - (shifted - INTEGERS)
    # The least that a polynomial of degree 3 can differ from 2^rest there, relative to it, is 7.5e-5.
    power = ((0.05517167 * rest + 0.24261112) * rest + 0.69326099) * rest + 0.99992807
    exponent = shifted.to(gl.int32, bitcast=True) << 23
    return (power.to(gl.int32, bitcast=True) + exponent).to(gl.float32, bitcast=True)


@gluon.jit
def a_quarter_by_polynomial(x):
    """2^x [query, key]: of every 16 columns the last 4 by a polynomial."""
    key = gl.arange(0, x.shape[1], gl.SliceLayout(0, x.type.layout))
    # A register holds the same key in every thread: the compiler knows which of both it needs.
    return gl.where((key % 16 < 16 - 4)[None, :], exp2(x), exp2_by_polynomial(x))


# --- when the maximum moves, and the output with it ---


@dataclass(frozen=True)
class Rescaling(Pieces):
    """move(row_max, new_max): the maxima [query] that weights are relative to, from what they were and what is highest.

    rescale(output, factor, variant): multiply the rows of an output [query, head_dim] by a factor [query].
    """

    move: Callable
    rescale: Callable


@gluon.jit
def at_once(row_max, new_max):
    """The highest score so far."""
    return new_max


@gluon.jit
def beyond_threshold(row_max, new_max):
    """The old maximum, until the new one exceeds it by more than the threshold."""
    return gl.where(new_max - row_max > THRESHOLD, new_max, row_max)


@gluon.jit
def rescale_if_any(output, factor, variant: gl.constexpr):
    """Multiply the rows of an output by a factor [query], unless that is 1 for all of them."""
    if gl.min(factor, 0) < 1.0:  # for all rows or none: a branch is for whole warps
        rescale(output, factor, variant)


EVERY_TILE = Rescaling(at_once, rescale)
LAZY = Rescaling(beyond_threshold, rescale_if_any)
