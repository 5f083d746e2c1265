"""The kernel whose clusters own queries: dQ of 256 queries, 128 for each CTA. Tiles of 64 keys pass by.

S = Q K^T and the gradients of weights dO V^T are products of two CTAs with 256 rows together, and so is dQ = dS K. Its
first factor, dS, lies in tensor memory:

    tensor memory    scores     gradients of weights    dS          dQ                  free
    512 columns      64         64                      32          256                 96

    shared memory    Q and dO   K and V, by rows        K by columns                    together
    of each CTA      128 KiB    2 slots of 32 KiB       2 slots of 16 KiB               224 of 227 KiB

The scores need K halved by keys, and dQ needs it halved by columns of head_dim: each CTA has both halves.
"""

from __future__ import annotations

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import blackwell, hopper
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from steps.backward_blackwell.lib import barrier_of_each, joint_barrier, numbers_of
from steps.backward_hopper.lib import LN2
from steps.blackwell.columns import to_panels
from steps.blackwell.sharing import joint_ring
from steps.gluon.softmax import exp2, tiles_to_visit
from steps.hopper.lib import await_tile


class Arrays(NamedTuple):
    """Arrays in global memory, as TMA knows them."""

    key: object
    key_columns: object
    value: object


class Tiles(NamedTuple):
    """Shared memory. query and d_output [query, head_dim] are the cluster's own; of the others there are rings."""

    query: object
    d_output: object
    key: object
    value: object
    key_columns: object


class Columns(NamedTuple):
    """Tensor memory: scores, gradients of weights and dS [query, key], and dQ [query, head_dim]."""

    scores: object
    d_weights: object
    d_scores: object
    d_query: object


class Barriers(NamedTuple):
    """mbarriers. full: TMA has brought a tile to both CTAs. done: a product has ended."""

    key_full: object
    value_full: object
    key_columns_full: object
    scores_done: object
    d_weights_done: object
    d_query_done: object


class Work(NamedTuple):
    """What a cluster computes: its queries, with tiles of keys [0, end); those from ``whole`` on need the mask.

    lse, row_sum: the log-sum-exp in base 2 and D of each query.
    """

    query_row: object
    kv_head: object
    batch: object
    seq_len_kv: object
    whole: object
    end: object
    lse: object
    row_sum: object


@gluon.jit
def fetch_keys(array, ring, full, work, j, variant: gl.constexpr):
    """Ask TMA for the j-th tile of K or V, where there is one: each CTA asks for its half."""
    if j < work.end:
        stage = j % variant.stages
        mbarrier.expect(full.index(stage), array.nbytes_per_cta)
        at = [work.batch, work.kv_head, j * variant.tile.key, 0]
        tma.async_load(array, at, full.index(stage), ring.index(stage))


@gluon.jit
def weigh(scores, work, j, scale, variant: gl.constexpr):
    """The weights [query, key] again, from scores and log-sum-exps in base 2; zero where the mask hides."""
    weights = exp2(scores * scale - work.lse[:, None])
    if variant.causal or variant.ragged:  # noqa: SIM102
        if j >= work.whole:
            key = j * variant.tile.key + gl.arange(0, variant.tile.key, gl.SliceLayout(0, scores.type.layout))
            if variant.causal:
                query = work.query_row + gl.arange(0, variant.tile.query, gl.SliceLayout(1, scores.type.layout))
                weights = gl.where(key[None, :] <= query[:, None], weights, 0.0)
            if variant.ragged:
                weights = gl.where((key < work.seq_len_kv)[None, :], weights, 0.0)
    return weights


@gluon.jit
def issue(own, ring, full, sums, done, j, variant: gl.constexpr):
    """Wait for the j-th tile of K or V, and begin the product of Q or dO with it."""
    await_tile(full, j, variant.stages)
    second = ring.index(j % variant.stages).reshape([variant.tile.key, variant.head_dim]).permute((1, 0))
    blackwell.tcgen05_mma(own, second, sums, use_acc=False, mbarriers=[done])


@gluon.jit
def share(d_scores, tiles, columns, variant: gl.constexpr):
    """Store dS for the tensor cores; then both CTAs have, and have read their scores."""
    LAYOUT: gl.constexpr = columns.d_scores.get_reg_layout()
    columns.d_scores.store(gl.convert_layout(d_scores.to(tiles.key.dtype), LAYOUT))
    hopper.cluster.barrier()


@gluon.jit
def issue_d_query(tiles, columns, barriers, j, variant: gl.constexpr):
    """Wait for the j-th tile of K halved by columns, and begin what adds to dQ."""
    await_tile(barriers.key_columns_full, j, variant.stages)
    key = tiles.key_columns.index(j % variant.stages).reshape([variant.tile.key, variant.head_dim])
    blackwell.tcgen05_mma(columns.d_scores, key, columns.d_query, use_acc=j > 0, mbarriers=[barriers.d_query_done])


@gluon.jit
def one_by_one(arrays, tiles, columns, barriers, work, scale, variant: gl.constexpr):
    """All tiles of keys; every product is waited for before anything else begins."""
    STAGES: gl.constexpr = variant.stages
    for j in gl.static_range(STAGES):
        fetch_keys(arrays.key, tiles.key, barriers.key_full, work, j, variant)
        fetch_keys(arrays.value, tiles.value, barriers.value_full, work, j, variant)
        fetch_keys(arrays.key_columns, tiles.key_columns, barriers.key_columns_full, work, j, variant)
    for j in range(work.end):
        # --- the weights again, and dS ---
        issue(tiles.query, tiles.key, barriers.key_full, columns.scores, barriers.scores_done, j, variant)
        mbarrier.wait(barriers.scores_done, j & 1)
        weights = weigh(columns.scores.load(), work, j, scale, variant)
        issue(tiles.d_output, tiles.value, barriers.value_full, columns.d_weights, barriers.d_weights_done, j, variant)
        mbarrier.wait(barriers.d_weights_done, j & 1)
        fetch_keys(arrays.key, tiles.key, barriers.key_full, work, j + STAGES, variant)
        fetch_keys(arrays.value, tiles.value, barriers.value_full, work, j + STAGES, variant)
        share(weights * (columns.d_weights.load() - work.row_sum[:, None]), tiles, columns, variant)

        # --- dQ ---
        issue_d_query(tiles, columns, barriers, j, variant)
        mbarrier.wait(barriers.d_query_done, j & 1)
        fetch_keys(arrays.key_columns, tiles.key_columns, barriers.key_columns_full, work, j + STAGES, variant)


@gluon.jit
def next_scores_first(arrays, tiles, columns, barriers, work, scale, variant: gl.constexpr):
    """As ``one_by_one``, with dQ under way while the next tile's weights and dS are computed.

    The next tile's scores, and the gradients of its weights, begin before dQ does.
    """
    STAGES: gl.constexpr = variant.stages
    for j in gl.static_range(STAGES):
        fetch_keys(arrays.key, tiles.key, barriers.key_full, work, j, variant)
        fetch_keys(arrays.value, tiles.value, barriers.value_full, work, j, variant)
        fetch_keys(arrays.key_columns, tiles.key_columns, barriers.key_columns_full, work, j, variant)
    issue(tiles.query, tiles.key, barriers.key_full, columns.scores, barriers.scores_done, 0, variant)
    issue(tiles.d_output, tiles.value, barriers.value_full, columns.d_weights, barriers.d_weights_done, 0, variant)
    for j in range(work.end):
        # --- the weights again, and dS, under dQ of the tile before ---
        mbarrier.wait(barriers.scores_done, j & 1)
        weights = weigh(columns.scores.load(), work, j, scale, variant)
        mbarrier.wait(barriers.d_weights_done, j & 1)
        fetch_keys(arrays.key, tiles.key, barriers.key_full, work, j + STAGES, variant)
        fetch_keys(arrays.value, tiles.value, barriers.value_full, work, j + STAGES, variant)
        d_scores = weights * (columns.d_weights.load() - work.row_sum[:, None])
        if j > 0:
            mbarrier.wait(barriers.d_query_done, j & 1 ^ 1)
            fetch_keys(arrays.key_columns, tiles.key_columns, barriers.key_columns_full, work, j - 1 + STAGES, variant)
        share(d_scores, tiles, columns, variant)

        # --- the next tile's, and dQ ---
        if j + 1 < work.end:
            issue(tiles.query, tiles.key, barriers.key_full, columns.scores, barriers.scores_done, j + 1, variant)
            full, done = barriers.value_full, barriers.d_weights_done
            issue(tiles.d_output, tiles.value, full, columns.d_weights, done, j + 1, variant)
        issue_d_query(tiles, columns, barriers, j, variant)
    mbarrier.wait(barriers.d_query_done, work.end & 1 ^ 1)


@gluon.jit(do_not_specialize=["seq_len_kv", "heads", "batches", "padded"])
def fmha_backward_dq(
    Q, K, KColumns, V, DO, Numbers, DQ, scale, seq_len_kv, heads, batches, padded, variant: gl.constexpr
):  # fmt: skip
    STAGES: gl.constexpr = variant.stages
    KEYS: gl.constexpr = variant.tile.key
    QUERIES: gl.constexpr = variant.tile.query
    HEAD_DIM: gl.constexpr = variant.head_dim
    OWN: gl.constexpr = [1, 1, QUERIES, HEAD_DIM]
    PASSING: gl.constexpr = [STAGES, 1, 1, KEYS, HEAD_DIM]
    dtype: gl.constexpr = Q.dtype
    query = gl.allocate_shared_memory(dtype, OWN, variant.shared)
    d_output = gl.allocate_shared_memory(dtype, OWN, variant.shared)
    tiles = Tiles(
        query.reshape([QUERIES, HEAD_DIM]),
        d_output.reshape([QUERIES, HEAD_DIM]),
        gl.allocate_shared_memory(dtype, PASSING, variant.shared),
        gl.allocate_shared_memory(dtype, PASSING, variant.shared),
        gl.allocate_shared_memory(dtype, PASSING, variant.shared_columns),
    )
    columns = Columns(
        blackwell.allocate_tensor_memory(gl.float32, [QUERIES, KEYS], variant.scores),
        blackwell.allocate_tensor_memory(gl.float32, [QUERIES, KEYS], variant.scores),
        blackwell.allocate_tensor_memory(dtype, [QUERIES, KEYS], variant.scores),
        blackwell.allocate_tensor_memory(gl.float32, [QUERIES, HEAD_DIM], variant.sums),
    )
    queries_full = joint_barrier()
    barriers = Barriers(
        joint_ring(STAGES),
        joint_ring(STAGES),
        joint_ring(STAGES),
        barrier_of_each(),
        barrier_of_each(),
        barrier_of_each(),
    )

    row, head, batch = gl.program_id(0) * QUERIES, gl.program_id(1), gl.program_id(2)
    whole, end = tiles_to_visit(row, seq_len_kv, variant)
    ROW: gl.constexpr = gl.SliceLayout(1, columns.scores.get_reg_layout())
    lse = numbers_of(Numbers, batch * heads + head, row, QUERIES, padded, ROW)
    row_sum = numbers_of(Numbers, (batches + batch) * heads + head, row, QUERIES, padded, ROW)
    work = Work(row, head // variant.group_size, batch, seq_len_kv, whole, end, lse, row_sum)
    mbarrier.expect(queries_full, Q.nbytes_per_cta + DO.nbytes_per_cta)
    tma.async_load(Q, [batch, head, row, 0], queries_full, query)
    tma.async_load(DO, [batch, head, row, 0], queries_full, d_output)
    mbarrier.wait(queries_full, 0)
    variant.walk(Arrays(K, KColumns, V), tiles, columns, barriers, work, scale, variant)

    # --- dQ leaves from where Q was ---
    AT_ONCE: gl.constexpr = variant.at_once
    PANELS: gl.constexpr = [HEAD_DIM // AT_ONCE, 1, 1, QUERIES, AT_ONCE]
    panels = query.reinterpret(dtype, PANELS, variant.shared)
    to_panels(columns.d_query, scale * LN2, panels, variant)
    fence_async_shared()
    for n in gl.static_range(PANELS[0]):
        tma.async_store(DQ, [batch, head, row, n * AT_ONCE], panels.index(n))
    tma.store_wait(0)
