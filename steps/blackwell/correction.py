"""The kernel with one more role than ``steps.blackwell.roles``: a warpgroup that rescales the outputs of the others."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from steps.blackwell.columns import columns_in_common, weights_over_scores
from steps.blackwell.roles import copy, finish, multiply
from steps.blackwell.sharing import Barriers, query_tile_of, rings, rooms, store_sums
from steps.blackwell.softmax import hide, next_maxima, weigh
from steps.gluon.softmax import LEAST, tiles_to_visit
from steps.hopper.lib import Arrays, Work, barrier_ring


@gluon.jit
def hand_over(factors, barriers, factor, iteration, warpgroup: gl.constexpr):
    """Give the warpgroup that rescales a factor [query], for tile ``iteration``."""
    mbarrier.wait(barriers.factors_empty.index(warpgroup), iteration & 1 ^ 1)
    factors.index(warpgroup).store(factor)
    mbarrier.arrive(barriers.factors_full.index(warpgroup), count=1)


@gluon.jit
def take_over(factors, barriers, iteration, warpgroup: gl.constexpr, layout: gl.constexpr):
    """Take the factor [query] of a warpgroup for tile ``iteration``."""
    mbarrier.wait(barriers.factors_full.index(warpgroup), iteration & 1)
    factor = factors.index(warpgroup).load(layout)
    mbarrier.arrive(barriers.factors_empty.index(warpgroup), count=1)
    return factor


@gluon.jit
def attend(arrays, tiles, columns, factors, barriers, work, scale, LSE, warpgroup: gl.constexpr, variant: gl.constexpr):
    """A warpgroup: the softmax of its queries, over all tiles of keys; it hands over factors for the output."""
    scores_at = columns.scores.index(warpgroup)
    ROW: gl.constexpr = gl.SliceLayout(1, scores_at.get_reg_layout())
    weights_at = weights_over_scores(columns, warpgroup, tiles.key.dtype, variant)
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
                if j > 0:
                    hand_over(factors, barriers, correction, iteration - 1, warpgroup)
                weights = weigh(scores, row_max, scale, variant)
                row_sum = row_sum * correction + gl.sum(weights, 1)
                weights = gl.convert_layout(weights.to(tiles.key.dtype), weights_at.get_reg_layout())
                weights_at.store(weights)
                mbarrier.arrive(barriers.weights_full.index(warpgroup), count=1)
                iteration += 1

        store_sums(LSE, row_max, row_sum, query_tile, head, work, arrays, warpgroup, variant)
        factor = 1.0 / row_sum
        hand_over(factors, barriers, factor, iteration - 1, warpgroup)
        n = variant.schedule.hear(n, last, query_iteration, work, variant)
        query_iteration += 1


@gluon.jit
def correct(arrays, tiles, columns, factors, barriers, work, variant: gl.constexpr):
    """A warpgroup: rescales the outputs of both softmax warpgroups, and stores them at the end."""
    ROW: gl.constexpr = gl.SliceLayout(1, columns.output.index(0).get_reg_layout())
    WARPGROUPS: gl.constexpr = variant.warpgroups
    iteration = 0
    query_iteration = 0
    n, last = variant.schedule.own(work, variant)
    while n < last:
        query_tile, head = query_tile_of(n, work, variant)
        _, end = tiles_to_visit(query_tile.row, query_tile.seq_len_kv, variant)
        for warpgroup in gl.static_range(WARPGROUPS):
            mbarrier.arrive(barriers.weights_full.index(warpgroup), count=1)  # there is no output yet that needs it
        for _ in range(1, end):
            for warpgroup in gl.static_range(WARPGROUPS):
                # These scores were begun when the PV product before had ended: nobody writes the output.
                factor = take_over(factors, barriers, iteration, warpgroup, ROW)
                variant.rescaling.rescale(columns.output.index(warpgroup), factor, variant)
                mbarrier.arrive(barriers.weights_full.index(warpgroup), count=1)
            iteration += 1
        for warpgroup in gl.static_range(WARPGROUPS):
            factor = take_over(factors, barriers, iteration, warpgroup, ROW)
            finish(arrays, tiles, columns, barriers, query_tile, head, factor, iteration, warpgroup, variant)
        iteration += 1
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
    factors = gl.allocate_shared_memory(gl.float32, [WARPGROUPS, variant.rows], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    key_empty, value_empty = barrier_ring(STAGES, 1), barrier_ring(STAGES, 1)
    weights_full = barrier_ring(WARPGROUPS, 2)  # who is ready: the softmax, and the warpgroup that rescales
    query_empty = variant.schedule.empty(variant)
    factors_full, factors_empty = barrier_ring(WARPGROUPS, 1), barrier_ring(WARPGROUPS, 1)
    barriers = Barriers(
        query_full, key_full, value_full, scores_full, output_full, key_empty, value_empty, weights_full,
        query_empty, factors_full, factors_empty,
    )  # fmt: skip
    variant.sharing.see()

    # --- who does what; the first warpgroup's warps are those that the block began with ---
    WORKERS: gl.constexpr = variant.workers
    BUDGETS: gl.constexpr = variant.budgets
    if variant.warpgroups == 2:
        gl.warp_specialize(
            [
                (attend, (arrays, tiles, columns, factors, barriers, work, scale, LSE, 0, variant)),
                (attend, (arrays, tiles, columns, factors, barriers, work, scale, LSE, 1, variant)),
                (correct, (arrays, tiles, columns, factors, barriers, work, variant)),
                (multiply, (tiles, columns, barriers, work, variant)),
                (copy, (arrays, tiles, barriers, work, variant)),
            ],
            WORKERS,
            BUDGETS,
        )
    else:
        gl.warp_specialize(
            [
                (attend, (arrays, tiles, columns, factors, barriers, work, scale, LSE, 0, variant)),
                (correct, (arrays, tiles, columns, factors, barriers, work, variant)),
                (multiply, (tiles, columns, barriers, work, variant)),
                (copy, (arrays, tiles, barriers, work, variant)),
            ],
            WORKERS,
            BUDGETS,
        )
