"""The kernel whose warps all do the same: a warpgroup that asks for tiles, begins products, and waits for them."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from steps.blackwell.columns import beside, issue_output, issue_scores, rescale, to_panels, weights_of
from steps.blackwell.softmax import add_up, hide, next_maxima, weigh
from steps.blackwell.taking import numbered
from steps.gluon.softmax import LEAST, store_lse, tiles_to_visit
from steps.hopper.lib import QueryTile, await_tile, position


@gluon.jit
def query_tile_of(n, work, variant: gl.constexpr):
    """The n-th tile of queries in the order: (its ``QueryTile``, head)."""
    head, batch, i = position(numbered(work, n, variant), work)
    return QueryTile(i * variant.tile.query, head // variant.group_size, batch, work.seq_len_kv), head


@gluon.jit
def fetch_query(arrays, tiles, barriers, query_tile, head, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Ask TMA for a warpgroup's queries."""
    full = barriers.query_full.index(warpgroup)
    mbarrier.expect(full, arrays.query.nbytes_per_cta)
    at = [query_tile.batch, head, query_tile.row + warpgroup * variant.rows, 0]
    tma.async_load(arrays.query, at, full, tiles.query.index(warpgroup))


@gluon.jit
def fetch_tile(array, ring, full, query_tile, j, iteration, variant: gl.constexpr):
    """Ask TMA for the j-th tile of keys or values, into the slot of tile ``iteration``.

    In a cluster each CTA asks for its half, or, with ``multicast``, the first one asks for both.
    """
    stage = iteration % variant.stages
    mbarrier.expect(full.index(stage), array.nbytes_per_cta)
    at = [query_tile.batch, query_tile.kv_head, j * variant.tile.key, 0]
    if variant.multicast:
        tma.async_load(array, at, full.index(stage), ring.index(stage), multicast=True)
    else:
        tma.async_load(array, at, full.index(stage), ring.index(stage))


@gluon.jit
def cluster_ring(length: gl.constexpr, arrivals: gl.constexpr, joint: gl.constexpr):
    """A ring of mbarriers in a cluster of two CTAs; each completes after the given number of arrivals.

    joint: both CTAs have them together. TMA tells the first one what it brings to either, and only the first one waits.
    """
    if joint:
        barriers = gl.allocate_shared_memory(gl.int64, [length, 1], mbarrier.MBarrierLayout([[0]]))
    else:
        barriers = gl.allocate_shared_memory(gl.int64, [length, 2], mbarrier.MBarrierLayout([[1]]))
    for n in gl.static_range(length):
        mbarrier.init(barriers.index(n), count=arrivals)
    return barriers


@gluon.jit
def store_output(arrays, tiles, columns, query_tile, head, factor, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Multiply a warpgroup's output by a factor [query], and let TMA store it. It leaves from where its Q was."""
    AT_ONCE: gl.constexpr = variant.at_once
    HEAD_DIM: gl.constexpr = variant.head_dim
    output = columns.output.index(warpgroup)
    by = beside(output, factor, variant)
    if variant.ctas == 1:
        slot = tiles.output.index(warpgroup).reshape([variant.rows, HEAD_DIM])
        for column in gl.static_range(0, HEAD_DIM, AT_ONCE):
            some = output.slice(column, AT_ONCE).load() * by
            slot.slice(column, AT_ONCE, 1).store(some.to(slot.dtype))
        fence_async_shared()
        at = [query_tile.batch, head, query_tile.row + warpgroup * variant.rows, 0]
        tma.async_store(arrays.output, at, tiles.output.index(warpgroup))
    else:
        PANELS: gl.constexpr = [HEAD_DIM // AT_ONCE, 1, 1, variant.rows, AT_ONCE]
        panels = tiles.output.index(warpgroup).reinterpret(tiles.output.dtype, PANELS, variant.shared)
        to_panels(output, by, panels, variant)
        fence_async_shared()
        for n in gl.static_range(PANELS[0]):
            at = [query_tile.batch, head, query_tile.row + warpgroup * variant.rows, n * AT_ONCE]
            tma.async_store(arrays.output, at, panels.index(n))
    tma.store_wait(0)


@gluon.jit
def store_sums(LSE, row_max, row_sum, query_tile, head, work, arrays, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Store the log-sum-exp of a warpgroup's queries, where it is asked for."""
    if variant.lse:
        line = query_tile.batch.to(gl.int64) * work.heads + head
        store_lse(LSE, row_max, row_sum, line, query_tile.row + warpgroup * variant.rows, arrays.query.shape[2])


@gluon.jit
def work_together(arrays, tiles, columns, barriers, work, scale, LSE, variant: gl.constexpr):
    """A block's queries, a tile of keys after the other. A product is begun, and waited for at once."""
    STAGES: gl.constexpr = variant.stages
    query_tile, head = query_tile_of(gl.program_id(0), work, variant)
    whole, end = tiles_to_visit(query_tile.row, query_tile.seq_len_kv, variant)
    fetch_query(arrays, tiles, barriers, query_tile, head, 0, variant)
    for j in gl.static_range(STAGES):
        if j < end:
            fetch_tile(arrays.key, tiles.key, barriers.key_full, query_tile, j, j, variant)
            fetch_tile(arrays.value, tiles.value, barriers.value_full, query_tile, j, j, variant)
    scores_at = columns.scores.index(0)
    weights_at = weights_of(columns, 0, tiles.key.dtype, variant)
    output_at = columns.output.index(0)
    ROW: gl.constexpr = gl.SliceLayout(1, scores_at.get_reg_layout())
    row_max = gl.full([variant.rows], LEAST, gl.float32, ROW)
    row_sum = gl.full([variant.rows], 0.0, gl.float32, ROW)
    mbarrier.wait(barriers.query_full.index(0), 0)
    # Two loops from one text: over whole tiles, and over those that need the mask.
    for masked in gl.static_range(2 if variant.causal or variant.ragged else 1):
        for j in range(whole if masked else 0, end if masked else whole):
            # --- scores: QK product ---
            await_tile(barriers.key_full, j, STAGES)
            issue_scores(tiles, columns, barriers, 0, j, variant)
            mbarrier.wait(barriers.scores_full.index(0), j & 1)
            if j + STAGES < end:
                fetch_tile(arrays.key, tiles.key, barriers.key_full, query_tile, j + STAGES, j, variant)
            scores = scores_at.load()
            if masked:
                scores = hide(scores, query_tile.row, j * variant.tile.key, query_tile.seq_len_kv, variant)

            # --- online softmax ---
            row_max, correction = next_maxima(scores, row_max, scale, variant)
            weights = weigh(scores, row_max, scale, variant)
            row_sum = add_up(row_sum, correction, weights, variant)
            weights = gl.convert_layout(weights.to(tiles.key.dtype), weights_at.get_reg_layout())
            if j > 0:
                rescale(output_at, correction, variant)
            weights_at.store(weights)

            # --- output: PV product ---
            await_tile(barriers.value_full, j, STAGES)
            if variant.pair:
                # The weights of both CTAs are there, their outputs are rescaled, and their scores are read: a product
                # of both reads and writes in both.
                hopper.cluster.barrier()
            issue_output(weights_at, tiles, columns, barriers, 0, j, j > 0, variant)
            mbarrier.wait(barriers.output_full.index(0), j & 1)
            if j + STAGES < end:
                fetch_tile(arrays.value, tiles.value, barriers.value_full, query_tile, j + STAGES, j, variant)

    store_sums(LSE, row_max, row_sum, query_tile, head, work, arrays, 0, variant)
    store_output(arrays, tiles, columns, query_tile, head, 1.0 / row_sum, 0, variant)
