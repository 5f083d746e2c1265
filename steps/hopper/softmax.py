"""What the Hopper kernels do with scores where products overlap: mask, maxima, weights, sums."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from steps.gluon.softmax import exp2, hide, sum_own


@gluon.jit
def by_row(x, variant: gl.constexpr):
    """One number a row, from the layout of the scores to that of the output."""
    return gl.convert_layout(x, gl.SliceLayout(1, variant.output))[:, None]


@gluon.jit
def cap(scores, scale, variant: gl.constexpr):
    """Scores under a soft cap, as parts of it; without one they stay as they are.

    tanh(x) = 1 - 2 / (1 + e^2x) takes two instructions of MUFU, as cuTile's does in step 109. MUFU has one of its own,
    tanh.approx in PTX, which was not tried.
    """
    if variant.softcap is not None:
        above = 1.0 + exp2(scores * (2.0 * scale / variant.softcap))  # the scale is in base 2, and so is this
        return 1.0 - 2.0 * reciprocal(above)
    else:
        return scores


@gluon.jit
def reciprocal(x):
    """1 / x: MUFU.RCP and nothing around it."""
    return gl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def factor(scale, variant: gl.constexpr):
    """What the softmax multiplies scores by, in base 2: the scale, or the soft cap that they are parts of."""
    if variant.softcap is not None:
        LOG2E: gl.constexpr = 1.4426950408889634
        return variant.softcap * LOG2E
    else:
        return scale


@gluon.jit
def hide_in_part(scores, j, whole, first_query, seq_len_kv, variant: gl.constexpr):
    """Scores of tile j with the mask where it needs one: a branch that whole tiles jump over.

    With weights alive beside the scores, a second loop would cost a copy of the weights every turn.
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
def highest(scores, variant: gl.constexpr):
    """The largest score of every row [query]: by one chain of comparisons a lane and row, or by four.

    In a chain every comparison waits for the one before. Of four, others can begin meanwhile, where ptxas puts them in
    turn.
    """
    if variant.four_chains:
        PAIRS: gl.constexpr = scores.shape[1] // 8  # of 8 columns a lane has 2
        parts = gl.reshape(scores, [scores.shape[0], 2, PAIRS // 2, 4, 2])
        ends = gl.max(parts, 2)  # of the chains: [query, half of the columns, lane, which of a pair]
        own = gl.max(gl.max(ends, 3), 1)  # [query, 4]: each lane's maximum of a row
        return gl.convert_layout(gl.max(own, 1), gl.SliceLayout(1, variant.accumulator))
    else:
        return gl.max(scores, 1)


@gluon.jit
def raise_maxima(scores, row_max, scale, variant: gl.constexpr):
    """The new maximum [query] in base 2."""
    return gl.maximum(row_max, highest(scores, variant) * scale)


@gluon.jit
def weigh(scores, row_max, scale):
    """Weights [query, key]: 2^(score - maximum)."""
    return exp2(scores * scale - row_max[:, None])


@gluon.jit
def add_up(row_sum, correction, weights, variant: gl.constexpr):
    """The sums so far and those of one more tile."""
    if variant.lean_sum:
        own = gl.convert_layout(correction, gl.SliceLayout(1, row_sum.type.layout))
        row_sum = row_sum * own[:, None] + sum_own(weights)
    else:
        row_sum = row_sum * correction + gl.sum(weights, 1)
    return row_sum


@gluon.jit
def own_tiles_to_visit(first_query, seq_len_kv, block_end, variant: gl.constexpr):
    """(whole, end) of the tiles of keys that the part with these queries sees, of those that its block visits."""
    whole = gl.minimum(first_query, seq_len_kv) // variant.tile.key
    end = gl.minimum(block_end, gl.cdiv(first_query + variant.rows, variant.tile.key))
    return whole, end
