"""Two warpgroups at head_dim 256: one has the scores, the other their gradients.

The sums for dK and dV of 64 keys would fill the registers of one warpgroup. So one warpgroup computes the scores and
the weights, and has dV; the other computes the weights' gradient and dS, and has dK. The weights go to the other warp
group through shared memory, in float32, so that nothing is rounded on the way; dS comes back. Of dQ each computes half
of the columns, and adds it from registers.

The warpgroup with the scores is ahead of the other, and computes its half of dQ an iteration late: dS has then been
there for long. So while one takes exponentials, or waits, the other's products keep the tensor cores busy.

A handover says more than that something is there, which saves barriers:

- With the weights of an iteration comes the word that Q is there, as the scores were made of it; and that the warpgroup
  with the scores has multiplied dS of two iterations ago, whose slot dS of this iteration takes.
- With the last weights, or the last dS, comes the word that the other warpgroup has read Q, or dO, for the last time.
  So dK leaves by a slot of Q, and dV by one of dO.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma_wait,
)

from steps.backward_hopper.adding import add_to_keys, add_to_query
from steps.backward_hopper.lib import LN2, key_corner, position
from steps.backward_hopper.products import (
    await_all_sums,
    await_but_sums,
    issue_own_d_query,
    issue_side,
    issue_sums,
    keys_of,
    no_sums,
    number_of,
    rows_of,
    store_rounded,
    weigh,
)
from steps.gluon import names  # noqa: F401
from steps.hopper.lib import await_tile, release


@gluon.jit
def consume_scores(arrays, tiles, barriers, work, scale, padded, aside, variant: gl.constexpr):
    """The warpgroup that has the scores: the weights, for both; dV; and the first half of dQ's columns."""
    dtype: gl.constexpr = tiles.key.dtype
    keys = keys_of(tiles.key, variant)
    d_value = no_sums(variant)
    iterations = variant.group_size * work.a_head
    mbarrier.wait(barriers.keys_full.index(0), 0)
    for iteration in range(iterations):
        _, i = position(work, iteration, variant)
        query, d_output = rows_of(tiles.query, iteration, variant), rows_of(tiles.d_output, iteration, variant)

        # --- the weights again, for both ---
        await_tile(barriers.query_full, iteration, variant.stages)
        scores = issue_side(keys, query, variant)
        lse = number_of(tiles.lse, iteration, variant)
        scores = warpgroup_mma_wait(0, deps=[scores])
        release(barriers.query_empty, iteration, variant.stages)
        plain, weights = weigh(scores, lse, work.key_row, i, scale, work, variant)
        mbarrier.wait(barriers.handover.empty.index(0), iteration & 1 ^ 1)
        barriers.handover.weights.store(weights)
        factor = gl.convert_layout(plain.to(dtype), variant.factor)  # now: dQ needs the weights' registers
        mbarrier.arrive(barriers.handover.full.index(0), count=1)

        # --- dQ of the iteration before, which is added under dV; what it is in the first iteration nobody needs ---
        mbarrier.wait(barriers.d_scores_full.index(iteration + 1 & 1), iteration - 1 >> 1 & 1)
        d_query = issue_own_d_query(tiles, iteration + 1, 0, variant)
        await_tile(barriers.d_output_full, iteration, variant.stages)
        d_value = issue_sums(factor, d_output, d_value, variant)
        d_query = await_but_sums(d_query, variant)
        if iteration > 0:
            add_to_query(d_query, arrays, tiles, barriers, iteration - 1, work, scale, padded, aside, 0, variant)
        d_value = await_all_sums(d_value, variant)
        release(barriers.d_output_empty, iteration, variant.stages)

    # --- dQ of the last iteration ---
    if iterations > 0:
        mbarrier.wait(barriers.d_scores_full.index(iterations + 1 & 1), iterations - 1 >> 1 & 1)
        d_query = warpgroup_mma_wait(0, deps=[issue_own_d_query(tiles, iterations + 1, 0, variant)])
        add_to_query(d_query, arrays, tiles, barriers, iterations - 1, work, scale, padded, aside, 0, variant)
        variant.sequence.end(aside, iterations - 1, work, 0, variant)
    variant.leave(d_value, 1.0, tiles.d_output, arrays.d_value, work, variant)
    variant.helpers.added(aside, work, 0, variant)
    tma.store_wait(0)


@gluon.jit
def consume_gradients(arrays, tiles, barriers, work, scale, padded, aside, variant: gl.constexpr):
    """The warpgroup that has the scores' gradients: dS, for both; dK; and the second half of dQ's columns."""
    dtype: gl.constexpr = tiles.key.dtype
    values = keys_of(tiles.value, variant)
    d_key = no_sums(variant)
    iterations = variant.group_size * work.a_head
    mbarrier.wait(barriers.keys_full.index(0), 0)
    for iteration in range(iterations):
        query, d_output = rows_of(tiles.query, iteration, variant), rows_of(tiles.d_output, iteration, variant)

        # --- dS, for both; the weights are fetched under the product for their gradient ---
        await_tile(barriers.d_output_full, iteration, variant.stages)
        d_weights = issue_side(values, d_output, variant)
        row_sum = number_of(tiles.row_sum, iteration, variant)
        mbarrier.wait(barriers.handover.full.index(0), iteration & 1)  # and Q is there
        weights = barriers.handover.weights.load(variant.scores)
        mbarrier.arrive(barriers.handover.empty.index(0), count=1)
        d_weights = warpgroup_mma_wait(0, deps=[d_weights])
        release(barriers.d_output_empty, iteration, variant.stages)
        d_scores = (weights * (d_weights - row_sum)).to(dtype)
        tiles.d_scores.index(iteration & 1).store(d_scores)
        fence_async_shared()
        mbarrier.arrive(barriers.d_scores_full.index(iteration & 1), count=1)

        # --- dQ, which is added under dK ---
        d_query = issue_own_d_query(tiles, iteration, 1, variant)
        d_key = issue_sums(gl.convert_layout(d_scores, variant.factor), query, d_key, variant)
        d_query = await_but_sums(d_query, variant)
        add_to_query(d_query, arrays, tiles, barriers, iteration, work, scale, padded, aside, 1, variant)
        d_key = await_all_sums(d_key, variant)
        release(barriers.query_empty, iteration, variant.stages)

    if iterations > 0:
        variant.sequence.end(aside, iterations - 1, work, 1, variant)
    variant.leave(d_key, scale * LN2, tiles.query, arrays.d_key, work, variant)
    variant.helpers.added(aside, work, 0, variant)
    tma.store_wait(0)


@gluon.jit
def store_sums(sums, scale, ring, array, work, variant: gl.constexpr):
    """dV or dK leaves by a slot of the ring of dO or Q that it was summed from, when nobody reads them any more."""
    slot = ring.index(0)
    store_rounded(keys_of(slot, variant), sums, scale, variant)
    fence_async_shared()
    tma.async_store(array, key_corner(work.key_row, work, variant), slot)


@gluon.jit
def add_sums(sums, scale, ring, array, work, variant: gl.constexpr):
    """dV or dK of a query head is added to what the others of its group add, before the scale."""
    add_to_keys(sums, array, work, 0, variant)


@gluon.jit
def consume(arrays, tiles, barriers, work, scale, padded, aside, warpgroup: gl.constexpr, variant: gl.constexpr):
    """A warpgroup: of two, the first has the scores, and the second their gradients."""
    if warpgroup == 0:
        consume_scores(arrays, tiles, barriers, work, scale, padded, aside, variant)
    else:
        consume_gradients(arrays, tiles, barriers, work, scale, padded, aside, variant)
