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

from steps.backward_blackwell.lib import barrier_of_each, joint_barrier, numbers_of
from steps.backward_hopper.lib import LN2
from steps.gluon.softmax import exp2


class KeyWork(NamedTuple):
    """What a cluster computes with its keys: iterations for tiles of queries, those of a head together.

    first: the first tile of queries that sees the keys; a_head: tiles from there.
    """

    kv_head: object
    batch: object
    first: object
    a_head: object


@gluon.jit
def position(work, n, variant: gl.constexpr):
    """(query head, first row) of the n-th iteration's tile of queries."""
    head = work.kv_head * variant.group_size + n // work.a_head
    return head, (work.first + n % work.a_head) * variant.tile.query


@gluon.jit
def fetch_queries(array, tile, full, work, n, variant: gl.constexpr):
    """Ask TMA for the n-th iteration's tile of Q or dO, where there is one: each CTA asks for its half."""
    if n < variant.group_size * work.a_head:
        head, row = position(work, n, variant)
        mbarrier.expect(full, array.nbytes_per_cta)
        tma.async_load(array, [work.batch, head, row, 0], full, tile)


@gluon.jit(do_not_specialize=["seq_len_q", "heads", "batches", "padded"])
def fmha_backward_dkdv(
    Q, QColumns, K, V, DO, DOColumns, Numbers, DK, DV, scale, seq_len_q, heads, batches, padded, variant: gl.constexpr
):  # fmt: skip
    KEYS: gl.constexpr = variant.tile.key
    QUERIES: gl.constexpr = variant.tile.query
    HEAD_DIM: gl.constexpr = variant.head_dim
    OWN: gl.constexpr = [1, 1, KEYS, HEAD_DIM]
    PASSING: gl.constexpr = [1, 1, QUERIES, HEAD_DIM]
    dtype: gl.constexpr = Q.dtype

    # --- shared memory; dK and dV leave from where K and V were ---
    key = gl.allocate_shared_memory(dtype, OWN, variant.shared)
    value = gl.allocate_shared_memory(dtype, OWN, variant.shared)
    query = gl.allocate_shared_memory(dtype, PASSING, variant.shared)
    query_columns = gl.allocate_shared_memory(dtype, PASSING, variant.shared_columns)
    d_output = gl.allocate_shared_memory(dtype, PASSING, variant.shared)
    d_output_columns = gl.allocate_shared_memory(dtype, PASSING, variant.shared_columns)
    weights_at = gl.allocate_shared_memory(dtype, [KEYS, QUERIES], variant.shared_scores)
    d_scores_at = gl.allocate_shared_memory(dtype, [KEYS, QUERIES], variant.shared_scores)

    # --- tensor memory: [key, query] and [key, head_dim]; a key that no query sees has gradients of zero ---
    scores_at = blackwell.allocate_tensor_memory(gl.float32, [KEYS, QUERIES], variant.scores)
    d_weights_at = blackwell.allocate_tensor_memory(gl.float32, [KEYS, QUERIES], variant.scores)
    d_key = blackwell.allocate_tensor_memory(gl.float32, [KEYS, HEAD_DIM], variant.sums)
    d_value = blackwell.allocate_tensor_memory(gl.float32, [KEYS, HEAD_DIM], variant.sums)
    none = gl.full([KEYS, HEAD_DIM], 0.0, gl.float32, d_key.get_reg_layout())
    d_key.store(none)
    d_value.store(none)

    # --- mbarriers. full: TMA has brought a tile to both CTAs. done: a product has ended, and all begun before it ---
    keys_full, query_full, d_output_full = joint_barrier(), joint_barrier(), joint_barrier()
    query_columns_full, d_output_columns_full = joint_barrier(), joint_barrier()
    scores_done, d_weights_done, sums_done = barrier_of_each(), barrier_of_each(), barrier_of_each()

    key_row, kv_head, batch = gl.program_id(0) * KEYS, gl.program_id(1), gl.program_id(2)
    first = 0
    if variant.causal:
        first = gl.minimum(gl.cdiv(seq_len_q, QUERIES), key_row // QUERIES)
    work = KeyWork(kv_head, batch, first, gl.cdiv(seq_len_q, QUERIES) - first)
    if work.a_head > 0:  # else no query sees these keys
        mbarrier.expect(keys_full, K.nbytes_per_cta + V.nbytes_per_cta)
        tma.async_load(K, [batch, kv_head, key_row, 0], keys_full, key)
        tma.async_load(V, [batch, kv_head, key_row, 0], keys_full, value)
        mbarrier.wait(keys_full, 0)
    keys, values = key.reshape([KEYS, HEAD_DIM]), value.reshape([KEYS, HEAD_DIM])

    # --- all tiles of queries; a product is waited for before anything else begins ---
    fetch_queries(Q, query, query_full, work, 0, variant)
    fetch_queries(DO, d_output, d_output_full, work, 0, variant)
    fetch_queries(DOColumns, d_output_columns, d_output_columns_full, work, 0, variant)
    fetch_queries(QColumns, query_columns, query_columns_full, work, 0, variant)
    for n in range(variant.group_size * work.a_head):
        # The weights [key, query] again, from scores and log-sum-exps in base 2; zero where the mask hides. Keys behind
        # the end need no mask: they are rows of their own, which are not stored.
        mbarrier.wait(query_full, n & 1)
        second = query.reshape([QUERIES, HEAD_DIM]).permute((1, 0))
        blackwell.tcgen05_mma(keys, second, scores_at, use_acc=False, mbarriers=[scores_done])
        mbarrier.wait(scores_done, n & 1)
        scores = scores_at.load()
        COLUMN: gl.constexpr = gl.SliceLayout(0, scores.type.layout)
        head, row = position(work, n, variant)
        lse = numbers_of(Numbers, batch * heads + head, row, QUERIES, padded, COLUMN)
        weights = exp2(scores * scale - lse[None, :])
        if variant.causal:  # noqa: SIM102
            if row < key_row + KEYS:
                its_key = key_row + gl.arange(0, KEYS, gl.SliceLayout(1, scores.type.layout))
                its_query = row + gl.arange(0, QUERIES, COLUMN)
                weights = gl.where(its_key[:, None] <= its_query[None, :], weights, 0.0)
        if variant.ragged_queries:  # rows past the end are zeros, whose score with a key of infinity is NaN
            there = row + gl.arange(0, QUERIES, COLUMN) < seq_len_q
            weights = gl.where(there[None, :], weights, 0.0)

        # dS [key, query], before the scale.
        mbarrier.wait(d_output_full, n & 1)
        second = d_output.reshape([QUERIES, HEAD_DIM]).permute((1, 0))
        blackwell.tcgen05_mma(values, second, d_weights_at, use_acc=False, mbarriers=[d_weights_done])
        mbarrier.wait(d_weights_done, n & 1)
        fetch_queries(Q, query, query_full, work, n + 1, variant)
        fetch_queries(DO, d_output, d_output_full, work, n + 1, variant)
        d_weights = d_weights_at.load()
        row_sum = numbers_of(Numbers, (batches + batch) * heads + head, row, QUERIES, padded, COLUMN)
        weights_at.store(weights.to(dtype))
        d_scores_at.store((weights * (d_weights - row_sum[None, :])).to(dtype))
        fence_async_shared()
        hopper.cluster.barrier()  # both CTAs have stored theirs, and have read their scores

        # dV and dK.
        mbarrier.wait(d_output_columns_full, n & 1)
        blackwell.tcgen05_mma(weights_at, d_output_columns.reshape([QUERIES, HEAD_DIM]), d_value, mbarriers=[])
        mbarrier.wait(query_columns_full, n & 1)
        blackwell.tcgen05_mma(d_scores_at, query_columns.reshape([QUERIES, HEAD_DIM]), d_key, mbarriers=[sums_done])
        mbarrier.wait(sums_done, n & 1)
        fetch_queries(DOColumns, d_output_columns, d_output_columns_full, work, n + 1, variant)
        fetch_queries(QColumns, query_columns, query_columns_full, work, n + 1, variant)

    keys.store((d_key.load() * (scale * LN2)).to(dtype))
    values.store(d_value.load().to(dtype))
    fence_async_shared()
    tma.async_store(DK, [batch, kv_head, key_row, 0], key)
    tma.async_store(DV, [batch, kv_head, key_row, 0], value)
    tma.store_wait(0)
