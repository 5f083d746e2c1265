"""Persistent blocks, and take the first maxima for the next tile of queries ahead: under the last product for this one.

At the end of a tile of queries a group has two products left to begin: the last PV product for these queries, and the
first QK product for the next. In ``steps.hopper.epilogue_overlap`` it begins the PV product first, and the QK product
behind it. It waits for the PV product, stores the output, and turns to the scores after that. Here the QK product is
begun first, and the maxima of its scores are taken under the PV product, as in the loop.

It runs from 2,048 queries on (step next_softmax_first). ``tests/hopper/test_ahead.py`` has so many; most
tests have not.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma_wait

from steps.gluon import names  # noqa: F401
from steps.hopper.lib import (
    await_tile,
    own_row,
    query_of,
    query_tile_of,
    release,
    sink_of,
)
from steps.hopper.loop import attend_to_rest, first_weights, tiles_of_warpgroup
from steps.hopper.packed import corner
from steps.hopper.products import issue_output, issue_scores, no_output, store_lse_of
from steps.hopper.softmax import by_row, factor, no_maxima, raise_maxima


@gluon.jit
def query_tile_until(n, last, work, variant: gl.constexpr):
    """(query_tile, head, batch) of the n-th tile of queries in the order; behind the last of them, of the last."""
    n = gl.minimum(n, last - 1)
    return query_tile_of(n, None, work, variant)


@gluon.jit
def first_maxima(scores, query_tile, sink, query_iteration, scale, warpgroup: gl.constexpr, variant: gl.constexpr):
    """(scores behind the mask, maxima) of the first tile of keys."""
    row, whole, end, _ = tiles_of_warpgroup(query_tile, query_iteration, warpgroup, variant)
    scores = variant.walk.first(scores, 0, whole, end, row, query_tile.seq_len_kv, variant)
    return scores, raise_maxima(scores, no_maxima(sink, variant), factor(scale, variant), variant)


@gluon.jit
def send(arrays, tiles, query_tile, head, batch, query_iteration, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Ask TMA to store a warpgroup's output, which the warps have written to its buffer in shared memory."""
    fence_async_shared()
    at = corner(batch, head, own_row(query_tile.row, query_iteration, warpgroup, variant), 0, variant)
    tma.async_store(arrays.output, at, tiles.output.index(warpgroup))


@gluon.jit
def consume(arrays, tiles, barriers, work, scale, LSE, warpgroup: gl.constexpr, variant: gl.constexpr):
    """A consumer warpgroup: its rows of every tile of queries that is this block's.

    The output waits in shared memory. TMA is asked to store it at the end of the next tile of queries, under products.
    """
    STAGES: gl.constexpr = variant.stages
    QUERY_STAGES: gl.constexpr = variant.query_stages
    dtype: gl.constexpr = tiles.key.dtype
    output = tiles.output.index(warpgroup)
    iteration = 0  # tiles of keys so far
    query_iteration = 0
    n, last = variant.schedule.own(work, variant)
    query_tile, head, batch = query_tile_until(n, last, work, variant)
    sink = sink_of(head, work, variant)
    await_tile(barriers.query_full, 0, QUERY_STAGES)
    await_tile(barriers.key_full, 0, STAGES)
    first_scores = issue_scores(query_of(tiles.query, 0, warpgroup, variant), tiles.key, 0, variant)
    first_scores = warpgroup_mma_wait(0, deps=[first_scores])
    release(barriers.key_empty, 0, STAGES)
    first_scores, first_max = first_maxima(first_scores, query_tile, sink, 0, scale, warpgroup, variant)
    weights, row_sum = first_weights(first_scores, first_max, sink, dtype, scale, variant)
    # Computed anew, not `= query_tile, head, batch`: Triton takes variables that begin as one value for one.
    sent_tile, sent_head, sent_batch = query_tile_until(n, last, work, variant)
    while n < last:
        n = variant.schedule.hear(n, last, query_iteration, work, variant)
        more = n < last
        next_tile, next_head, next_batch = query_tile_until(n, last, work, variant)
        query = variant.queries.take(query_of(tiles.query, query_iteration, warpgroup, variant), variant)
        row, whole, end, _ = tiles_of_warpgroup(query_tile, query_iteration, warpgroup, variant)
        accumulator = no_output(variant)
        accumulator, row_sum, iteration, weights = attend_to_rest(
            weights, first_max, row_sum, accumulator, query, tiles, barriers, query_tile, row, whole, end, iteration,
            query_iteration, scale, warpgroup, variant,
        )  # fmt: skip

        # --- issue: first scores for the next queries, last output for these ---
        if more:
            await_tile(barriers.query_full, query_iteration + 1, QUERY_STAGES)
            await_tile(barriers.key_full, iteration + 1, STAGES)
        following = query_of(tiles.query, query_iteration + 1, warpgroup, variant)
        first_scores = issue_scores(following, tiles.key, iteration + 1, variant)
        await_tile(barriers.value_full, iteration, STAGES)
        accumulator = issue_output(weights, tiles.value, iteration, accumulator, variant)

        # --- what needs neither ---
        next_sink = sink_of(next_head, work, variant)
        variant.free.softmax(barriers, query_iteration, variant)
        if query_iteration > 0:
            send(arrays, tiles, sent_tile, sent_head, sent_batch, query_iteration - 1, warpgroup, variant)
        if variant.lse:
            row_sum, row_max = row_sum
        row_sum = variant.sums.end(row_sum, variant)
        inverse = by_row(1.0 / row_sum, variant)
        if variant.lse:
            row = own_row(query_tile.row, query_iteration, warpgroup, variant)
            store_lse_of(LSE, row_max, row_sum, arrays, work, head, batch, row, variant)

        # --- the next softmax; between its maxima and its exponentials the output is complete ---
        first_scores = warpgroup_mma_wait(1, deps=[first_scores])
        mbarrier.arrive(barriers.key_empty.index((iteration + 1) % STAGES), count=1, pred=more)
        first_scores, first_max = first_maxima(
            first_scores, next_tile, next_sink, query_iteration + 1, scale, warpgroup, variant
        )
        variant.hold.wait(barriers, iteration, variant)
        accumulator, first_max = warpgroup_mma_wait(0, deps=[accumulator, first_max])
        o = (accumulator * inverse).to(dtype)
        weights, row_sum = first_weights(first_scores, first_max, next_sink, dtype, scale, variant)
        release(barriers.value_empty, iteration, STAGES)
        tma.store_wait(0)
        output.reshape(o.shape).store(o)
        sent_tile, sent_head, sent_batch = query_tile, head, batch
        query_tile, head, batch = next_tile, next_head, next_batch
        iteration += 1
        query_iteration += 1
    send(arrays, tiles, sent_tile, sent_head, sent_batch, query_iteration - 1, warpgroup, variant)
    tma.store_wait(0)
