"""The kernel whose warps have roles: who does the softmax, who begins products, who asks for tiles.

Roles hand tensor memory to each other by mbarriers. The order of work is FlashAttention-4's
(https://github.com/Dao-AILab/flash-attention), but for one wait: see ``multiply``.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import blackwell
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from steps.blackwell.columns import columns_in_common, issue_output, issue_scores, weights_over_scores
from steps.blackwell.sharing import Barriers, fetch_query, fetch_tile, query_tile_of, rings, rooms, store_sums
from steps.blackwell.softmax import hide, next_maxima, weigh
from steps.gluon.softmax import LEAST, tiles_to_visit
from steps.hopper.lib import Arrays, Work, await_tile, barrier_ring


@gluon.jit
def copy(arrays, tiles, barriers, work, variant: gl.constexpr):
    """A warp: asks TMA for all tiles, each as soon as its slot is empty."""
    WARPGROUPS: gl.constexpr = variant.warpgroups
    STAGES: gl.constexpr = variant.stages
    iteration = 0  # tiles of keys so far: tells the slot in the ring, and how often it was filled
    query_iteration = 0  # tiles of queries so far
    n, last = variant.schedule.own(work, variant)
    while n < last:
        query_tile, head = query_tile_of(n, work, variant)
        _, end = tiles_to_visit(query_tile.row, query_tile.seq_len_kv, variant)
        for warpgroup in gl.static_range(WARPGROUPS):
            variant.schedule.await_empty(barriers, query_iteration, warpgroup)
            fetch_query(arrays, tiles, barriers, query_tile, head, warpgroup, variant)
        for j in range(end):
            used = iteration // STAGES & 1 ^ 1
            mbarrier.wait(barriers.key_empty.index(iteration % STAGES), used)
            fetch_tile(arrays.key, tiles.key, barriers.key_full, query_tile, j, iteration, variant)
            mbarrier.wait(barriers.value_empty.index(iteration % STAGES), used)
            fetch_tile(arrays.value, tiles.value, barriers.value_full, query_tile, j, iteration, variant)
            iteration += 1
        n = variant.schedule.take(n, last, query_iteration, work, variant)
        query_iteration += 1


@gluon.jit
def multiply(tiles, columns, barriers, work, variant: gl.constexpr):
    """A warp: begins all products, those of one warpgroup while the other does its softmax.

    The next scores come where the weights are that a PV product reads. The PTX ISA promises no order between products
    with different accumulators, so that one is waited for before the QK product begins.
    """
    WARPGROUPS: gl.constexpr = variant.warpgroups
    STAGES: gl.constexpr = variant.stages
    iteration = 0
    query_iteration = 0
    n, last = variant.schedule.own(work, variant)
    while n < last:
        query_tile, _ = query_tile_of(n, work, variant)
        _, end = tiles_to_visit(query_tile.row, query_tile.seq_len_kv, variant)
        await_tile(barriers.key_full, iteration, STAGES)
        for warpgroup in gl.static_range(WARPGROUPS):
            mbarrier.wait(barriers.query_full.index(warpgroup), query_iteration & 1)
            issue_scores(tiles, columns, barriers, warpgroup, iteration, variant)
        blackwell.tcgen05_commit(barriers.key_empty.index(iteration % STAGES))
        for j in range(end):
            await_tile(barriers.value_full, iteration, STAGES)
            if j + 1 < end:
                await_tile(barriers.key_full, iteration + 1, STAGES)
            for warpgroup in gl.static_range(WARPGROUPS):
                mbarrier.wait(barriers.weights_full.index(warpgroup), iteration & 1)
                weights = weights_over_scores(columns, warpgroup, tiles.key.dtype, variant)
                issue_output(weights, tiles, columns, barriers, warpgroup, iteration, j > 0, variant)
                if j + 1 < end:
                    mbarrier.wait(barriers.output_full.index(warpgroup), iteration & 1)
                    issue_scores(tiles, columns, barriers, warpgroup, iteration + 1, variant)
            blackwell.tcgen05_commit(barriers.value_empty.index(iteration % STAGES))
            if j + 1 < end:
                blackwell.tcgen05_commit(barriers.key_empty.index((iteration + 1) % STAGES))
            iteration += 1
        n = variant.schedule.hear(n, last, query_iteration, work, variant)
        query_iteration += 1


@gluon.jit
def finish(
    arrays,
    tiles,
    columns,
    barriers,
    query_tile,
    head,
    factor,
    iteration,
    warpgroup: gl.constexpr,
    variant: gl.constexpr,
):
    """Store a warpgroup's output times a factor [query], behind its last PV product, that of tile ``iteration``."""
    mbarrier.wait(barriers.output_full.index(warpgroup), iteration & 1)
    variant.sharing.store(arrays, tiles, columns, query_tile, head, factor, warpgroup, variant)
    variant.schedule.say_empty(barriers, warpgroup)  # the output left from where Q was


@gluon.jit
def attend(arrays, tiles, columns, barriers, work, scale, LSE, warpgroup: gl.constexpr, variant: gl.constexpr):
    """A warpgroup: the softmax of its queries, over all tiles of keys that the block visits."""
    scores_at = columns.scores.index(warpgroup)
    ROW: gl.constexpr = gl.SliceLayout(1, scores_at.get_reg_layout())
    weights_at = weights_over_scores(columns, warpgroup, tiles.key.dtype, variant)
    output_at = columns.output.index(warpgroup)
    iteration = 0
    query_iteration = 0
    n, last = variant.schedule.own(work, variant)
    while n < last:
        query_tile, head = query_tile_of(n, work, variant)
        whole, end = tiles_to_visit(query_tile.row, query_tile.seq_len_kv, variant)
        first_query = query_tile.row + warpgroup * variant.rows
        row_max = gl.full([variant.rows], LEAST, gl.float32, ROW)
        row_sum = gl.full([variant.rows], 0.0, gl.float32, ROW)
        # Two loops from one text: over whole tiles, and over those that need the mask.
        for masked in gl.static_range(2 if variant.causal or variant.ragged else 1):
            for j in range(whole if masked else 0, end if masked else whole):
                mbarrier.wait(barriers.scores_full.index(warpgroup), iteration & 1)
                scores = scores_at.load()
                if masked:
                    scores = hide(scores, first_query, j * variant.tile.key, query_tile.seq_len_kv, variant)
                row_max, correction = next_maxima(scores, row_max, scale, variant)
                weights = weigh(scores, row_max, scale, variant)
                row_sum = row_sum * correction + gl.sum(weights, 1)
                weights = gl.convert_layout(weights.to(tiles.key.dtype), weights_at.get_reg_layout())
                if j > 0:  # these scores were begun when the PV product before had ended: nobody writes the output
                    variant.rescaling.rescale(output_at, correction, variant)
                weights_at.store(weights)
                mbarrier.arrive(barriers.weights_full.index(warpgroup), count=1)
                iteration += 1

        store_sums(LSE, row_max, row_sum, query_tile, head, work, arrays, warpgroup, variant)
        factor = 1.0 / row_sum
        finish(arrays, tiles, columns, barriers, query_tile, head, factor, iteration - 1, warpgroup, variant)
        n = variant.schedule.hear(n, last, query_iteration, work, variant)
        query_iteration += 1


@gluon.jit(do_not_specialize=["seq_len_kv", "heads", "tiles_a_head"])
def fmha(Q, K, V, Out, order, starts, scale, seq_len_kv, heads, tiles_a_head, variant: gl.constexpr, LSE=None):
    WARPGROUPS: gl.constexpr = variant.warpgroups
    STAGES: gl.constexpr = variant.stages
    # --- shared memory; the output leaves from where Q was ---
    tiles = rooms(Q.dtype, variant)

    # --- tensor memory ---
    columns = columns_in_common(variant)

    arrays = Arrays(Q, K, V, Out)
    taken = variant.schedule.room(variant)
    work = Work(order, starts, heads, tiles_a_head, seq_len_kv, taken)
    query_full, key_full, value_full, scores_full, output_full = rings(variant)
    key_empty, value_empty = barrier_ring(STAGES, 1), barrier_ring(STAGES, 1)
    weights_full = barrier_ring(WARPGROUPS, 1)
    query_empty = variant.schedule.empty(variant)
    barriers = Barriers(
        query_full, key_full, value_full, scores_full, output_full, key_empty, value_empty, weights_full, query_empty
    )  # fmt: skip
    variant.sharing.see()

    # --- who does what; the first warpgroup's warps are those that the block began with ---
    WORKERS: gl.constexpr = variant.workers
    BUDGETS: gl.constexpr = variant.budgets
    if variant.warpgroups == 2:
        gl.warp_specialize(
            [
                (attend, (arrays, tiles, columns, barriers, work, scale, LSE, 0, variant)),
                (attend, (arrays, tiles, columns, barriers, work, scale, LSE, 1, variant)),
                (multiply, (tiles, columns, barriers, work, variant)),
                (copy, (arrays, tiles, barriers, work, variant)),
            ],
            WORKERS,
            BUDGETS,
        )
    else:
        gl.warp_specialize(
            [
                (attend, (arrays, tiles, columns, barriers, work, scale, LSE, 0, variant)),
                (multiply, (tiles, columns, barriers, work, variant)),
                (copy, (arrays, tiles, barriers, work, variant)),
            ],
            WORKERS,
            BUDGETS,
        )
