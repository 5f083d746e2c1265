"""A kernel for Hopper without roles: all warps fetch, multiply and compute, one thing after the other.

A Hopper SM has two engines that the skeleton of ``steps/gluon`` cannot use. TMA copies a whole tile when one thread
asks it to, and reports to an mbarrier in shared memory. ``wgmma`` lets four warps together multiply 64 rows by a tile
that stays in shared memory, and returns at once: the result is waited for later. No architecture but sm_90 has wgmma.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma_wait

from steps.gluon import names  # noqa: F401
from steps.gluon.softmax import LEAST, hide, softmax, tiles_to_visit, with_maxima
from steps.hopper.lib import (
    Arrays,
    Barriers,
    QueryTile,
    Work,
    await_tile,
    barrier_ring,
    fetch,
    fetch_queries,
    position,
    query_of,
    rooms,
)
from steps.hopper.products import issue_output, issue_scores, normalised, store_lse_of, store_whole
from steps.hopper.softmax import by_row


@gluon.jit
def fetch_both(arrays, tiles, barriers, query_tile, j, stage, variant: gl.constexpr):
    """Ask for the j-th tile of keys and of values."""
    row = j * variant.tile.key
    fetch(arrays.key, tiles.key, barriers.key_full, query_tile.kv_head, query_tile.batch, row, stage, variant)
    fetch(arrays.value, tiles.value, barriers.value_full, query_tile.kv_head, query_tile.batch, row, stage, variant)


@gluon.jit
def attend(query, arrays, tiles, barriers, query_tile, iteration, scale, variant: gl.constexpr):
    """Attention of a block's queries to the keys that they see, a tile after the other.

    Returns (accumulator [query, value_dim], row_sum [query], iteration).
    """
    TILE_KEY: gl.constexpr = variant.tile.key
    STAGES: gl.constexpr = variant.stages
    ROW: gl.constexpr = gl.SliceLayout(1, variant.accumulator)
    row_max = gl.full([variant.rows], LEAST, gl.float32, ROW)
    row_sum = gl.full([variant.rows], 0.0, gl.float32, ROW)
    accumulator = gl.full([variant.rows, variant.value_dim], 0.0, gl.float32, variant.output)
    whole, end = tiles_to_visit(query_tile.row, query_tile.seq_len_kv, variant)
    # Two loops from one text: over whole tiles, and over those that need the mask.
    for masked in gl.static_range(2 if variant.causal or variant.ragged else 1):
        for j in range(whole if masked else 0, end if masked else whole):
            # --- scores: QK product ---
            await_tile(barriers.key_full, iteration, STAGES)
            scores = issue_scores(query, tiles.key, iteration, variant)
            scores = warpgroup_mma_wait(0, deps=[scores])
            if masked:
                scores = hide(scores, query_tile.row, j * TILE_KEY, query_tile.seq_len_kv, variant)

            # --- online softmax ---
            weights, correction, row_max = softmax(scores, row_max, scale)
            row_sum = row_sum * correction + gl.sum(weights, 1)
            accumulator = accumulator * by_row(correction, variant)
            weights = gl.convert_layout(weights.to(tiles.key.dtype), variant.weights)

            # --- output: PV product ---
            await_tile(barriers.value_full, iteration, STAGES)
            accumulator = issue_output(weights, tiles.value, iteration, accumulator, variant)
            accumulator = warpgroup_mma_wait(0, deps=[accumulator])
            gl.barrier()  # all warps have read this tile: fetch a later one into its slot
            if j + STAGES < end:
                fetch_both(arrays, tiles, barriers, query_tile, j + STAGES, iteration % STAGES, variant)
            iteration += 1
    return accumulator, with_maxima(row_sum, row_max, variant), iteration


@gluon.jit(do_not_specialize=["seq_len_kv", "heads", "tiles_a_head"])
def fmha(Q, K, V, Out, order, starts, scale, seq_len_kv, heads, tiles_a_head, variant: gl.constexpr, LSE=None):
    STAGES: gl.constexpr = variant.stages
    arrays = Arrays(Q, K, V, Out)
    tiles = rooms(Q.dtype, variant)
    query_full, key_full, value_full = barrier_ring(1, 1), barrier_ring(STAGES, 1), barrier_ring(STAGES, 1)
    barriers = Barriers(query_full, None, key_full, None, value_full, None, None, None, None)
    fence_async_shared()  # TMA sees the barriers
    work = Work(order, starts, heads, tiles_a_head, seq_len_kv)

    # --- the first copies are under way before anything is computed ---
    head, batch, i = position(gl.program_id(0), work)
    query_tile = QueryTile(i * variant.tile.query, head // variant.group_size, batch, seq_len_kv)
    _, tiles_seen = tiles_to_visit(query_tile.row, seq_len_kv, variant)
    fetch_queries(arrays, tiles, barriers, head, batch, query_tile.row, 0, variant)
    for stage in gl.static_range(STAGES):
        if stage < tiles_seen:
            fetch_both(arrays, tiles, barriers, query_tile, stage, stage, variant)

    # A loop of one iteration, as where blocks stay: without it ptxas keeps more in registers under a mask.
    n = gl.program_id(0)
    last = n + 1
    iteration = 0  # tiles of keys so far: tells the slot in the ring, and how often it was filled
    while n < last:
        head, batch, i = position(n, work)
        query_tile = QueryTile(i * variant.tile.query, head // variant.group_size, batch, seq_len_kv)
        await_tile(barriers.query_full, 0, 1)
        query = query_of(tiles.query, 0, 0, variant)
        accumulator, row_sum, iteration = attend(query, arrays, tiles, barriers, query_tile, iteration, scale, variant)

        # --- normalise and store; TMA drops rows past the end ---
        if variant.lse:
            row_sum, row_max = row_sum
        o = normalised(accumulator, row_sum, Q.dtype, variant)
        if variant.lse:
            store_lse_of(LSE, row_max, row_sum, arrays, work, head, batch, query_tile.row, variant)
        store_whole(o, Out, tiles.output.index(0), batch, head, query_tile.row, variant)
        tma.store_wait(0)
        n += 1
    tma.store_wait(0)
