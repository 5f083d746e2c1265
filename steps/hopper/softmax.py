"""Pieces of the Hopper kernels: what they do with scores where products overlap. No piece knows of a step.

Masks, maxima, weights, sums, and between them the wait for the PV product that the softmax runs under.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma_wait

from steps.core.fused import Pieces
from steps.gluon.softmax import LEAST, LOG2E, exp2, hide, sum_own

# Subtracted from 1, a hyperbolic tangent near 0 has an error of 2^-23 or so, whatever its size. The error of a score is
# that times the soft cap. Up to this cap it is less than the rounding of a weight to fp16; a larger one needs more.
MOST_LOST = gl.constexpr(1000.0)


@gluon.jit
def by_row(x, variant: gl.constexpr):
    """One number a row, from the layout of the scores to that of the output."""
    return gl.convert_layout(x, gl.SliceLayout(1, variant.output))[:, None]


@gluon.jit
def cap(scores, scale, variant: gl.constexpr):
    """Scores under a soft cap, as parts of it; without one they stay as they are.

    tanh(x) = 1 - 2 / (1 + e^2x) takes two instructions of MUFU, as cuTile's does in step soft_cap. MUFU has one of its
    own, tanh.approx in PTX, whose relative error of 2^-11 is that of a weight in fp16."""
    if variant.softcap is not None:
        above = 1.0 + exp2(scores * (2.0 * scale / variant.softcap))  # the scale is in base 2, and so is this
        parts = 1.0 - 2.0 * reciprocal(above)
        if variant.softcap > MOST_LOST:
            LN2: gl.constexpr = 0.6931471805599453
            parts = near_zero(scores * (scale * LN2 / variant.softcap), parts)
        return parts
    else:
        return scores


@gluon.jit
def near_zero(x, tanh):
    """tanh(x): of an x near 0 by its series to x^9, which keeps as many digits as x has; else what is given."""
    square = x * x
    series = 1.0 + square * (-1.0 / 3.0 + square * (2.0 / 15.0 + square * (-17.0 / 315.0 + square * (62.0 / 2835.0))))
    return gl.where(square < 0.0625, x * series, tanh)


@gluon.jit
def reciprocal(x):
    """1 / x: MUFU.RCP and nothing around it."""
    return gl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def factor(scale, variant: gl.constexpr):
    """What the softmax multiplies scores by, in base 2: the scale, or the soft cap that they are parts of."""
    if variant.softcap is not None:
        return variant.softcap * LOG2E
    else:
        return scale


@gluon.jit
def hide_where_needed(scores, j, whole, end, first_query, seq_len_kv, variant: gl.constexpr):
    """Scores of tile j with the mask where it needs one: a branch that whole tiles jump over.

    With weights alive beside the scores, a second loop would cost a copy of the weights every iteration.
    """
    if variant.causal or variant.ragged:  # noqa: SIM102 - a question for the compiler, and one for the GPU
        if j >= whole:
            scores = hide(scores, first_query, j * variant.tile.key, seq_len_kv, variant)
    if variant.window:  # noqa: SIM102
        if j * variant.tile.key < first_query + variant.rows - variant.window:
            scores = hide_before_window(scores, first_query, j * variant.tile.key, variant)
    return scores


@gluon.jit
def hide_before_window(scores, first_query, first_key, variant: gl.constexpr):
    """Scores [query, key] with minus infinity where a key stands before a query's sliding window."""
    query = first_query + gl.arange(0, scores.shape[0], gl.SliceLayout(1, variant.accumulator))
    key = first_key + gl.arange(0, scores.shape[1], gl.SliceLayout(0, variant.accumulator))
    return gl.where(key[None, :] > query[:, None] - variant.window, scores, float("-inf"))


@gluon.jit
def no_maxima(sink, variant: gl.constexpr):
    """Maxima [query] before the first tile of keys: the sink of the head, where it has one.

    A sink of minus infinity is none, and must not become a maximum.
    """
    ROW: gl.constexpr = gl.SliceLayout(1, variant.accumulator)
    if variant.sinks:
        return gl.full([variant.rows], gl.maximum(sink, LEAST), gl.float32, ROW)
    else:
        return gl.full([variant.rows], LEAST, gl.float32, ROW)


# --- maxima ---


@gluon.jit
def in_one_chain(scores, variant: gl.constexpr):
    """The largest score of every row [query]: a lane compares its scores of a row one after the other."""
    return gl.max(scores, 1)


@gluon.jit
def in_four_chains(scores, variant: gl.constexpr):
    """The largest score of every row [query]: by four chains of comparisons a lane and row.

    In a chain every comparison waits for the one before. Of four, others can begin meanwhile, where ptxas puts them in
    turn.
    """
    PAIRS: gl.constexpr = scores.shape[1] // 8  # of 8 columns a lane has 2
    chains = gl.reshape(scores, [scores.shape[0], 2, PAIRS // 2, 4, 2])
    ends = gl.max(chains, 2)  # of the chains: [query, half of the columns, lane, which of a pair]
    own = gl.max(gl.max(ends, 3), 1)  # [query, 4]: each lane's maximum of a row
    return gl.convert_layout(gl.max(own, 1), gl.SliceLayout(1, variant.accumulator))


@gluon.jit
def raise_maxima(scores, row_max, scale, variant: gl.constexpr):
    """The new maximum [query] in base 2."""
    return gl.maximum(row_max, variant.highest(scores, variant) * scale)


# --- weights, and their sums ---


@gluon.jit
def weigh(scores, row_max, scale):
    """Weights [query, key]: 2^(score - maximum)."""
    return exp2(scores * scale - row_max[:, None])


@dataclass(frozen=True)
class Sums(Pieces):
    """first(weights): the sums of the first tile. add(row_sum, correction, weights): and those of one more tile.

    end(row_sum, variant): the sums [query] of all tiles.
    """

    first: Callable
    add: Callable
    end: Callable


@gluon.jit
def sum_rows(weights):
    """Sums [query] of whole rows: the four lanes that share a row add theirs up."""
    return gl.sum(weights, 1)


@gluon.jit
def add_rows(row_sum, correction, weights):
    """The sums so far and those of one more tile."""
    return row_sum * correction + gl.sum(weights, 1)


@gluon.jit
def summed(row_sum, variant: gl.constexpr):
    """The sums of whole rows are there already."""
    return row_sum


@gluon.jit
def add_own(row_sum, correction, weights):
    """What each lane holds of the sums so far, and of one more tile."""
    own = gl.convert_layout(correction, gl.SliceLayout(1, row_sum.type.layout))
    return row_sum * own[:, None] + sum_own(weights)


@gluon.jit
def sum_lanes(row_sum, variant: gl.constexpr):
    """Sums [query] of whole rows, once all keys are done: the lanes that share a row add theirs up."""
    return gl.convert_layout(gl.sum(row_sum, 1), gl.SliceLayout(1, variant.accumulator))


@gluon.jit
def with_sink(row_sum, sink, row_max, variant: gl.constexpr):
    """The sums of the first tile, and the weight of the sink where there is one. The loop need not know of it.

    Where the four lanes that share a row add their sums up at the end, each takes a quarter of it.
    """
    if variant.sinks:
        weight = exp2(sink - row_max)
        if len(row_sum.shape) == 2:
            own = gl.convert_layout(weight, gl.SliceLayout(1, row_sum.type.layout))
            return row_sum + 0.25 * own[:, None]
        else:
            return row_sum + weight
    else:
        return row_sum


# --- the softmax under the PV product of the tile before; all take and return the same ---


@gluon.jit
def wait_last(scores, row_max, row_sum, accumulator, barriers, iteration, scale, variant: gl.constexpr):
    """The softmax of a tile; the wait for the PV product is written behind it.

    Returns (weights [query, key], row_max, row_sum, correction [query], accumulator).
    """
    new_max = raise_maxima(scores, row_max, factor(scale, variant), variant)
    correction = exp2(row_max - new_max)
    weights = weigh(scores, new_max, factor(scale, variant))
    row_sum = variant.sums.add(row_sum, correction, weights)
    # ptxas may move this wait: nothing holds it here.
    if variant.output_in_pieces:
        first, second = accumulator
        accumulator = warpgroup_mma_wait(0, deps=[first, second])
    else:
        accumulator = warpgroup_mma_wait(0, deps=[accumulator])
    return weights, new_max, row_sum, correction, accumulator


@gluon.jit
def wait_behind_maxima(scores, row_max, row_sum, accumulator, barriers, iteration, scale, variant: gl.constexpr):
    """The softmax of a tile; the wait for the PV product is held right behind the maxima. Returns as ``wait_last``."""
    new_max = raise_maxima(scores, row_max, factor(scale, variant), variant)
    variant.hold.wait(barriers, iteration, variant)
    if variant.output_in_pieces:
        first, second = accumulator
        first, second, row_max, new_max = warpgroup_mma_wait(0, deps=[first, second, row_max, new_max])
        accumulator = first, second
    else:
        accumulator, new_max = warpgroup_mma_wait(0, deps=[accumulator, new_max])
    correction = exp2(row_max - new_max)
    weights = weigh(scores, new_max, factor(scale, variant))
    row_sum = variant.sums.add(row_sum, correction, weights)
    return weights, new_max, row_sum, correction, accumulator


@gluon.jit
def wait_behind_correction(scores, row_max, row_sum, accumulator, barriers, iteration, scale, variant: gl.constexpr):
    """The softmax of a tile; the wait for the PV product is held behind the correction. Returns as ``wait_last``."""
    new_max = raise_maxima(scores, row_max, factor(scale, variant), variant)
    correction = exp2(row_max - new_max)
    variant.hold.wait(barriers, iteration, variant)
    if variant.output_in_pieces:
        first, second = accumulator
        first, second, new_max, correction = warpgroup_mma_wait(0, deps=[first, second, new_max, correction])
        accumulator = first, second
    else:
        accumulator, new_max, correction = warpgroup_mma_wait(0, deps=[accumulator, new_max, correction])
    weights = weigh(scores, new_max, factor(scale, variant))
    row_sum = variant.sums.add(row_sum, correction, weights)
    return weights, new_max, row_sum, correction, accumulator


@gluon.jit
def wait_behind_softmax(scores, row_max, row_sum, accumulator, barriers, iteration, scale, variant: gl.constexpr):
    """The softmax of a tile; the wait for the PV product is held behind all of it. Returns as ``wait_last``."""
    new_max = raise_maxima(scores, row_max, factor(scale, variant), variant)
    correction = exp2(row_max - new_max)
    weights = weigh(scores, new_max, factor(scale, variant))
    row_sum = variant.sums.add(row_sum, correction, weights)
    variant.hold.wait(barriers, iteration, variant)
    accumulator, weights = warpgroup_mma_wait(0, deps=[accumulator, weights])
    return weights, new_max, row_sum, correction, accumulator


# --- the order in which a warpgroup visits the tiles of keys ---


@dataclass(frozen=True)
class Walk(Pieces):
    """nth(j, end): which tile of keys is the j-th of ``end``. first(scores, ...), rest(...): scores behind the mask.

    Both take (scores, j, whole, end, first_query, seq_len_kv, variant).
    """

    nth: Callable
    first: Callable
    rest: Callable


@gluon.jit
def upwards(j, end):
    """From the first tile of keys to the last."""
    return j


@gluon.jit
def downwards(j, end):
    """From the last tile of keys to the first."""
    return end - 1 - j


@gluon.jit
def hide_diagonal(scores, j, whole, end, first_query, seq_len_kv, variant: gl.constexpr):
    """Scores of the tile on the diagonal, which alone needs the mask."""
    return hide(scores, first_query, (end - 1) * variant.tile.key, seq_len_kv, variant)


@gluon.jit
def hide_nothing(scores, j, whole, end, first_query, seq_len_kv, variant: gl.constexpr):
    """Scores of a tile that all queries see whole."""
    return scores


UPWARDS = Walk(upwards, hide_where_needed, hide_where_needed)
DOWNWARDS = Walk(downwards, hide_diagonal, hide_nothing)
SUM_EACH_TILE = Sums(sum_rows, add_rows, summed)
SUM_AT_END = Sums(sum_own, add_own, sum_lanes)
