"""The kernel whose warps have roles: who does the softmax, who rescales, who begins products, who asks for tiles.

Roles hand tensor memory to each other by mbarriers. The order of work is FlashAttention-4's
(https://github.com/Dao-AILab/flash-attention), but for one wait: see ``multiply``.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import blackwell
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from steps.blackwell.columns import issue_output, issue_scores, rescale, weights_of
from steps.blackwell.softmax import hide, next_maxima, weigh
from steps.blackwell.taking import hear_next, own_tiles, take_next
from steps.blackwell.together import fetch_query, fetch_tile, query_tile_of, store_output, store_sums
from steps.gluon.softmax import LEAST, tiles_to_visit
from steps.hopper.lib import await_tile


@gluon.jit
def copy(arrays, tiles, barriers, work, variant: gl.constexpr):
    """A warp: asks TMA for all tiles, each as soon as its slot is empty."""
    WARPGROUPS: gl.constexpr = variant.warpgroups
    STAGES: gl.constexpr = variant.stages
    iteration = 0  # tiles of keys so far: tells the slot in the ring, and how often it was filled
    query_iteration = 0  # tiles of queries so far
    n, last = own_tiles(work, variant)
    while n < last:
        query_tile, head = query_tile_of(n, work, variant)
        _, end = tiles_to_visit(query_tile.row, query_tile.seq_len_kv, variant)
        for warpgroup in gl.static_range(WARPGROUPS):
            if variant.persistent:
                mbarrier.wait(barriers.query_empty.index(warpgroup), query_iteration & 1 ^ 1)
            fetch_query(arrays, tiles, barriers, query_tile, head, warpgroup, variant)
        for j in range(end):
            used = iteration // STAGES & 1 ^ 1
            mbarrier.wait(barriers.key_empty.index(iteration % STAGES), used)
            fetch_tile(arrays.key, tiles.key, barriers.key_full, query_tile, j, iteration, variant)
            mbarrier.wait(barriers.value_empty.index(iteration % STAGES), used)
            fetch_tile(arrays.value, tiles.value, barriers.value_full, query_tile, j, iteration, variant)
            iteration += 1
        n = take_next(n, last, query_iteration, work, variant)
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
    n, last = own_tiles(work, variant)
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
                weights = weights_of(columns, warpgroup, tiles.key.dtype, variant)
                issue_output(weights, tiles, columns, barriers, warpgroup, iteration, j > 0, variant)
                if j + 1 < end:
                    mbarrier.wait(barriers.output_full.index(warpgroup), iteration & 1)
                    issue_scores(tiles, columns, barriers, warpgroup, iteration + 1, variant)
            blackwell.tcgen05_commit(barriers.value_empty.index(iteration % STAGES))
            if j + 1 < end:
                blackwell.tcgen05_commit(barriers.key_empty.index((iteration + 1) % STAGES))
            iteration += 1
        n = hear_next(n, last, query_iteration, work, variant)
        query_iteration += 1


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
    store_output(arrays, tiles, columns, query_tile, head, factor, warpgroup, variant)
    if variant.persistent:
        mbarrier.arrive(barriers.query_empty.index(warpgroup), count=1)  # the output left from where Q was


@gluon.jit
def attend(arrays, tiles, columns, factors, barriers, work, scale, LSE, warpgroup: gl.constexpr, variant: gl.constexpr):
    """A warpgroup: the softmax of its queries, over all tiles of keys that the block visits."""
    scores_at = columns.scores.index(warpgroup)
    ROW: gl.constexpr = gl.SliceLayout(1, scores_at.get_reg_layout())
    weights_at = weights_of(columns, warpgroup, tiles.key.dtype, variant)
    output_at = columns.output.index(warpgroup)
    iteration = 0
    query_iteration = 0
    n, last = own_tiles(work, variant)
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
                if variant.correction:  # noqa: SIM102 - a question for the compiler, and one for the GPU
                    if j > 0:
                        hand_over(factors, barriers, correction, iteration - 1, warpgroup)
                weights = weigh(scores, row_max, scale, variant)
                row_sum = row_sum * correction + gl.sum(weights, 1)
                weights = gl.convert_layout(weights.to(tiles.key.dtype), weights_at.get_reg_layout())
                if not variant.correction:  # noqa: SIM102
                    if j > 0:  # these scores were begun when the PV product before had ended: nobody writes the output
                        rescale(output_at, correction, variant)
                weights_at.store(weights)
                mbarrier.arrive(barriers.weights_full.index(warpgroup), count=1)
                iteration += 1

        store_sums(LSE, row_max, row_sum, query_tile, head, work, arrays, warpgroup, variant)
        factor = 1.0 / row_sum
        if variant.correction:
            hand_over(factors, barriers, factor, iteration - 1, warpgroup)
        else:
            finish(arrays, tiles, columns, barriers, query_tile, head, factor, iteration - 1, warpgroup, variant)
        n = hear_next(n, last, query_iteration, work, variant)
        query_iteration += 1


@gluon.jit
def correct(arrays, tiles, columns, factors, barriers, work, variant: gl.constexpr):
    """A warpgroup: rescales the outputs of both softmax warpgroups, and stores them at the end."""
    ROW: gl.constexpr = gl.SliceLayout(1, columns.output.index(0).get_reg_layout())
    WARPGROUPS: gl.constexpr = variant.warpgroups
    iteration = 0
    query_iteration = 0
    n, last = own_tiles(work, variant)
    while n < last:
        query_tile, head = query_tile_of(n, work, variant)
        _, end = tiles_to_visit(query_tile.row, query_tile.seq_len_kv, variant)
        for warpgroup in gl.static_range(WARPGROUPS):
            mbarrier.arrive(barriers.weights_full.index(warpgroup), count=1)  # there is no output yet that needs it
        for _ in range(1, end):
            for warpgroup in gl.static_range(WARPGROUPS):
                # These scores were begun when the PV product before had ended: nobody writes the output.
                factor = take_over(factors, barriers, iteration, warpgroup, ROW)
                if variant.threshold > 0:
                    if gl.min(factor, 0) < 1.0:  # for all rows or none: a branch is for whole warps
                        rescale(columns.output.index(warpgroup), factor, variant)
                else:
                    rescale(columns.output.index(warpgroup), factor, variant)
                mbarrier.arrive(barriers.weights_full.index(warpgroup), count=1)
            iteration += 1
        for warpgroup in gl.static_range(WARPGROUPS):
            factor = take_over(factors, barriers, iteration, warpgroup, ROW)
            finish(arrays, tiles, columns, barriers, query_tile, head, factor, iteration, warpgroup, variant)
        iteration += 1
        n = hear_next(n, last, query_iteration, work, variant)
        query_iteration += 1
