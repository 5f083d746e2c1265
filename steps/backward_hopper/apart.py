"""Two warp groups that compute each for itself: 64 keys, and half of dQ, for which they exchange dS.

A part computes dQ of a turn in its next turn. It then needs what the other part has computed a turn ago, and the two
may be up to a turn apart: while one takes exponentials, the other's products keep the tensor cores busy.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from steps.backward_hopper.adding import add_to_keys, add_to_query, let_tma_add
from steps.backward_hopper.consumer import (
    issue_d_query,
    issue_d_weights,
    issue_side,
    keys_of,
    number_of,
    rows_of,
    store_both,
    weigh,
)
from steps.backward_hopper.in_turn import pass_on
from steps.backward_hopper.last import scale_if_last
from steps.backward_hopper.pipeline import await_tile, pass_turn, position, take_turn
from steps.backward_hopper.spare import tell_added


@gluon.jit
def issue_part_of_d_query(tiles, turn, part: gl.constexpr, variant: gl.constexpr):
    """Begin this part's share of a turn's dQ: its queries, or its columns."""
    d_scores = tiles.d_scores.index(turn & 1)
    keys = keys_of(tiles.key, variant)
    if variant.rows_apart:
        d_scores = d_scores.slice(part * variant.query_rows, variant.query_rows, 1)
    else:
        keys = keys.slice(part * variant.query_columns, variant.query_columns, 1)
    return issue_d_query(d_scores, keys, variant)


@gluon.jit
def issue_from_registers(kept, keys, query, variant: gl.constexpr):
    """Begin scores [key, query]: columns of K that are kept from registers, the others from shared memory."""
    KEPT: gl.constexpr = variant.kept
    REST: gl.constexpr = variant.head_dim - KEPT
    none = gl.full([variant.keys, variant.tile.query], 0.0, gl.float32, variant.scores)
    scores = warpgroup_mma(kept, query.slice(0, KEPT, 1).permute((1, 0)), none, use_acc=False, is_async=True)
    if REST > 0:
        others = query.slice(KEPT, REST, 1).permute((1, 0))
        scores = warpgroup_mma(keys.slice(KEPT, REST, 1), others, scores, is_async=True)
    return scores


@gluon.jit
def tell_stored(barriers, turn):
    """Tell both parts that this one has stored its dS of a turn. wgmma reads it, which takes a fence."""
    fence_async_shared()
    mbarrier.arrive(barriers.d_scores_ready.index(turn & 1), count=1)


@gluon.jit
def consume_apart(
    arrays, tiles, barriers, work, scale, padded, Turns, part: gl.constexpr, variant: gl.constexpr
):  # fmt: skip
    """A part: dK and dV of its keys, and its share of what the block adds to dQ."""
    dtype: gl.constexpr = tiles.key.dtype
    KEYS: gl.constexpr = variant.keys
    keys = keys_of(tiles.key, variant).slice(part * KEYS, KEYS, 0)
    values = keys_of(tiles.value, variant).slice(part * KEYS, KEYS, 0)
    first_key = work.key_row + part * KEYS
    d_key = gl.full([KEYS, variant.head_dim], 0.0, gl.float32, variant.sums)
    d_value = gl.full([KEYS, variant.head_dim], 0.0, gl.float32, variant.sums)
    turns = variant.group_size * work.a_head
    mbarrier.wait(barriers.keys_ready.index(0), 0)
    if variant.kept > 0:
        kept = keys.slice(0, variant.kept, 1).load(variant.key_factor)
    for turn in range(turns):
        _, i = position(work, turn, variant)
        query, d_output = rows_of(tiles.query, turn, variant), rows_of(tiles.d_output, turn, variant)

        # --- the weights again, and dV ---
        await_tile(barriers.query_ready, turn, variant.stages)
        if variant.kept > 0:
            scores = issue_from_registers(kept, keys, query, variant)
        else:
            scores = issue_side(keys, query, variant)
        await_tile(barriers.d_output_ready, turn, variant.stages)
        d_weights = issue_d_weights(values, d_output, tiles.row_sum, turn, variant)
        if variant.added_later:  # noqa: SIM102
            if turn > 1:  # what was stored at the end of the turn before
                let_tma_add(arrays, tiles, turn - 2, work, part, variant)
        scores = warpgroup_mma_wait(1, deps=[scores])
        take_turn(barriers, turn, part, variant)
        weights = weigh(scores, number_of(tiles.lse, turn, variant), first_key, i, scale, work, variant)
        rounded = weights.to(dtype)
        factor = gl.convert_layout(rounded, variant.factor)
        d_value = warpgroup_mma(factor, d_output, d_value, is_async=True)

        # --- dS ---
        d_weights = warpgroup_mma_wait(1, deps=[d_weights])
        if variant.weights_rounded:
            weights = rounded.to(gl.float32)
        if not variant.from_row_sums:
            d_weights -= number_of(tiles.row_sum, turn, variant)
        d_scores = (weights * d_weights).to(dtype)
        if variant.freed_together:  # both parts said so in the turn before
            told = (turn + variant.stages - 1) // variant.stages & 1 ^ 1
            mbarrier.wait(barriers.d_output_free.index((turn + 1) % variant.stages), told)
        else:
            mbarrier.wait(barriers.d_scores_free.index(turn & 1), turn + 1 >> 1 & 1 ^ 1)
        tiles.d_scores.index(turn & 1).slice(part * KEYS, KEYS, 0).store(d_scores)
        if not variant.fence_behind:
            tell_stored(barriers, turn)
        pass_turn(barriers, part, variant)

        # --- dQ of the turn before, and dK; under dK's product dQ is added ---
        mbarrier.wait(barriers.d_scores_ready.index(turn + 1 & 1), turn - 1 >> 1 & 1)
        d_query = issue_part_of_d_query(tiles, turn + 1, part, variant)
        d_key = warpgroup_mma(gl.convert_layout(d_scores, variant.factor), query, d_key, is_async=True)
        if variant.fence_behind:
            tell_stored(barriers, turn)
        d_value, d_query = warpgroup_mma_wait(1, deps=[d_value, d_query])
        mbarrier.arrive(barriers.d_output_free.index(turn % variant.stages), count=1)
        if not variant.freed_together:
            mbarrier.arrive(barriers.d_scores_free.index(turn + 1 & 1), count=1)
        if turn > 0:
            add_to_query(d_query, arrays, tiles, barriers, turn - 1, work, padded, Turns, part, variant)
        d_key = warpgroup_mma_wait(0, deps=[d_key])
        mbarrier.arrive(barriers.query_free.index(turn % variant.stages), count=1)

    # --- dQ of the last turn ---
    if turns > 0:
        if variant.added_later:  # noqa: SIM102
            if turns > 1:
                let_tma_add(arrays, tiles, turns - 2, work, part, variant)
        mbarrier.wait(barriers.d_scores_ready.index(turns + 1 & 1), turns - 1 >> 1 & 1)
        d_query = warpgroup_mma_wait(0, deps=[issue_part_of_d_query(tiles, turns + 1, part, variant)])
        add_to_query(d_query, arrays, tiles, barriers, turns - 1, work, padded, Turns, part, variant)
        if variant.added_later:
            let_tma_add(arrays, tiles, turns - 1, work, part, variant)
        if variant.in_turn and variant.adders == 0:
            pass_on(Turns, turns - 1, work, part, variant)

    if variant.sharing > 1:
        add_to_keys(d_key, arrays.d_key, work, part, variant)
        add_to_keys(d_value, arrays.d_value, work, part, variant)
    else:
        store_both(d_key, d_value, keys, values, arrays, tiles, barriers, work, scale, part, variant)
    if variant.spare:
        TWO_BEHIND: gl.constexpr = part == 0 and variant.sharing == 1
        tell_added(Turns, work, variant, TWO_BEHIND)
    tma.store_wait(0)
    if variant.last_scales:
        scale_if_last(Turns, work, scale, padded, part, variant)
