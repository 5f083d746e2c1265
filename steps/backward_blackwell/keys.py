"""The kernel whose clusters own keys: dK and dV of 128 keys, 64 for each CTA. Tiles of 128 queries pass by.

Scores are transposed, S^T [key, query] = K Q^T, so that the weights and dS are first factors of what adds up over
queries: dV = P^T dO, and dK = dS^T Q. All four are products of two CTAs with 128 rows together. A CTA's 64 rows take
half of the lanes, and its last columns the other half: of tensor memory a product takes half as many columns as it has.

    tensor memory    scores     gradients of weights    dK          dV                  free
    512 columns      64         64                      128         128                 128

    shared memory    K and V    Q and dO, by rows       by columns  weights and dS      together
    of each CTA      64 KiB     64 KiB                  64 KiB      32 KiB              224 of 227 KiB

That is what makes room: with 128 keys a CTA, dK and dV alone would take all 512 columns. So do FlashAttention's kernels
for this head_dim (https://github.com/Dao-AILab/flash-attention, ``sm100_hd256_2cta_fmha_backward_dkdvkernel.py``). A
second factor is halved by columns. Those of the scores are queries, and those of what adds up are columns of head_dim.
So of a tile of Q, and of one of dO, each CTA has half of the rows and half of the columns.
"""

from __future__ import annotations

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import blackwell, hopper
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from steps.backward_blackwell.lib import barrier_of_each, fetch, joint_barrier, matrix, numbers_of
from steps.gluon.softmax import exp2


class KeyArrays(NamedTuple):
    """Arrays in global memory, as TMA knows them; numbers: a pointer. The columns are those of a tile's two halves."""

    query: object
    query_columns: object
    key: object
    value: object
    d_output: object
    d_output_columns: object
    numbers: object
    d_key: object
    d_value: object


class KeyTiles(NamedTuple):
    """Tiles in shared memory. key and value are the cluster's own."""

    key: object
    value: object
    query: object
    query_columns: object
    d_output: object
    d_output_columns: object
    weights: object
    d_scores: object


class KeyColumns(NamedTuple):
    """Tensor memory: scores and gradients of weights [key, query], and sums [key, head_dim]."""

    scores: object
    d_weights: object
    d_key: object
    d_value: object


class KeyBarriers(NamedTuple):
    """mbarriers. full: TMA has brought a tile to both CTAs. done: a product has ended, and all that began before it."""

    keys_full: object
    query_full: object
    query_columns_full: object
    d_output_full: object
    d_output_columns_full: object
    scores_done: object
    d_weights_done: object
    sums_done: object


class KeyWork(NamedTuple):
    """What a cluster computes: its keys, and an iteration for each tile of queries, those of a head together.

    first: the first tile of queries that sees the keys; a_head: tiles from there.
    """

    key_row: object
    kv_head: object
    batch: object
    heads: object
    batches: object
    padded: object
    first: object
    a_head: object


@gluon.jit
def own_work(seq_len_q, heads, batches, padded, variant: gl.constexpr):
    """The work of this cluster."""
    key_row = gl.program_id(0) * variant.tile.key
    tiles = gl.cdiv(seq_len_q, variant.tile.query)
    first = 0
    if variant.causal:
        first = gl.minimum(tiles, key_row // variant.tile.query)
    return KeyWork(key_row, gl.program_id(1), gl.program_id(2), heads, batches, padded, first, tiles - first)


@gluon.jit
def position(work, iteration, variant: gl.constexpr):
    """(query head, first row) of an iteration's tile of queries."""
    head = work.kv_head * variant.group_size + iteration // work.a_head
    return head, (work.first + iteration % work.a_head) * variant.tile.query


@gluon.jit
def fetch_for_scores(arrays, tiles, barriers, work, n, variant: gl.constexpr):
    """Ask TMA for Q and dO of the n-th iteration, halved by queries, where there is such an iteration."""
    if n < variant.group_size * work.a_head:
        head, row = position(work, n, variant)
        fetch(arrays.query, tiles.query, barriers.query_full, work.batch, head, row)
        fetch(arrays.d_output, tiles.d_output, barriers.d_output_full, work.batch, head, row)


@gluon.jit
def fetch_for_sums(arrays, tiles, barriers, work, n, variant: gl.constexpr):
    """Likewise, halved by columns."""
    if n < variant.group_size * work.a_head:
        head, row = position(work, n, variant)
        full = barriers.d_output_columns_full
        fetch(arrays.d_output_columns, tiles.d_output_columns, full, work.batch, head, row)
        fetch(arrays.query_columns, tiles.query_columns, barriers.query_columns_full, work.batch, head, row)


@gluon.jit
def weigh(scores, arrays, work, iteration, scale, variant: gl.constexpr):
    """The weights [key, query] again, from scores and log-sum-exps in base 2; zero where the mask hides.

    Keys behind the end need no mask: they are rows of their own, which are not stored.
    """
    COLUMN: gl.constexpr = gl.SliceLayout(0, variant.accumulator)
    head, row = position(work, iteration, variant)
    line = work.batch * work.heads + head
    lse = numbers_of(arrays.numbers, line, row, variant.tile.query, work.padded, COLUMN)
    weights = exp2(scores * scale - lse[None, :])
    if variant.causal:  # noqa: SIM102
        if row < work.key_row + variant.tile.key:
            key = work.key_row + gl.arange(0, variant.tile.key, gl.SliceLayout(1, variant.accumulator))
            query = row + gl.arange(0, variant.tile.query, COLUMN)
            weights = gl.where(key[:, None] <= query[None, :], weights, 0.0)
    return weights


@gluon.jit
def gradient_of_scores(weights, d_weights, arrays, work, iteration, variant: gl.constexpr):
    """dS [key, query], before the scale."""
    head, row = position(work, iteration, variant)
    line = (work.batches + work.batch) * work.heads + head
    row_sum = numbers_of(
        arrays.numbers, line, row, variant.tile.query, work.padded, gl.SliceLayout(0, variant.accumulator)
    )
    return weights * (d_weights - row_sum[None, :])


@gluon.jit
def issue_scores(tiles, columns, barriers, n, variant: gl.constexpr):
    """Wait for the n-th iteration's queries, and begin the product for the scores."""
    mbarrier.wait(barriers.query_full, n & 1)
    query = matrix(tiles.query).permute((1, 0))
    blackwell.tcgen05_mma(matrix(tiles.key), query, columns.scores, use_acc=False, mbarriers=[barriers.scores_done])


@gluon.jit
def issue_d_weights(tiles, columns, barriers, n, variant: gl.constexpr):
    """Likewise, for the gradients of weights."""
    mbarrier.wait(barriers.d_output_full, n & 1)
    d_output = matrix(tiles.d_output).permute((1, 0))
    blackwell.tcgen05_mma(
        matrix(tiles.value), d_output, columns.d_weights, use_acc=False, mbarriers=[barriers.d_weights_done]
    )


@gluon.jit
def issue_d_value(tiles, columns, barriers, n, variant: gl.constexpr):
    """Likewise, for what adds to dV; dK's product, which begins behind it, tells of its end, too."""
    mbarrier.wait(barriers.d_output_columns_full, n & 1)
    blackwell.tcgen05_mma(tiles.weights, matrix(tiles.d_output_columns), columns.d_value, mbarriers=[])


@gluon.jit
def issue_d_key(tiles, columns, barriers, n, variant: gl.constexpr):
    """Likewise, for what adds to dK."""
    mbarrier.wait(barriers.query_columns_full, n & 1)
    blackwell.tcgen05_mma(tiles.d_scores, matrix(tiles.query_columns), columns.d_key, mbarriers=[barriers.sums_done])


@gluon.jit
def share(weights, d_scores, tiles, variant: gl.constexpr):
    """Store weights and dS for the tensor cores; then both CTAs have, and have read their scores."""
    tiles.weights.store(weights.to(tiles.key.dtype))
    tiles.d_scores.store(d_scores.to(tiles.key.dtype))
    fence_async_shared()
    hopper.cluster.barrier()


@gluon.jit
def go_through_queries(arrays, tiles, columns, barriers, work, scale, variant: gl.constexpr):
    """All tiles of queries; products are waited for before anything else begins."""
    fetch_for_scores(arrays, tiles, barriers, work, 0, variant)
    fetch_for_sums(arrays, tiles, barriers, work, 0, variant)
    for n in range(variant.group_size * work.a_head):
        # --- the weights again, and dS ---
        issue_scores(tiles, columns, barriers, n, variant)
        mbarrier.wait(barriers.scores_done, n & 1)
        weights = weigh(columns.scores.load(variant.accumulator), arrays, work, n, scale, variant)
        issue_d_weights(tiles, columns, barriers, n, variant)
        mbarrier.wait(barriers.d_weights_done, n & 1)
        fetch_for_scores(arrays, tiles, barriers, work, n + 1, variant)
        d_weights = columns.d_weights.load(variant.accumulator)
        d_scores = gradient_of_scores(weights, d_weights, arrays, work, n, variant)
        share(weights, d_scores, tiles, variant)

        # --- dV and dK ---
        issue_d_value(tiles, columns, barriers, n, variant)
        issue_d_key(tiles, columns, barriers, n, variant)
        mbarrier.wait(barriers.sums_done, n & 1)
        fetch_for_sums(arrays, tiles, barriers, work, n + 1, variant)


@gluon.jit
def leave(sums, factor, array, tile, work, variant: gl.constexpr):
    """Multiply dK or dV [key, head_dim] by a factor, and let TMA store it, from where K or V was."""
    matrix(tile).store((sums.load(variant.all_columns) * factor).to(tile.dtype))
    fence_async_shared()
    tma.async_store(array, [work.batch, work.kv_head, work.key_row, 0], tile)


@gluon.jit(do_not_specialize=["seq_len_q", "heads", "batches", "padded"])
def fmha_backward_dkdv(
    Q, QColumns, K, V, DO, DOColumns, Numbers, DK, DV, scale, seq_len_q, heads, batches, padded, variant: gl.constexpr
):  # fmt: skip
    KEYS: gl.constexpr = variant.tile.key
    QUERIES: gl.constexpr = variant.tile.query
    HEAD_DIM: gl.constexpr = variant.head_dim
    OWN: gl.constexpr = [1, 1, KEYS, HEAD_DIM]
    PASSING: gl.constexpr = [1, 1, QUERIES, HEAD_DIM]
    LN2: gl.constexpr = 0.6931471805599453  # the scale is in base 2, which dK's is not
    dtype: gl.constexpr = Q.dtype
    arrays = KeyArrays(Q, QColumns, K, V, DO, DOColumns, Numbers, DK, DV)

    # --- shared memory; dK and dV leave from where K and V were ---
    tiles = KeyTiles(
        gl.allocate_shared_memory(dtype, OWN, variant.shared),
        gl.allocate_shared_memory(dtype, OWN, variant.shared),
        gl.allocate_shared_memory(dtype, PASSING, variant.shared),
        gl.allocate_shared_memory(dtype, PASSING, variant.shared_columns),
        gl.allocate_shared_memory(dtype, PASSING, variant.shared),
        gl.allocate_shared_memory(dtype, PASSING, variant.shared_columns),
        gl.allocate_shared_memory(dtype, [KEYS, QUERIES], variant.shared_scores),
        gl.allocate_shared_memory(dtype, [KEYS, QUERIES], variant.shared_scores),
    )

    # --- tensor memory; a key that no query sees has gradients of zero ---
    none = gl.full([KEYS, HEAD_DIM], 0.0, gl.float32, variant.all_columns)
    columns = KeyColumns(
        blackwell.allocate_tensor_memory(gl.float32, [KEYS, QUERIES], variant.scores),
        blackwell.allocate_tensor_memory(gl.float32, [KEYS, QUERIES], variant.scores),
        blackwell.allocate_tensor_memory(gl.float32, [KEYS, HEAD_DIM], variant.sums, none),
        blackwell.allocate_tensor_memory(gl.float32, [KEYS, HEAD_DIM], variant.sums, none),
    )
    barriers = KeyBarriers(
        joint_barrier(),
        joint_barrier(),
        joint_barrier(),
        joint_barrier(),
        joint_barrier(),
        barrier_of_each(),
        barrier_of_each(),
        barrier_of_each(),
    )

    work = own_work(seq_len_q, heads, batches, padded, variant)
    if work.a_head > 0:  # else no query sees these keys
        mbarrier.expect(barriers.keys_full, K.nbytes_per_cta + V.nbytes_per_cta)
        tma.async_load(K, [work.batch, work.kv_head, work.key_row, 0], barriers.keys_full, tiles.key)
        tma.async_load(V, [work.batch, work.kv_head, work.key_row, 0], barriers.keys_full, tiles.value)
        mbarrier.wait(barriers.keys_full, 0)
        variant.walk(arrays, tiles, columns, barriers, work, scale, variant)

    leave(columns.d_key, scale * LN2, DK, tiles.key, work, variant)
    leave(columns.d_value, 1.0, DV, tiles.value, work, variant)
    tma.store_wait(0)
