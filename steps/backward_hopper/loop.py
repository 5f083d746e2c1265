"""Two warpgroups that compute each for itself: 64 keys, and half of dQ, for which they exchange dS.

A part computes dQ of a turn in its next turn. It then needs what the other part has computed a turn ago, and the two
may be up to a turn apart: while one takes exponentials, the other's products keep the tensor cores busy.
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
from steps.backward_hopper.lib import position
from steps.backward_hopper.products import issue_part_of_d_query, keys_of, number_of, rows_of, weigh
from steps.gluon import names  # noqa: F401
from steps.hopper.lib import await_tile


@gluon.jit
def consume(arrays, tiles, barriers, work, scale, padded, aside, part: gl.constexpr, variant: gl.constexpr):
    """A part: dK and dV of its keys, and its share of what the block adds to dQ."""
    dtype: gl.constexpr = tiles.key.dtype
    KEYS: gl.constexpr = variant.keys
    keys = keys_of(tiles.key, variant).slice(part * KEYS, KEYS, 0)
    values = keys_of(tiles.value, variant).slice(part * KEYS, KEYS, 0)
    first_key = work.key_row + part * KEYS
    d_key = gl.full([KEYS, variant.head_dim], 0.0, gl.float32, variant.sums)
    d_value = gl.full([KEYS, variant.head_dim], 0.0, gl.float32, variant.sums)
    turns = variant.group_size * work.a_head
    mbarrier.wait(barriers.keys_full.index(0), 0)
    kept = variant.key_place.take(keys, variant)
    for turn in range(turns):
        _, i = position(work, turn, variant)
        query, d_output = rows_of(tiles.query, turn, variant), rows_of(tiles.d_output, turn, variant)

        # --- the weights again, and dV ---
        await_tile(barriers.query_full, turn, variant.stages)
        scores = variant.key_place.scores(kept, keys, query, variant)
        await_tile(barriers.d_output_full, turn, variant.stages)
        d_weights = variant.gradient.issue(values, d_output, tiles.row_sum, turn, variant)
        variant.adding.later(arrays, tiles, turn, work, part, variant)
        scores = warpgroup_mma_wait(1 if variant.pieces is None else 2, deps=[scores])
        variant.turns.take(barriers, turn, part, variant)
        weights = weigh(scores, number_of(tiles.lse, turn, variant), first_key, i, scale, work, variant)
        rounded = weights.to(dtype)
        factor = gl.convert_layout(rounded, variant.factor)
        d_value = warpgroup_mma(factor, d_output, d_value, is_async=True)

        # --- dS ---
        d_weights = warpgroup_mma_wait(1, deps=[d_weights])
        weights = variant.key_place.weights(weights, rounded)
        d_scores = variant.gradient.d_scores(weights, d_weights, tiles.row_sum, turn, dtype, variant)
        before = turn + 1  # of the two places of dS, that of the turn before
        variant.exchange.wait(barriers, turn, variant)
        tiles.d_scores.index(turn & 1).slice(part * KEYS, KEYS, 0).store(d_scores)
        variant.fence.first(barriers, turn)
        variant.turns.give(barriers, part, variant)

        # --- dQ of the turn before, and dK; under dK's product dQ is added ---
        mbarrier.wait(barriers.d_scores_full.index(before & 1), turn - 1 >> 1 & 1)
        d_query = issue_part_of_d_query(tiles, before, part, variant)
        d_key = warpgroup_mma(gl.convert_layout(d_scores, variant.factor), query, d_key, is_async=True)
        variant.fence.behind(barriers, turn)
        d_value, d_query = warpgroup_mma_wait(1, deps=[d_value, d_query])
        variant.exchange.free(barriers, turn, variant)
        if turn > 0:
            add_to_query(d_query, arrays, tiles, barriers, turn - 1, work, padded, aside, part, variant)
        d_key = warpgroup_mma_wait(0, deps=[d_key])
        mbarrier.arrive(barriers.query_empty.index(turn % variant.stages), count=1)

    # --- dQ of the last turn ---
    if turns > 0:
        variant.adding.later(arrays, tiles, turns, work, part, variant)
        mbarrier.wait(barriers.d_scores_full.index(turns + 1 & 1), turns - 1 >> 1 & 1)
        d_query = warpgroup_mma_wait(0, deps=[issue_part_of_d_query(tiles, turns + 1, part, variant)])
        add_to_query(d_query, arrays, tiles, barriers, turns - 1, work, padded, aside, part, variant)
        variant.adding.rest(arrays, tiles, turns, work, part, variant)
        variant.sequence.end(aside, turns - 1, work, part, variant)

    # --- dK and dV ---
    variant.leave(d_key, d_value, keys, values, arrays, tiles, barriers, work, scale, part, variant)
    TWO_BEHIND: gl.constexpr = part == 0 and variant.sharing == 1
    variant.helpers.added(aside, work, TWO_BEHIND, variant)
    tma.store_wait(0)
