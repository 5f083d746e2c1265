"""The loop of the Hopper kernels whose products overlap: the PV product of a tile runs under the softmax of the next.

How products run under the softmax is FlashAttention-3's (Shah et al. 2024, https://arxiv.org/abs/2407.08608).
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma_wait

from steps.gluon import names  # noqa: F401
from steps.gluon.softmax import tiles_to_visit, with_maxima
from steps.hopper.lib import await_tile, own_row, release
from steps.hopper.products import await_scores, issue_output, no_output, rescale
from steps.hopper.softmax import cap, factor, no_maxima, raise_maxima, weigh


@gluon.jit
def tiles_of_part(place, query_turn, part: gl.constexpr, variant: gl.constexpr):
    """(row, whole, end, block_end): a part's first query, its tiles of keys, and where those of its block end."""
    row = own_row(place.row, query_turn, part, variant)
    whole, block_end = tiles_to_visit(place.row, place.seq_len_kv, variant)
    whole, end = variant.ends.tiles(row, place.seq_len_kv, whole, block_end, variant)
    return row, whole, end, block_end


@gluon.jit
def first_weights(scores, row_max, dtype: gl.constexpr, scale, variant: gl.constexpr):
    """(weights, maxima, sums) of the first tile of keys."""
    weights = weigh(scores, row_max, factor(scale, variant))
    row_sum = variant.sums.first(weights)
    return gl.convert_layout(weights.to(dtype), variant.weights), row_max, row_sum


@gluon.jit
def issue_both(
    query, weights, accumulator, tiles, barriers, turn, query_turn, part: gl.constexpr, variant: gl.constexpr
):
    """Begin the QK product of tile ``turn + 1`` of keys and the PV product of tile ``turn`` of values."""
    STAGES: gl.constexpr = variant.stages
    await_tile(barriers.key_full, turn + 1, STAGES)
    # A turn for all tiles but the first of every tile of queries.
    variant.turns.take(barriers, turn - query_turn, part, variant)
    scores = variant.queries.multiply(query, tiles.key, turn + 1, variant)
    await_tile(barriers.value_full, turn, STAGES)
    accumulator = issue_output(weights, tiles.value, turn, accumulator, variant)
    variant.turns.give(barriers, part, variant)
    return scores, accumulator


@gluon.jit
def softmax_under_product(scores, row_max, row_sum, accumulator, barriers, turn, scale, variant: gl.constexpr):
    """The softmax of a tile, and the output rescaled, once the PV product of tile ``turn`` has ended.

    Returns (weights, maxima, sums, accumulator).
    """
    weights, row_max, row_sum, correction, accumulator = variant.softmax(
        scores, row_max, row_sum, accumulator, barriers, turn, scale, variant
    )
    release(barriers.value_empty, turn, variant.stages)
    accumulator = rescale(accumulator, correction, variant)
    return weights, row_max, row_sum, accumulator


@gluon.jit
def attend_to_rest(
    first, accumulator, query, tiles, barriers, place, row, whole, end, turn, query_turn, scale, part: gl.constexpr,
    variant: gl.constexpr,
):  # fmt: skip
    """Attention of a part's queries to all tiles of keys but the first, with two products begun together.

    Every turn issues the QK product of tile j and the PV product of tile j - 1, and waits for the first alone. The
    softmax of tile j comes before the wait for the second.

    first: (weights, maxima, sums) of the first tile; the PV product with these weights is not begun.
    row, whole, end: of ``tiles_of_part``.

    Returns (accumulator [query, head_dim], sums, turn of the last tile, its weights, whose PV product is not begun).
    """
    STAGES: gl.constexpr = variant.stages
    weights, row_max, row_sum = first
    for j in range(1, end):
        # --- issue: scores of this tile, output of the tile before ---
        scores, accumulator = issue_both(query, weights, accumulator, tiles, barriers, turn, query_turn, part, variant)
        scores = await_scores(scores, variant)
        release(barriers.key_empty, turn + 1, STAGES)
        variant.free.product(barriers, query_turn, j == end - 1, variant)

        # --- online softmax, while the output is computed ---
        scores = cap(scores, scale, variant)
        scores = variant.walk.rest(scores, j, whole, end, row, place.seq_len_kv, variant)
        weights, row_max, row_sum, accumulator = softmax_under_product(
            scores, row_max, row_sum, accumulator, barriers, turn, scale, variant
        )
        weights = gl.convert_layout(weights.to(tiles.key.dtype), variant.weights)
        turn += 1
    return accumulator, with_maxima(row_sum, row_max, variant), turn, weights


@gluon.jit
def attend_overlapped(
    scores, query, tiles, barriers, place, turn, query_turn, scale, part: gl.constexpr, variant: gl.constexpr
):
    """Attention of a part's queries to the keys that they see.

    scores: the QK product of the first tile, begun. The PV product of the last is begun and not waited for.

    Returns (accumulator [query, head_dim], sums, turn, and the turn of the tile whose PV product was begun).
    """
    STAGES: gl.constexpr = variant.stages
    row_max = no_maxima(variant)
    accumulator = no_output(variant)
    row, whole, end, block_end = tiles_of_part(place, query_turn, part, variant)

    # --- the first tile ---
    scores = warpgroup_mma_wait(0, deps=[scores])
    release(barriers.key_empty, turn, STAGES)
    variant.free.product(barriers, query_turn, end <= 1, variant)
    scores = cap(scores, scale, variant)
    scores = variant.walk.first(scores, 0, whole, end, row, place.seq_len_kv, variant)
    row_max = raise_maxima(scores, row_max, factor(scale, variant), variant)
    first = first_weights(scores, row_max, tiles.key.dtype, scale, variant)

    # --- all others, and the last tile's output ---
    accumulator, row_sum, turn, weights = attend_to_rest(
        first, accumulator, query, tiles, barriers, place, row, whole, end, turn, query_turn, scale, part, variant
    )
    last_turn = turn
    turn = variant.ends.pass_key(barriers, turn, query_turn, end, block_end, part, variant)
    await_tile(barriers.value_full, last_turn, STAGES)
    accumulator = issue_output(weights, tiles.value, last_turn, accumulator, variant)
    return accumulator, row_sum, turn, last_turn
