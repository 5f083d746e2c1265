"""The first maxima for the next tile of queries, ahead: while the tensor cores compute the last output for this one.

At the end of a tile of queries a group has two products left to begin: the last PV product for these queries, and the
first QK product for the next. Step linked begins the PV product first, and the QK product behind it. It waits for the
PV product, stores the output, and turns to the scores after that. Here the QK product is begun first, and the maxima of
its scores are taken under the PV product, as in the loop.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma_wait

from steps.gluon import names  # noqa: F401
from steps.gluon.softmax import store_lse, sum_own, tiles_to_visit
from steps.hopper.consumer import attend_overlapped, hold, issue_output, issue_scores, part_of, to_multiply
from steps.hopper.packed import corner
from steps.hopper.pipeline import Place, await_tile, behind, numbered, own_row, own_tiles, position, release
from steps.hopper.softmax import by_row, factor, hide_in_part, own_tiles_to_visit, raise_maxima, weigh


@gluon.jit
def place_of(n, last, work, variant: gl.constexpr):
    """(place, head, batch) of the n-th tile of queries in the order; behind the last of them, of the last."""
    head, batch, i = position(numbered(work, gl.minimum(n, last - 1), variant), work)
    return Place(i * variant.tile.query, head // variant.group_size, batch, work.seq_len_kv), head, batch


@gluon.jit
def first_maxima(scores, place, query_turn, scale, part: gl.constexpr, variant: gl.constexpr):
    """(scores behind the mask, maxima) of the first tile of keys."""
    first_query = own_row(place.row, query_turn, part, variant)
    whole, end = tiles_to_visit(place.row, place.seq_len_kv, variant)
    if variant.own_end:
        whole, _ = own_tiles_to_visit(first_query, place.seq_len_kv, end, variant)
    scores = hide_in_part(scores, 0, whole, first_query, place.seq_len_kv, variant)
    none = gl.full([variant.rows], float("-inf"), gl.float32, gl.SliceLayout(1, variant.accumulator))
    return scores, raise_maxima(scores, none, factor(scale, variant), variant)


@gluon.jit
def first_weights(scores, row_max, dtype: gl.constexpr, scale, variant: gl.constexpr):
    """(weights, maxima, sums) of the first tile of keys."""
    weights = weigh(scores, row_max, factor(scale, variant))
    row_sum = sum_own(weights) if variant.lean_sum else gl.sum(weights, 1)
    return gl.convert_layout(weights.to(dtype), variant.weights), row_max, row_sum


@gluon.jit
def send(arrays, tiles, place, head, batch, query_turn, part: gl.constexpr, variant: gl.constexpr):
    """Ask TMA to store a part's output, which the warps have written to its place in shared memory."""
    fence_async_shared()
    at = corner(batch, head, own_row(place.row, query_turn, part, variant), 0, variant)
    tma.async_store(arrays.output, at, tiles.output.index(part))


@gluon.jit
def consume_ahead(arrays, tiles, barriers, work, scale, LSE, part: gl.constexpr, variant: gl.constexpr):
    """As ``consume``: the first maxima for the next queries are taken under the last PV product for these.

    The output waits in shared memory. TMA is asked to store it at the end of the next tile of queries, under products.
    """
    STAGES: gl.constexpr = variant.stages
    QUERY_STAGES: gl.constexpr = variant.query_stages
    dtype: gl.constexpr = tiles.key.dtype
    output = tiles.output.index(part)
    turn = 0  # tiles of keys so far
    query_turn = 0
    n, last = own_tiles(work, variant)
    place, head, batch = place_of(n, last, work, variant)
    await_tile(barriers.query_ready, 0, QUERY_STAGES)
    await_tile(barriers.key_ready, 0, STAGES)
    scores = issue_scores(part_of(tiles.query, 0, part, variant), tiles.key, 0, variant)
    scores = warpgroup_mma_wait(0, deps=[scores])
    release(barriers.key_free, 0, STAGES)
    scores, row_max = first_maxima(scores, place, 0, scale, part, variant)
    first = first_weights(scores, row_max, dtype, scale, variant)
    # Computed anew, and not `= place, head, batch`: Triton takes variables that begin as one value for one variable.
    sent_place, sent_head, sent_batch = place_of(n, last, work, variant)
    while n < last:
        n = behind(n, variant)
        more = n < last
        next_place, next_head, next_batch = place_of(n, last, work, variant)
        query = to_multiply(part_of(tiles.query, query_turn, part, variant), variant)
        accumulator, row_sum, turn, weights = attend_overlapped(
            scores, first, query, tiles, barriers, place, turn, query_turn, scale, part, variant
        )

        # --- issue: first scores for the next queries, last output for these ---
        if more:
            await_tile(barriers.query_ready, query_turn + 1, QUERY_STAGES)
            await_tile(barriers.key_ready, turn + 1, STAGES)
        following = part_of(tiles.query, query_turn + 1, part, variant)
        scores = issue_scores(following, tiles.key, turn + 1, variant)
        await_tile(barriers.value_ready, turn, STAGES)
        accumulator = issue_output(weights, tiles.value, turn, accumulator, variant)

        # --- what needs neither ---
        release(barriers.query_free, query_turn, QUERY_STAGES)
        if query_turn > 0:
            send(arrays, tiles, sent_place, sent_head, sent_batch, query_turn - 1, part, variant)
        if variant.lse:
            row_sum, row_max = row_sum
        if variant.lean_sum:
            row_sum = gl.convert_layout(gl.sum(row_sum, 1), gl.SliceLayout(1, variant.accumulator))
        inverse = by_row(1.0 / row_sum, variant)
        if variant.lse:
            line = batch.to(gl.int64) * work.heads + head
            row = own_row(place.row, query_turn, part, variant)
            store_lse(LSE, row_max, row_sum, line, row, arrays.query.shape[2])

        # --- the next softmax; between its maxima and its exponentials the output is complete ---
        scores = warpgroup_mma_wait(1, deps=[scores])
        mbarrier.arrive(barriers.key_free.index((turn + 1) % STAGES), count=1, pred=more)
        scores, row_max = first_maxima(scores, next_place, query_turn + 1, scale, part, variant)
        hold(barriers, turn, variant)
        accumulator, row_max = warpgroup_mma_wait(0, deps=[accumulator, row_max])
        o = (accumulator * inverse).to(dtype)
        first = first_weights(scores, row_max, dtype, scale, variant)
        release(barriers.value_free, turn, STAGES)
        tma.store_wait(0)
        output.reshape(o.shape).store(o)
        sent_place, sent_head, sent_batch = place, head, batch
        place, head, batch = next_place, next_head, next_batch
        turn += 1
        query_turn += 1
    send(arrays, tiles, sent_place, sent_head, sent_batch, query_turn - 1, part, variant)
    tma.store_wait(0)
