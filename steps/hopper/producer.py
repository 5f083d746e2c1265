"""Warpgroups that compute one product after the other, while a producer warp fetches (``steps.hopper.kernel``).

Each group takes ``ROWS`` queries of its block, and runs for itself: it waits for a tile to be ready, and says when it
is done with it.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma, warpgroup_mma_wait

from steps.gluon import names  # noqa: F401
from steps.gluon.softmax import LEAST, hide, softmax, tiles_to_visit, with_maxima
from steps.hopper.lib import (
    Place,
    await_tile,
    part_of,
    position,
    release,
)
from steps.hopper.products import issue_output, issue_scores, normalised, store_lse_of, store_whole
from steps.hopper.softmax import by_row


@gluon.jit
def attend(query, tiles, barriers, place, turn, scale, part: gl.constexpr, variant: gl.constexpr):
    """Attention of a part's queries to the keys that they see, a tile after the other.

    Returns (accumulator [query, head_dim], row_sum [query], turn).
    """
    TILE_KEY: gl.constexpr = variant.tile.key
    STAGES: gl.constexpr = variant.stages
    ROW: gl.constexpr = gl.SliceLayout(1, variant.accumulator)
    row_max = gl.full([variant.rows], LEAST, gl.float32, ROW)
    row_sum = gl.full([variant.rows], 0.0, gl.float32, ROW)
    accumulator = gl.full([variant.rows, variant.head_dim], 0.0, gl.float32, variant.output)
    first_query = place.row + part * variant.rows
    whole, end = tiles_to_visit(place.row, place.seq_len_kv, variant)
    # Two loops from one text: over whole tiles, and over those that need the mask.
    for masked in gl.static_range(2 if variant.causal or variant.ragged else 1):
        for j in range(whole if masked else 0, end if masked else whole):
            # --- scores: QK product ---
            await_tile(barriers.key_full, turn, STAGES)
            variant.turns.take(barriers, turn, part, variant)
            scores = issue_scores(query, tiles.key, turn, variant)
            scores = warpgroup_mma_wait(0, deps=[scores])
            variant.turns.give(barriers, part, variant)
            release(barriers.key_empty, turn, STAGES)
            if masked:
                scores = hide(scores, first_query, j * TILE_KEY, place.seq_len_kv, variant)

            # --- online softmax ---
            weights, correction, row_max = softmax(scores, row_max, scale)
            row_sum = row_sum * correction + gl.sum(weights, 1)
            accumulator = accumulator * by_row(correction, variant)
            weights = gl.convert_layout(weights.to(tiles.key.dtype), variant.weights)

            # --- output: PV product ---
            await_tile(barriers.value_full, turn, STAGES)
            accumulator = issue_output(weights, tiles.value, turn, accumulator, variant)
            accumulator = warpgroup_mma_wait(0, deps=[accumulator])
            release(barriers.value_empty, turn, STAGES)
            turn += 1
    return accumulator, with_maxima(row_sum, row_max, variant), turn


@gluon.jit
def consume(arrays, tiles, barriers, work, scale, LSE, part: gl.constexpr, variant: gl.constexpr):
    """Warps that compute: a part of every tile of queries that is this block's."""
    output = tiles.output.index(part)
    turn = 0  # tiles of keys so far
    query_turn = 0
    n, last = variant.schedule.own(work, variant)
    while n < last:
        head, batch, i = position(variant.schedule.number(work, n, variant), work)
        place = Place(i * variant.tile.query, head // variant.group_size, batch, work.seq_len_kv)
        query = part_of(tiles.query, query_turn, part, variant)
        await_tile(barriers.query_full, query_turn, variant.query_stages)
        accumulator, row_sum, turn = attend(query, tiles, barriers, place, turn, scale, part, variant)
        n = variant.schedule.hear(n, last, query_turn, work, variant)

        # --- normalise and store; TMA drops rows past the end ---
        if variant.lse:
            row_sum, row_max = row_sum
        o = normalised(accumulator, row_sum, tiles.query.dtype, variant)
        row = place.row + part * variant.rows
        if variant.lse:
            store_lse_of(LSE, row_max, row_sum, arrays, work, head, batch, row, variant)
        store_whole(o, arrays.output, output, batch, head, row, variant)
        variant.free.store(barriers, query_turn, variant)
        query_turn += 1
    tma.store_wait(0)
