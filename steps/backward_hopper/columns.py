"""Two warp groups at head_dim 256: each has half of the columns of dK, dV and dQ.

The sums for dK and dV of 64 keys would fill the registers of one warp group. So both compute the same scores and
weights' gradient, which are sums over all columns, and of the three other products each computes its half. Seven parts
of work are done in place of five, and the warp groups wait for each other only at the end.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from steps.backward_hopper.adding import add_to_query
from steps.backward_hopper.consumer import issue_d_query, issue_side, keys_of, number_of, rows_of, store_both, weigh
from steps.backward_hopper.in_turn import await_own_turn, pass_on
from steps.backward_hopper.pipeline import await_tile, position
from steps.gluon.kernel import barrier


@gluon.jit
def consume_columns(
    arrays, tiles, barriers, work, scale, padded, Turns, part: gl.constexpr, variant: gl.constexpr
):  # fmt: skip
    """A part: its columns of dK and dV, and of what the block adds to dQ."""
    dtype: gl.constexpr = tiles.key.dtype
    COLUMNS: gl.constexpr = variant.query_columns
    FIRST: gl.constexpr = part * COLUMNS
    keys, values = keys_of(tiles.key, variant), keys_of(tiles.value, variant)
    own_keys, own_values = keys.slice(FIRST, COLUMNS, 1), values.slice(FIRST, COLUMNS, 1)
    own_scores = tiles.d_scores.index(part)
    d_key = gl.full([variant.keys, COLUMNS], 0.0, gl.float32, variant.sums)
    d_value = gl.full([variant.keys, COLUMNS], 0.0, gl.float32, variant.sums)
    mbarrier.wait(barriers.keys_ready.index(0), 0)
    turns = variant.group_size * work.a_head
    for turn in range(turns):
        _, i = position(work, turn, variant)
        query, d_output = rows_of(tiles.query, turn, variant), rows_of(tiles.d_output, turn, variant)

        # --- the weights again, and dV ---
        await_tile(barriers.query_ready, turn, variant.stages)
        scores = issue_side(keys, query, variant)
        await_tile(barriers.d_output_ready, turn, variant.stages)
        d_weights = issue_side(values, d_output, variant)
        scores = warpgroup_mma_wait(1, deps=[scores])
        weights = weigh(scores, number_of(tiles.lse, turn, variant), work.key_row, i, scale, work, variant)
        factor = gl.convert_layout(weights.to(dtype), variant.factor)
        d_value = warpgroup_mma(factor, d_output.slice(FIRST, COLUMNS, 1), d_value, is_async=True)

        # --- dS, and what follows from it ---
        d_weights = warpgroup_mma_wait(1, deps=[d_weights])
        d_scores = (weights * (d_weights - number_of(tiles.row_sum, turn, variant))).to(dtype)
        own_scores.store(d_scores)
        fence_async_shared()
        barrier()
        factor = gl.convert_layout(d_scores, variant.factor)
        d_key = warpgroup_mma(factor, query.slice(FIRST, COLUMNS, 1), d_key, is_async=True)
        d_value, d_key = warpgroup_mma_wait(0, deps=[d_value, d_key])  # or registers would not suffice for dQ
        mbarrier.arrive(barriers.d_output_free.index(turn % variant.stages), count=1)
        mbarrier.arrive(barriers.query_free.index(turn % variant.stages), count=1)
        d_query = warpgroup_mma_wait(0, deps=[issue_d_query(own_scores, own_keys, variant)])
        if variant.in_turn:
            await_own_turn(Turns, turn, work, part, variant)
        add_to_query(d_query, arrays, tiles, turn, work, padded, part, variant)
    if variant.in_turn:  # noqa: SIM102
        if turns > 0:
            pass_on(Turns, turns - 1, work, part, variant)
    store_both(d_key, d_value, own_keys, own_values, arrays, tiles, barriers, work, scale, part, variant)
