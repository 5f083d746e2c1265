"""The iterations of the loop in ``steps.hopper.loop``: all tiles of keys but the first, with two products begun
together."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from steps.gluon import names  # noqa: F401
from steps.gluon.softmax import with_maxima
from steps.hopper.lib import await_tile, release
from steps.hopper.products import await_scores, issue_output, rescale
from steps.hopper.softmax import cap


@gluon.jit
def issue_both(
    query, weights, accumulator, tiles, barriers, iteration, query_iteration, warpgroup: gl.constexpr,
    variant: gl.constexpr,
):  # fmt: skip
    """Begin the QK product of tile ``iteration + 1`` of keys and the PV product of tile ``iteration`` of values."""
    STAGES: gl.constexpr = variant.stages
    await_tile(barriers.key_full, iteration + 1, STAGES)
    # A turn for all tiles but the first of every tile of queries.
    variant.turns.take(barriers, iteration - query_iteration, warpgroup, variant)
    scores = variant.queries.multiply(query, tiles.key, iteration + 1, variant)
    await_tile(barriers.value_full, iteration, STAGES)
    accumulator = issue_output(weights, tiles.value, iteration, accumulator, variant)
    variant.turns.give(barriers, warpgroup, variant)
    return scores, accumulator


@gluon.jit
def softmax_under_product(scores, row_max, row_sum, accumulator, barriers, iteration, scale, variant: gl.constexpr):
    """The softmax of a tile, and the output rescaled, once the PV product of tile ``iteration`` has ended.

    Returns (weights, maxima, sums, accumulator).
    """
    weights, row_max, row_sum, correction, accumulator = variant.softmax(
        scores, row_max, row_sum, accumulator, barriers, iteration, scale, variant
    )
    release(barriers.value_empty, iteration, variant.stages)
    accumulator = rescale(accumulator, correction, variant)
    return weights, row_max, row_sum, accumulator


@gluon.jit
def attend_to_rest(
    weights, row_max, row_sum, accumulator, query, tiles, barriers, query_tile, row, whole, end, iteration,
    query_iteration, scale, warpgroup: gl.constexpr, variant: gl.constexpr,
):  # fmt: skip
    """Attention of a warpgroup's queries to all tiles of keys but the first, with two products begun together.

    Every iteration issues the QK product of tile j and the PV product of tile j - 1, and waits for the first alone. The
    softmax of tile j comes before the wait for the second.

    weights, row_max, row_sum: of the first tile; the PV product with these weights is not begun.
    row, whole, end: of ``tiles_of_warpgroup``.

    Returns (accumulator [query, value_dim], sums, last iteration, its weights, whose PV product is not begun).
    """
    STAGES: gl.constexpr = variant.stages
    for j in range(1, end):
        # --- issue: scores of this tile, output of the tile before ---
        scores, accumulator = issue_both(
            query, weights, accumulator, tiles, barriers, iteration, query_iteration, warpgroup, variant
        )
        scores = await_scores(scores, variant)
        release(barriers.key_empty, iteration + 1, STAGES)
        variant.free.product(barriers, query_iteration, j == end - 1, variant)

        # --- online softmax, while the output is computed ---
        scores = cap(scores, scale, variant)
        scores = variant.walk.rest(scores, j, whole, end, row, query_tile.seq_len_kv, variant)
        weights, row_max, row_sum, accumulator = softmax_under_product(
            scores, row_max, row_sum, accumulator, barriers, iteration, scale, variant
        )
        weights = gl.convert_layout(weights.to(tiles.key.dtype), variant.weights)
        iteration += 1
    return accumulator, with_maxima(row_sum, row_max, variant), iteration, weights
