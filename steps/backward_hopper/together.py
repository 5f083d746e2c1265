"""Two warpgroups that compute together: dK and dV of 128 keys, with 64 keys each, and dQ of a tile of 64 queries.

As in the forward pass a producer warp asks TMA for tiles, and two warpgroups compute (``steps.hopper``). What is
multiplied from where follows FlashAttention-3 (Shah et al. 2024, https://arxiv.org/abs/2407.08608).
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

from steps.backward_hopper.adding import add_to_query
from steps.backward_hopper.lib import Arrays, own_work, position, produce, rings, rooms
from steps.backward_hopper.products import (
    issue_d_query,
    issue_side,
    keys_of,
    number_of,
    rows_of,
    store_both,
    weigh,
)
from steps.gluon import names  # noqa: F401
from steps.hopper.lib import await_tile, release
from steps.hopper.packed import Packed


@gluon.jit
def share(d_scores, tiles, iteration, variant: gl.constexpr):
    """Bring dS [key, query] to shared memory, where both warpgroups find it; returns the slot."""
    slot = tiles.d_scores.index(iteration % 2)
    slot.store(d_scores)
    fence_async_shared()
    gl.barrier()
    return slot


@gluon.jit
def one_by_one(d_key, d_value, arrays, tiles, barriers, iteration, work, scale, padded, variant: gl.constexpr):
    """(dK, dV) with a tile of queries; every product is waited for before anything else begins."""
    dtype: gl.constexpr = tiles.key.dtype
    keys, values = keys_of(tiles.key, variant), keys_of(tiles.value, variant)
    _, i = position(work, iteration, variant)
    query, d_output = rows_of(tiles.query, iteration, variant), rows_of(tiles.d_output, iteration, variant)

    # --- the weights again, and dV ---
    await_tile(barriers.query_full, iteration, variant.stages)
    scores = warpgroup_mma_wait(0, deps=[issue_side(keys, query, variant)])
    lse = number_of(tiles.lse, iteration, variant)
    plain, weights = weigh(scores, lse, work.key_row, i, scale, work, variant)
    await_tile(barriers.d_output_full, iteration, variant.stages)
    factor = gl.convert_layout(plain.to(dtype), variant.factor)
    d_value = warpgroup_mma_wait(0, deps=[warpgroup_mma(factor, d_output, d_value, is_async=True)])

    # --- dS, and what follows from it ---
    d_weights = warpgroup_mma_wait(0, deps=[issue_side(values, d_output, variant)])
    d_scores = (weights * (d_weights - number_of(tiles.row_sum, iteration, variant))).to(dtype)
    release(barriers.d_output_empty, iteration, variant.stages)
    shared = share(d_scores, tiles, iteration, variant)
    factor = gl.convert_layout(d_scores, variant.factor)
    d_key = warpgroup_mma_wait(0, deps=[warpgroup_mma(factor, query, d_key, is_async=True)])
    release(barriers.query_empty, iteration, variant.stages)
    d_query = warpgroup_mma_wait(0, deps=[issue_d_query(shared, keys, variant)])
    add_to_query(d_query, arrays, tiles, barriers, iteration, work, scale, padded, None, 0, variant)
    return d_key, d_value


@gluon.jit
def under_way(d_key, d_value, arrays, tiles, barriers, iteration, work, scale, padded, variant: gl.constexpr):
    """As ``one_by_one``, with products under way while others are waited for.

    The exponentials run under the product for the weights' gradient, dS under dV, and dQ is added under dK.
    """
    dtype: gl.constexpr = tiles.key.dtype
    keys, values = keys_of(tiles.key, variant), keys_of(tiles.value, variant)
    _, i = position(work, iteration, variant)
    query, d_output = rows_of(tiles.query, iteration, variant), rows_of(tiles.d_output, iteration, variant)

    # --- the weights again, and dV ---
    await_tile(barriers.query_full, iteration, variant.stages)
    scores = issue_side(keys, query, variant)
    await_tile(barriers.d_output_full, iteration, variant.stages)
    d_weights = issue_side(values, d_output, variant)
    scores = warpgroup_mma_wait(1 if variant.pieces is None else 2, deps=[scores])
    lse = number_of(tiles.lse, iteration, variant)
    plain, weights = weigh(scores, lse, work.key_row, i, scale, work, variant)
    factor = gl.convert_layout(plain.to(dtype), variant.factor)
    d_value = warpgroup_mma(factor, d_output, d_value, is_async=True)

    # --- dS, and what follows from it ---
    d_weights = warpgroup_mma_wait(1, deps=[d_weights])
    d_scores = (weights * (d_weights - number_of(tiles.row_sum, iteration, variant))).to(dtype)
    shared = share(d_scores, tiles, iteration, variant)
    d_query = issue_d_query(shared, keys, variant)
    d_key = warpgroup_mma(gl.convert_layout(d_scores, variant.factor), query, d_key, is_async=True)
    d_query, d_value = warpgroup_mma_wait(1, deps=[d_query, d_value])
    release(barriers.d_output_empty, iteration, variant.stages)
    add_to_query(d_query, arrays, tiles, barriers, iteration, work, scale, padded, None, 0, variant)
    d_key = warpgroup_mma_wait(0, deps=[d_key])
    gl.barrier()  # dK's product began before all warps last met: the compiler takes it for over
    release(barriers.query_empty, iteration, variant.stages)
    return d_key, d_value


@gluon.jit
def consume(arrays, tiles, barriers, work, scale, padded, variant: gl.constexpr):
    """The warps that compute: dK and dV of the block's keys; what they add to dQ they add on the way."""
    keys, values = keys_of(tiles.key, variant), keys_of(tiles.value, variant)
    d_key = gl.full([variant.tile.key, variant.head_dim], 0.0, gl.float32, variant.sums)
    d_value = gl.full([variant.tile.key, variant.head_dim], 0.0, gl.float32, variant.sums)
    mbarrier.wait(barriers.keys_full.index(0), 0)
    for iteration in range(variant.group_size * work.a_head):
        d_key, d_value = variant.compute(
            d_key, d_value, arrays, tiles, barriers, iteration, work, scale, padded, variant
        )
    store_both(d_key, d_value, keys, values, arrays, tiles, barriers, work, scale, 0, variant)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["seq_len_q", "seq_len_kv", "heads", "batches", "padded", "sequences"])
def fmha_backward(
    Q, K, V, DO, Numbers, Sums, DK, DV, scale, seq_len_q, seq_len_kv, heads, batches, padded, variant: gl.constexpr,
    begins_q=None, begins_k=None, sequences=None,
):  # fmt: skip
    arrays = Arrays(Q, K, V, DO, Numbers, Sums, DK, DV)
    tiles = rooms(Q.dtype, variant)
    barriers = rings(variant)
    fence_async_shared()  # TMA sees the barriers
    packed = Packed(begins_q, begins_k, sequences) if variant.packed else None
    work = own_work(seq_len_q, seq_len_kv, heads, batches, packed, variant)

    # --- who does what; the warps that compute are those that the block began with ---
    WORKERS: gl.constexpr = variant.workers
    BUDGETS: gl.constexpr = variant.budgets
    gl.warp_specialize(
        [
            (consume, (arrays, tiles, barriers, work, scale, padded, variant)),
            (produce, (arrays, tiles, barriers, work, None, variant)),
        ],
        WORKERS,
        BUDGETS,
    )
