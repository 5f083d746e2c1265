"""What all Gluon kernels do with scores: which tiles to visit, the mask, the online softmax.

Functions take ``variant``, of which they need tile, causal, ragged and the layout accumulator; it is constant when a
kernel is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from steps.core.fused import Pieces

# The least float32: a row's maximum begins with it. A tile may have no score above minus infinity, because a window
# hides all its keys from a row or because they hold minus infinity, and minus infinity less itself would be NaN.
LEAST = gl.constexpr(-3.4028234663852886e38)
LOG2E = gl.constexpr(1.4426950408889634)


@gluon.jit
def tiles_to_visit(first_query, seq_len_kv, variant: gl.constexpr):
    """(whole, end): tiles of keys [0, whole) need no mask, tiles [whole, end) do."""
    TILE_KEY: gl.constexpr = variant.tile.key
    whole = seq_len_kv // TILE_KEY
    end = gl.cdiv(seq_len_kv, TILE_KEY)
    if variant.causal:
        whole = gl.minimum(whole, first_query // TILE_KEY)
        end = gl.minimum(end, gl.cdiv(first_query + variant.tile.query, TILE_KEY))
    return whole, end


@gluon.jit
def exp2(x):
    """2^x, with results below 2^-126 flushed to zero: MUFU.EX2 and nothing around it."""
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def hide(scores, first_query, first_key, seq_len_kv, variant: gl.constexpr):
    """Scores [query, key] with minus infinity where a query must not see a key, or the key is padding."""
    query = first_query + gl.arange(0, scores.shape[0], gl.SliceLayout(1, variant.accumulator))
    key = first_key + gl.arange(0, scores.shape[1], gl.SliceLayout(0, variant.accumulator))
    if variant.causal:
        scores = gl.where(key[None, :] <= query[:, None], scores, float("-inf"))
    if variant.ragged:
        scores = gl.where((key < seq_len_kv)[None, :], scores, float("-inf"))
    return scores


@gluon.jit
def softmax(scores, row_max, scale):
    """One step of the online softmax in base 2: weights [query, key], correction [query], new maximum [query]."""
    new_max = gl.maximum(row_max, gl.max(scores, 1) * scale)
    return exp2(scores * scale - new_max[:, None]), exp2(row_max - new_max), new_max


# --- the sums of rows ---


@dataclass(frozen=True)
class Sums(Pieces):
    """begin(variant): sums of nothing. add(row_sum, correction, weights): and those of one more tile of keys.

    end(row_sum, variant): the sums [query] of all tiles.
    """

    begin: Callable
    add: Callable
    end: Callable


@gluon.jit
def no_rows(variant: gl.constexpr):
    """Sums [query] of nothing."""
    return gl.full([variant.tile.query], 0.0, gl.float32, gl.SliceLayout(1, variant.accumulator))


@gluon.jit
def add_rows(row_sum, correction, weights):
    """The sums so far and those of one more tile: the four lanes that share a row add theirs up."""
    return row_sum * correction + gl.sum(weights, 1)


@gluon.jit
def summed(row_sum, variant: gl.constexpr):
    """The sums [query]: they are there already."""
    return row_sum


@gluon.jit
def sum_own(weights):
    """Sums [query, 4] of what each of the four lanes that share a row holds of it; no lane asks another."""
    eights = gl.reshape(weights, [weights.shape[0], weights.shape[1] // 8, 4, 2])  # of 8 columns a lane has 2
    return gl.sum(gl.sum(eights, 3), 1)


@gluon.jit
def no_lanes(variant: gl.constexpr):
    """Sums [query, 4] of nothing."""
    return sum_own(gl.full([variant.tile.query, variant.tile.key], 0.0, gl.float32, variant.accumulator))


@gluon.jit
def add_own(row_sum, correction, weights):
    """The sums of each lane so far, and those of what it holds of one more tile."""
    own = gl.convert_layout(correction, gl.SliceLayout(1, row_sum.type.layout))
    return row_sum * own[:, None] + sum_own(weights)


@gluon.jit
def sum_lanes(row_sum, variant: gl.constexpr):
    """The sums [query] of the four lanes that share a row."""
    return gl.convert_layout(gl.sum(row_sum, 1), gl.SliceLayout(1, variant.accumulator))


SUM_EACH_TILE = Sums(no_rows, add_rows, summed)
SUM_AT_END = Sums(no_lanes, add_own, sum_lanes)


@gluon.jit
def with_maxima(row_sum, row_max, variant: gl.constexpr):
    """The rows' sums, and where the log-sum-exp is asked for, too, their maxima."""
    if variant.lse:
        return row_sum, row_max
    else:
        return row_sum


@gluon.jit
def store_lse(LSE, row_max, row_sum, line, first_row, seq_len_q):
    """Write the natural log-sum-exp of rows [query] from maxima and sums in base 2; rows past the end are dropped.

    line: which of all heads of the batch.
    """
    LN2: gl.constexpr = 0.6931471805599453
    row = first_row + gl.arange(0, row_sum.shape[0], row_sum.type.layout)
    lse = (row_max + gl.log2(row_sum)) * LN2
    gl.store(LSE + (line * seq_len_q + row), lse, mask=row < seq_len_q)
