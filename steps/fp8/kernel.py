"""The kernel of the fp8 steps: a producer warp fetches, and warpgroups compute (``steps.hopper.kernel``).

The loop is that of FlashAttention-3 (Shah et al. 2024, https://arxiv.org/abs/2407.08608): the softmax of a tile of keys
runs under the PV product of the tile before. The tiles of keys are visited from the last to the first. Where one holds
whole tiles of queries, the first that is visited alone needs a mask, for the diagonal or for the end of the keys, and
the loop has none. Persistent blocks begin the first QK product for the next queries behind the last PV product for
these.
"""

from __future__ import annotations

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from steps.gluon import names  # noqa: F401
from steps.gluon.softmax import LEAST, exp2, hide, store_lse, tiles_to_visit
from steps.hopper.lib import Arrays, Tiles, await_tile, fetch, fetch_queries, query_of, release, rings
from steps.hopper.softmax import by_row, hide_where_needed, weigh


class Work(NamedTuple):
    """What is to be computed: lists of tiles (order, starts), sizes, and the scales [batch, kv_head] of Q, K and V."""

    order: object
    starts: object
    heads: object
    tiles_a_head: object
    seq_len_kv: object
    query_scale: object
    key_scale: object
    value_scale: object
    lines: object


@gluon.jit
def rooms(dtype: gl.constexpr, of_values: gl.constexpr, of_output: gl.constexpr, variant: gl.constexpr):
    """Slots in shared memory for tiles of queries, keys, values and the output."""
    return Tiles(
        gl.allocate_shared_memory(
            dtype, [variant.query_stages * variant.warpgroups, 1, 1, variant.rows, variant.head_dim], variant.shared
        ),
        gl.allocate_shared_memory(dtype, [variant.stages, 1, 1, variant.tile.key, variant.head_dim], variant.shared),
        gl.allocate_shared_memory(
            of_values, [variant.stages, 1, 1, variant.value_rows, variant.value_columns], variant.shared_value
        ),
        gl.allocate_shared_memory(
            of_output, [variant.warpgroups, 1, 1, variant.rows, variant.head_dim], variant.shared_output
        ),
    )


@gluon.jit
def place(work, n, variant: gl.constexpr):
    """Of the n-th tile of queries in the order: (head, batch, first query)."""
    number = variant.schedule.number(work, n, variant)
    head = number // work.tiles_a_head
    return head % work.heads, head // work.heads, number % work.tiles_a_head * variant.tile.query


@gluon.jit
def produce(arrays, tiles, barriers, work, variant: gl.constexpr):
    """The producer: fetches the tiles of this block, each as soon as its slot is empty."""
    iteration, query_iteration = 0, 0
    n, last = variant.schedule.own(work, variant)
    while n < last:
        head, batch, row = place(work, n, variant)
        _, end = tiles_to_visit(row, work.seq_len_kv, variant)
        empty = barriers.query_empty.index(query_iteration % variant.query_stages)
        mbarrier.wait(empty, query_iteration // variant.query_stages & 1 ^ 1)
        fetch_queries(arrays, tiles, barriers, head, batch, row, query_iteration, variant)
        kv_head = head // variant.group_size
        for j in range(end):
            key = (end - 1 - j) * variant.tile.key
            stage = iteration % variant.stages
            used = iteration // variant.stages & 1 ^ 1
            mbarrier.wait(barriers.key_empty.index(stage), used)
            fetch(arrays.key, tiles.key, barriers.key_full, kv_head, batch, key, stage, variant)
            mbarrier.wait(barriers.value_empty.index(stage), used)
            if iteration == 0:
                variant.values.ready()
            full = barriers.value_full.index(stage)
            mbarrier.expect(full, arrays.value.nbytes_per_cta)
            at = variant.values.place(batch, kv_head, key)
            tma.async_load(arrays.value, at, full, tiles.value.index(stage))
            iteration += 1
        n = variant.schedule.take(n, last, query_iteration, work, variant)
        query_iteration += 1


@gluon.jit
def issue_scores(tiles, query_iteration, iteration, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Begin the QK product [query, key] of these queries and tile ``iteration`` of the keys."""
    query = query_of(tiles.query, query_iteration, warpgroup, variant)
    key = tiles.key.index(iteration % variant.stages).reshape([variant.tile.key, variant.head_dim])
    none = gl.full([variant.rows, variant.tile.key], 0.0, gl.float32, variant.accumulator)
    return warpgroup_mma(query, key.permute((1, 0)), none, use_acc=False, is_async=True)


@gluon.jit
def raise_maxima(scores, row_max, scale, variant: gl.constexpr):
    """The new maximum [query] in base 2, less the offset: by so much the weights are larger."""
    return gl.maximum(row_max, variant.highest(scores, variant) * scale - variant.offset)


@gluon.jit
def issue_output(weights, tiles, barriers, iteration, total, variant: gl.constexpr):
    """Begin the PV product [query, head_dim] of tile ``iteration``. weights: as ``Values.keep`` keeps them."""
    weights = variant.values.left(weights, variant)
    await_tile(barriers.value_full, iteration, variant.stages)
    value = variant.values.right(tiles.value.index(iteration % variant.stages), variant)
    return variant.product_sums.issue(weights, value, total, variant)


@gluon.jit
def attend(
    first_scores, tiles, barriers, row, seq_len_kv, end, iteration, query_iteration, scale, warpgroup: gl.constexpr,
    variant: gl.constexpr,
):  # fmt: skip
    """Attention of a warpgroup's queries, from ``row`` on, to ``end`` tiles of keys.

    first_scores: of the first tile, begun. The PV product of the last tile is not begun.
    Returns (weights of the last tile, total, its correction [query, 1], sums, maxima, iteration).
    """
    STAGES: gl.constexpr = variant.stages
    if variant.masks_in_loop:
        whole, _ = tiles_to_visit(row, seq_len_kv, variant)
    # --- the first tile ---
    scores = warpgroup_mma_wait(0, deps=[first_scores])
    release(barriers.key_empty, iteration, STAGES)
    if variant.causal or variant.ragged:
        scores = hide(scores, row, (end - 1) * variant.tile.key, seq_len_kv, variant)
    row_max = gl.full([variant.rows], LEAST, gl.float32, gl.SliceLayout(1, variant.accumulator))
    row_max = raise_maxima(scores, row_max, scale, variant)
    weights = weigh(scores, row_max, scale)
    row_sum = variant.sums.first(weights)
    weights = variant.values.keep(weights, variant)
    total = gl.full([variant.rows, variant.head_dim], 0.0, gl.float32, variant.output)
    before = gl.full([variant.rows, 1], 1.0, gl.float32, variant.output)

    for j in range(1, end):
        # --- issue: scores of this tile, output of the tile before ---
        await_tile(barriers.key_full, iteration + 1, STAGES)
        # A turn for all tiles but the first of every tile of queries.
        variant.turns.take(barriers, iteration - query_iteration, warpgroup, variant)
        scores = issue_scores(tiles, query_iteration, iteration + 1, warpgroup, variant)
        product = issue_output(weights, tiles, barriers, iteration, total, variant)
        variant.turns.give(barriers, warpgroup, variant)
        scores = warpgroup_mma_wait(1, deps=[scores])
        release(barriers.key_empty, iteration + 1, STAGES)
        if variant.masks_in_loop:
            scores = hide_where_needed(scores, end - 1 - j, whole, end, row, seq_len_kv, variant)

        # --- online softmax, while the output is computed ---
        new_max = raise_maxima(scores, row_max, scale, variant)
        correction = exp2(row_max - new_max)
        variant.hold.wait(barriers, iteration, variant)
        product, row_max, correction = warpgroup_mma_wait(0, deps=[product, new_max, correction])
        release(barriers.value_empty, iteration, STAGES)
        rescaling = by_row(correction, variant)
        total = variant.product_sums.add(total, product, before, rescaling)
        before = rescaling
        weights = weigh(scores, row_max, scale)
        row_sum = variant.sums.add(row_sum, correction, weights)
        weights = variant.values.keep(weights, variant)
        iteration += 1
    return weights, total, before, row_sum, row_max, iteration


@gluon.jit
def consume(arrays, tiles, barriers, work, scale, LSE, warpgroup: gl.constexpr, variant: gl.constexpr):
    """A consumer warpgroup: its rows of every tile of queries that is this block's."""
    STAGES: gl.constexpr = variant.stages
    output = tiles.output.index(warpgroup)
    iteration, query_iteration = 0, 0  # tiles of keys, and of queries, so far
    n, last = variant.schedule.own(work, variant)
    await_tile(barriers.query_full, 0, variant.query_stages)
    await_tile(barriers.key_full, 0, STAGES)
    scores = issue_scores(tiles, 0, 0, warpgroup, variant)
    while n < last:
        head, batch, row = place(work, n, variant)
        line = batch * (work.heads // variant.group_size) + head // variant.group_size
        scale_of_head = scale * (gl.load(work.query_scale + line) * gl.load(work.key_scale + line))
        _, end = tiles_to_visit(row, work.seq_len_kv, variant)
        row += warpgroup * variant.rows
        weights, total, before, row_sum, row_max, iteration = attend(
            scores, tiles, barriers, row, work.seq_len_kv, end, iteration, query_iteration, scale_of_head, warpgroup,
            variant,
        )  # fmt: skip
        release(barriers.query_empty, query_iteration, variant.query_stages)
        n = variant.schedule.hear(n, last, query_iteration, work, variant)
        query_iteration += 1

        # --- issue: the first scores for the next queries, the last output for these ---
        if n < last:
            await_tile(barriers.query_full, query_iteration, variant.query_stages)
            await_tile(barriers.key_full, iteration + 1, STAGES)
        scores = issue_scores(tiles, query_iteration, iteration + 1, warpgroup, variant)
        product = issue_output(weights, tiles, barriers, iteration, total, variant)
        product = warpgroup_mma_wait(0, deps=[product])
        release(barriers.value_empty, iteration, STAGES)
        iteration += 1

        # --- normalise and store; TMA drops rows past the end ---
        row_sum = variant.sums.end(row_sum, variant)
        total = variant.product_sums.end(total, product, before)
        factor = by_row(gl.load(work.value_scale + line) / row_sum, variant)
        o = (total * factor).to(output.dtype)
        if variant.lse:
            store_lse(LSE, row_max, row_sum, batch.to(gl.int64) * work.heads + head, row, arrays.query.shape[2])
        tma.store_wait(0)
        output.reshape(o.shape).store(o)
        fence_async_shared()
        tma.async_store(arrays.output, [batch, head, row, 0], output)
    scores = warpgroup_mma_wait(0, deps=[scores])
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["seq_len_kv", "heads", "tiles_a_head"])
def fmha(
    Q,
    K,
    V,
    Out,
    query_scale,
    key_scale,
    value_scale,
    order,
    starts,
    scale,
    seq_len_kv,
    heads,
    tiles_a_head,
    variant: gl.constexpr,
    LSE=None,
):
    arrays = Arrays(Q, K, V, Out)
    tiles = rooms(Q.dtype, V.dtype, Out.dtype, variant)
    barriers = rings(variant)
    lines = Q.shape[0] * heads if variant.schedule.lines else None
    work = Work(order, starts, heads, tiles_a_head, seq_len_kv, query_scale, key_scale, value_scale, lines)
    fence_async_shared()
    variant.hold.begin()
    WORKERS: gl.constexpr = variant.workers
    BUDGETS: gl.constexpr = variant.budgets
    if variant.warpgroups == 2:
        gl.warp_specialize(
            [
                (consume, (arrays, tiles, barriers, work, scale, LSE, 0, variant)),
                (consume, (arrays, tiles, barriers, work, scale, LSE, 1, variant)),
                (produce, (arrays, tiles, barriers, work, variant)),
            ],
            WORKERS,
            BUDGETS,
        )
    else:
        gl.warp_specialize(
            [
                (consume, (arrays, tiles, barriers, work, scale, LSE, 0, variant)),
                (consume, (arrays, tiles, barriers, work, scale, LSE, 1, variant)),
                (consume, (arrays, tiles, barriers, work, scale, LSE, 2, variant)),
                (produce, (arrays, tiles, barriers, work, variant)),
            ],
            WORKERS,
            BUDGETS,
        )
