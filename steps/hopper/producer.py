"""Warpgroups that compute one product after the other, while a producer warp fetches (``steps.hopper.kernel``).

Each group takes ``ROWS`` queries of its block, and runs for itself: it waits until a slot is full, and releases it when
it has read it.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma, warpgroup_mma_wait

from steps.gluon import names  # noqa: F401
from steps.gluon.softmax import LEAST, hide, softmax, tiles_to_visit, with_maxima
from steps.hopper.lib import (
    QueryTile,
    await_tile,
    position,
    query_of,
    release,
)
from steps.hopper.products import issue_output, issue_scores, normalised, store_lse_of, store_whole
from steps.hopper.softmax import by_row


@gluon.jit
def attend(query, tiles, barriers, query_tile, iteration, scale, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Attention of a warpgroup's queries to the keys that they see, a tile after the other.

    Returns (accumulator [query, value_dim], row_sum [query], iteration).
    """
    TILE_KEY: gl.constexpr = variant.tile.key
    STAGES: gl.constexpr = variant.stages
    ROW: gl.constexpr = gl.SliceLayout(1, variant.accumulator)
    row_max = gl.full([variant.rows], LEAST, gl.float32, ROW)
    row_sum = gl.full([variant.rows], 0.0, gl.float32, ROW)
    accumulator = gl.full([variant.rows, variant.value_dim], 0.0, gl.float32, variant.output)
    first_query = query_tile.row + warpgroup * variant.rows
    whole, end = tiles_to_visit(query_tile.row, query_tile.seq_len_kv, variant)
    # Two loops from one text: over whole tiles, and over those that need the mask.
    for masked in gl.static_range(2 if variant.causal or variant.ragged else 1):
        for j in range(whole if masked else 0, end if masked else whole):
            # --- scores: QK product ---
            await_tile(barriers.key_full, iteration, STAGES)
            variant.turns.take(barriers, iteration, warpgroup, variant)
            scores = issue_scores(query, tiles.key, iteration, variant)
            scores = warpgroup_mma_wait(0, deps=[scores])
            variant.turns.give(barriers, warpgroup, variant)
            release(barriers.key_empty, iteration, STAGES)
            if masked:
                scores = hide(scores, first_query, j * TILE_KEY, query_tile.seq_len_kv, variant)

            # --- online softmax ---
            weights, correction, row_max = softmax(scores, row_max, scale)
            row_sum = row_sum * correction + gl.sum(weights, 1)
            accumulator = accumulator * by_row(correction, variant)
            weights = gl.convert_layout(weights.to(tiles.key.dtype), variant.weights)

            # --- output: PV product ---
            await_tile(barriers.value_full, iteration, STAGES)
            accumulator = issue_output(weights, tiles.value, iteration, accumulator, variant)
            accumulator = warpgroup_mma_wait(0, deps=[accumulator])
            release(barriers.value_empty, iteration, STAGES)
            iteration += 1
    return accumulator, with_maxima(row_sum, row_max, variant), iteration


@gluon.jit
def consume(arrays, tiles, barriers, work, scale, LSE, warpgroup: gl.constexpr, variant: gl.constexpr):
    """A consumer warpgroup: its rows of every tile of queries that is this block's."""
    output = tiles.output.index(warpgroup)
    iteration = 0  # tiles of keys so far
    query_iteration = 0
    n, last = variant.schedule.own(work, variant)
    while n < last:
        head, batch, i = position(variant.schedule.number(work, n, variant), work)
        query_tile = QueryTile(i * variant.tile.query, head // variant.group_size, batch, work.seq_len_kv)
        query = query_of(tiles.query, query_iteration, warpgroup, variant)
        await_tile(barriers.query_full, query_iteration, variant.query_stages)
        accumulator, row_sum, iteration = attend(
            query, tiles, barriers, query_tile, iteration, scale, warpgroup, variant
        )
        n = variant.schedule.hear(n, last, query_iteration, work, variant)

        # --- normalise and store; TMA drops rows past the end ---
        if variant.lse:
            row_sum, row_max = row_sum
        o = normalised(accumulator, row_sum, tiles.query.dtype, variant)
        row = query_tile.row + warpgroup * variant.rows
        if variant.lse:
            store_lse_of(LSE, row_max, row_sum, arrays, work, head, batch, row, variant)
        store_whole(o, arrays.output, output, batch, head, row, variant)
        variant.free.store(barriers, query_iteration, variant)
        query_iteration += 1
    tma.store_wait(0)
