"""Two warpgroups that compute each for itself: 64 keys, and half of dQ, for which they exchange dS.

A warpgroup computes dQ of an iteration in the next one. It then needs what the other warpgroup has computed an
iteration ago, and the two may be up to an iteration apart: while one takes exponentials, the other's products keep the
tensor cores busy.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from steps.backward_hopper.adding import add_to_query
from steps.backward_hopper.lib import next_tile, of_tile, position
from steps.backward_hopper.products import issue_own_d_query, keys_of, number_of, rows_of, weigh
from steps.gluon import names  # noqa: F401
from steps.hopper.lib import await_tile


@gluon.jit
def consume_tiles(arrays, tiles, barriers, work, scale, padded, aside, warpgroup: gl.constexpr, variant: gl.constexpr):
    """A warpgroup, where a block has several tiles of keys: one after the other."""
    KEY_TILES: gl.constexpr = variant.key_tiles
    for n in range(KEY_TILES):
        own, its = of_tile(tiles, n, variant), next_tile(work, n, variant)
        consume(arrays, own, barriers, its, scale, padded, aside, warpgroup, variant)


@gluon.jit
def consume(arrays, tiles, barriers, work, scale, padded, aside, warpgroup: gl.constexpr, variant: gl.constexpr):
    """A warpgroup: dK and dV of its keys, and its share of what the block adds to dQ."""
    dtype: gl.constexpr = tiles.key.dtype
    KEYS: gl.constexpr = variant.keys
    keys = keys_of(tiles.key, variant).slice(warpgroup * KEYS, KEYS, 0)
    values = keys_of(tiles.value, variant).slice(warpgroup * KEYS, KEYS, 0)
    first_key = work.key_row + warpgroup * KEYS
    d_key = gl.full([KEYS, variant.head_dim], 0.0, gl.float32, variant.sums)
    d_value = gl.full([KEYS, variant.head_dim], 0.0, gl.float32, variant.sums)
    iterations = variant.group_size * work.a_head
    n = 0
    begin = 0  # iterations of the block's tiles of keys before
    if variant.key_tiles > 1:
        n = work.key_row // variant.tile.key
        begin = n * iterations
    end = begin + iterations
    mbarrier.wait(barriers.keys_full.index(n), 0)
    kept = variant.key_operand.take(keys, variant)
    for iteration in range(begin, end):
        _, i = position(work, iteration, variant)
        query, d_output = rows_of(tiles.query, iteration, variant), rows_of(tiles.d_output, iteration, variant)

        # --- the weights again, and dV ---
        await_tile(barriers.query_full, iteration, variant.stages)
        scores = variant.key_operand.scores(kept, keys, query, variant)
        await_tile(barriers.d_output_full, iteration, variant.stages)
        d_weights = variant.gradient.issue(values, d_output, tiles.row_sum, iteration, variant)
        variant.adding.later(arrays, tiles, iteration, work, warpgroup, variant)
        scores = warpgroup_mma_wait(1 if variant.pieces is None else 2, deps=[scores])
        variant.turns.take(barriers, iteration, warpgroup, variant)
        lse = number_of(tiles.lse, iteration, variant)
        plain, weights = weigh(scores, lse, first_key, i, scale, work, variant)
        rounded = plain.to(dtype)
        d_value = warpgroup_mma(gl.convert_layout(rounded, variant.factor), d_output, d_value, is_async=True)

        # --- dS ---
        d_weights = warpgroup_mma_wait(1, deps=[d_weights])
        weights = variant.key_operand.weights(weights, rounded)
        d_scores = variant.gradient.d_scores(weights, d_weights, tiles.row_sum, iteration, dtype, variant)
        other = iteration + 1  # its parity names the other of the two slots of dS: the iteration before wrote that
        variant.exchange.wait(barriers, iteration, variant)
        tiles.d_scores.index(iteration & 1).slice(warpgroup * KEYS, KEYS, 0).store(d_scores)
        variant.fence.first(barriers, iteration)
        variant.turns.give(barriers, warpgroup, variant)

        # --- dQ of the iteration before, added under dK's product; iteration 0's, of an unwritten slot, is dropped ---
        mbarrier.wait(barriers.d_scores_full.index(other & 1), iteration - 1 >> 1 & 1)
        d_query = issue_own_d_query(tiles, other, warpgroup, variant)
        d_key = warpgroup_mma(gl.convert_layout(d_scores, variant.factor), query, d_key, is_async=True)
        variant.fence.behind(barriers, iteration)
        d_value, d_query = warpgroup_mma_wait(1, deps=[d_value, d_query])
        variant.exchange.free(barriers, iteration, variant)
        if iteration > begin:
            add_to_query(
                d_query, arrays, tiles, barriers, iteration - 1, work, scale, padded, aside, warpgroup, variant
            )
        d_key = warpgroup_mma_wait(0, deps=[d_key])
        mbarrier.arrive(barriers.query_empty.index(iteration % variant.stages), count=1)

    # --- dQ of the last iteration ---
    if iterations > 0:
        variant.adding.later(arrays, tiles, end, work, warpgroup, variant)
        mbarrier.wait(barriers.d_scores_full.index(end + 1 & 1), end - 1 >> 1 & 1)
        d_query = warpgroup_mma_wait(0, deps=[issue_own_d_query(tiles, end + 1, warpgroup, variant)])
        add_to_query(d_query, arrays, tiles, barriers, end - 1, work, scale, padded, aside, warpgroup, variant)
        variant.adding.rest(arrays, tiles, end, work, warpgroup, variant)
        variant.sequence.end(aside, end - 1, work, warpgroup, variant)

    # --- dK and dV ---
    variant.leave(d_key, d_value, keys, values, arrays, tiles, barriers, work, scale, warpgroup, variant)
    LEFT: gl.constexpr = 2 if warpgroup == 0 and not variant.adds_keys else 0  # dK and dV
    variant.helpers.added(aside, work, LEFT, variant)
    tma.store_wait(0)
