"""What the warps that compute do: the five products of every tile, with wgmma, and what lies between them.

Scores lie on their side, [key, query]: the weights and dS are then, as wgmma leaves them in registers, the first
factors of dV and dK. dQ alone needs dS from all keys of the block, and so through shared memory.
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
from steps.backward_hopper.pipeline import await_tile, position
from steps.gluon import names  # noqa: F401
from steps.gluon.softmax import exp2


@gluon.jit
def rows_of(ring, turn, variant: gl.constexpr):
    """A tile of Q or dO [query, head_dim] of a ring."""
    return ring.index(turn % variant.stages).reshape([variant.tile.query, variant.head_dim])


@gluon.jit
def keys_of(tile, variant: gl.constexpr):
    """The block's K or V [key, head_dim]."""
    return tile.reshape([variant.tile.key, variant.head_dim])


@gluon.jit
def number_of(ring, turn, variant: gl.constexpr):
    """A number for each query, along the columns of scores [1, query]."""
    numbers = ring.index(turn % variant.stages).reshape([variant.tile.query])
    return numbers.load(gl.SliceLayout(0, variant.scores))[None, :]


@gluon.jit
def issue_side(keys, rows, variant: gl.constexpr):
    """Begin a product [key, query]: scores from K and Q, or the weights' gradient from V and dO."""
    none = gl.full([variant.keys, variant.tile.query], 0.0, gl.float32, variant.scores)
    return warpgroup_mma(keys, rows.permute((1, 0)), none, use_acc=False, is_async=True)


@gluon.jit
def issue_d_weights(values, d_output, row_sum, turn, variant: gl.constexpr):
    """Begin the weights' gradient [key, query], from zero or from minus the row sums: dS takes these off."""
    if variant.from_row_sums:
        start = gl.full([variant.keys, variant.tile.query], 0.0, gl.float32, variant.scores)
        start -= number_of(row_sum, turn, variant)
        d_weights = warpgroup_mma(values, d_output.permute((1, 0)), start, is_async=True)
    else:
        d_weights = issue_side(values, d_output, variant)
    return d_weights


@gluon.jit
def issue_d_query(d_scores, keys, variant: gl.constexpr):
    """Begin dQ [query, head_dim] of a tile: dS, turned, times K."""
    none = gl.full([variant.query_rows, variant.query_columns], 0.0, gl.float32, variant.query_sums)
    return warpgroup_mma(d_scores.permute((1, 0)), keys, none, use_acc=False, is_async=True)


@gluon.jit
def weigh(scores, lse, first_key, i, scale, work, variant: gl.constexpr):
    """The weights [key, query] again, from scores and log-sum-exps in base 2; zero where the mask hides."""
    weights = exp2(scores * scale - lse)
    if variant.causal or variant.ragged:  # noqa: SIM102
        if i < work.cut:
            key = first_key + gl.arange(0, variant.keys, gl.SliceLayout(1, variant.scores))
            query = i * variant.tile.query + gl.arange(0, variant.tile.query, gl.SliceLayout(0, variant.scores))
            if variant.causal:
                weights = gl.where(key[:, None] <= query[None, :], weights, 0.0)
            if variant.ragged:
                weights = gl.where((key < work.seq_len_kv)[:, None], weights, 0.0)
    return weights


@gluon.jit
def share(d_scores, tiles, turn, variant: gl.constexpr):
    """Bring dS [key, query] to shared memory, where both warp groups find it; returns the place."""
    place = tiles.d_scores.index(turn % 2)
    place.store(d_scores)
    fence_async_shared()
    gl.barrier()
    return place


@gluon.jit
def one_by_one(arrays, tiles, barriers, work, scale, padded, variant: gl.constexpr):
    """(dK, dV) of the block's keys, before the scale; every product is waited for before anything else begins."""
    dtype: gl.constexpr = tiles.key.dtype
    keys, values = keys_of(tiles.key, variant), keys_of(tiles.value, variant)
    d_key = gl.full([variant.tile.key, variant.head_dim], 0.0, gl.float32, variant.sums)
    d_value = gl.full([variant.tile.key, variant.head_dim], 0.0, gl.float32, variant.sums)
    mbarrier.wait(barriers.keys_ready.index(0), 0)
    for turn in range(variant.group_size * work.a_head):
        _, i = position(work, turn, variant)
        query, d_output = rows_of(tiles.query, turn, variant), rows_of(tiles.d_output, turn, variant)

        # --- the weights again, and dV ---
        await_tile(barriers.query_ready, turn, variant.stages)
        scores = warpgroup_mma_wait(0, deps=[issue_side(keys, query, variant)])
        weights = weigh(scores, number_of(tiles.lse, turn, variant), work.key_row, i, scale, work, variant)
        await_tile(barriers.d_output_ready, turn, variant.stages)
        factor = gl.convert_layout(weights.to(dtype), variant.factor)
        d_value = warpgroup_mma_wait(0, deps=[warpgroup_mma(factor, d_output, d_value, is_async=True)])

        # --- dS, and what follows from it ---
        d_weights = warpgroup_mma_wait(0, deps=[issue_side(values, d_output, variant)])
        d_scores = (weights * (d_weights - number_of(tiles.row_sum, turn, variant))).to(dtype)
        mbarrier.arrive(barriers.d_output_free.index(turn % variant.stages), count=1)
        shared = share(d_scores, tiles, turn, variant)
        factor = gl.convert_layout(d_scores, variant.factor)
        d_key = warpgroup_mma_wait(0, deps=[warpgroup_mma(factor, query, d_key, is_async=True)])
        mbarrier.arrive(barriers.query_free.index(turn % variant.stages), count=1)
        d_query = warpgroup_mma_wait(0, deps=[issue_d_query(shared, keys, variant)])
        add_to_query(d_query, arrays, tiles, barriers, turn, work, padded, None, 0, variant)
    return d_key, d_value


@gluon.jit
def under_way(arrays, tiles, barriers, work, scale, padded, variant: gl.constexpr):
    """As ``one_by_one``, with products under way while others are waited for.

    The exponentials run under the product for the weights' gradient, dS under dV, and dQ is added under dK.
    """
    dtype: gl.constexpr = tiles.key.dtype
    keys, values = keys_of(tiles.key, variant), keys_of(tiles.value, variant)
    d_key = gl.full([variant.tile.key, variant.head_dim], 0.0, gl.float32, variant.sums)
    d_value = gl.full([variant.tile.key, variant.head_dim], 0.0, gl.float32, variant.sums)
    mbarrier.wait(barriers.keys_ready.index(0), 0)
    for turn in range(variant.group_size * work.a_head):
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
        d_value = warpgroup_mma(factor, d_output, d_value, is_async=True)

        # --- dS, and what follows from it ---
        d_weights = warpgroup_mma_wait(1, deps=[d_weights])
        d_scores = (weights * (d_weights - number_of(tiles.row_sum, turn, variant))).to(dtype)
        shared = share(d_scores, tiles, turn, variant)
        d_query = issue_d_query(shared, keys, variant)
        d_key = warpgroup_mma(gl.convert_layout(d_scores, variant.factor), query, d_key, is_async=True)
        d_query, d_value = warpgroup_mma_wait(1, deps=[d_query, d_value])
        mbarrier.arrive(barriers.d_output_free.index(turn % variant.stages), count=1)
        add_to_query(d_query, arrays, tiles, barriers, turn, work, padded, None, 0, variant)
        d_key = warpgroup_mma_wait(0, deps=[d_key])
        gl.barrier()  # dK's product began before all warps last met: the compiler takes it for over
        mbarrier.arrive(barriers.query_free.index(turn % variant.stages), count=1)
    return d_key, d_value


@gluon.jit
def all_parts(barriers, n: gl.constexpr, variant: gl.constexpr):
    """Wait until all parts are here, for the n-th time."""
    if variant.parts == 1:
        gl.barrier()
    else:
        mbarrier.arrive(barriers.done.index(n), count=1)
        mbarrier.wait(barriers.done.index(n), 0)


@gluon.jit
def store_both(
    d_key,
    d_value,
    own_keys,
    own_values,
    arrays,
    tiles,
    barriers,
    work,
    scale,
    part: gl.constexpr,
    variant: gl.constexpr,
):
    """dK and dV leave by way of the places of K and V, a part's by its own, when all parts have read these."""
    dtype: gl.constexpr = tiles.key.dtype
    LN2: gl.constexpr = 0.6931471805599453  # the scale is in base 2, which dK's is not
    all_parts(barriers, 0, variant)
    own_keys.store((d_key * (scale * LN2)).to(dtype))
    own_values.store(d_value.to(dtype))
    fence_async_shared()
    all_parts(barriers, 1, variant)
    if part == 0:
        tma.async_store(arrays.d_key, [work.batch, work.kv_head, work.key_row, 0], tiles.key)
        tma.async_store(arrays.d_value, [work.batch, work.kv_head, work.key_row, 0], tiles.value)


@gluon.jit
def consume(arrays, tiles, barriers, work, scale, padded, variant: gl.constexpr):
    """The warps that compute: dK and dV of the block's keys; what they add to dQ they add on the way."""
    if variant.under_way:
        d_key, d_value = under_way(arrays, tiles, barriers, work, scale, padded, variant)
    else:
        d_key, d_value = one_by_one(arrays, tiles, barriers, work, scale, padded, variant)
    keys, values = keys_of(tiles.key, variant), keys_of(tiles.value, variant)
    store_both(d_key, d_value, keys, values, arrays, tiles, barriers, work, scale, 0, variant)
    tma.store_wait(0)
