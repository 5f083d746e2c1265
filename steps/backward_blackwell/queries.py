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

from steps.backward_blackwell.lib import barrier_of_each, fetch, joint_barrier, matrix, numbers_of
from steps.blackwell.columns import to_panels
from steps.blackwell.together import cluster_ring
from steps.gluon.softmax import exp2, tiles_to_visit
from steps.hopper.lib import await_tile


class Arrays(NamedTuple):
    """Arrays in global memory, as TMA knows them."""

    query: object
    key: object
    key_columns: object
    value: object
    d_output: object
    d_query: object


class Tiles(NamedTuple):
    """Tiles in shared memory. query and d_output are the cluster's own; of the others there are rings."""

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

    queries_full: object
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
    head: object
    kv_head: object
    batch: object
    seq_len_kv: object
    whole: object
    end: object
    lse: object
    row_sum: object


@gluon.jit
def own_work(Numbers, seq_len_kv, heads, batches, padded, variant: gl.constexpr):
    """The work of this cluster."""
    ROW: gl.constexpr = gl.SliceLayout(1, variant.accumulator)
    row = gl.program_id(0) * variant.tile.query
    head = gl.program_id(1)
    batch = gl.program_id(2)
    whole, end = tiles_to_visit(row, seq_len_kv, variant)
    lse = numbers_of(Numbers, batch * heads + head, row, variant.tile.query, padded, ROW)
    row_sum = numbers_of(Numbers, (batches + batch) * heads + head, row, variant.tile.query, padded, ROW)
    return Work(row, head, head // variant.group_size, batch, seq_len_kv, whole, end, lse, row_sum)


@gluon.jit
def fetch_for_scores(arrays, tiles, barriers, work, j, variant: gl.constexpr):
    """Ask TMA for the j-th tiles of K and V, halved by keys, where there are such tiles."""
    if j < work.end:
        row = j * variant.tile.key
        stage = j % variant.stages
        fetch(arrays.key, tiles.key.index(stage), barriers.key_full.index(stage), work.batch, work.kv_head, row)
        fetch(arrays.value, tiles.value.index(stage), barriers.value_full.index(stage), work.batch, work.kv_head, row)


@gluon.jit
def fetch_for_sums(arrays, tiles, barriers, work, j, variant: gl.constexpr):
    """Likewise, for the tile of K halved by columns."""
    if j < work.end:
        row = j * variant.tile.key
        stage = j % variant.stages
        full = barriers.key_columns_full.index(stage)
        fetch(arrays.key_columns, tiles.key_columns.index(stage), full, work.batch, work.kv_head, row)


@gluon.jit
def weigh(scores, work, j, scale, variant: gl.constexpr):
    """The weights [query, key] again, from scores and log-sum-exps in base 2; zero where the mask hides."""
    weights = exp2(scores * scale - work.lse[:, None])
    if variant.causal or variant.ragged:  # noqa: SIM102
        if j >= work.whole:
            key = j * variant.tile.key + gl.arange(0, variant.tile.key, gl.SliceLayout(0, variant.accumulator))
            if variant.causal:
                query = work.query_row + gl.arange(0, variant.tile.query, gl.SliceLayout(1, variant.accumulator))
                weights = gl.where(key[None, :] <= query[:, None], weights, 0.0)
            if variant.ragged:
                weights = gl.where((key < work.seq_len_kv)[None, :], weights, 0.0)
    return weights


@gluon.jit
def issue_scores(tiles, columns, barriers, j, variant: gl.constexpr):
    """Wait for the j-th tile of keys, and begin the product for the scores."""
    await_tile(barriers.key_full, j, variant.stages)
    key = matrix(tiles.key.index(j % variant.stages)).permute((1, 0))
    blackwell.tcgen05_mma(matrix(tiles.query), key, columns.scores, use_acc=False, mbarriers=[barriers.scores_done])


@gluon.jit
def issue_d_weights(tiles, columns, barriers, j, variant: gl.constexpr):
    """Likewise, for the gradients of weights."""
    await_tile(barriers.value_full, j, variant.stages)
    value = matrix(tiles.value.index(j % variant.stages)).permute((1, 0))
    blackwell.tcgen05_mma(
        matrix(tiles.d_output), value, columns.d_weights, use_acc=False, mbarriers=[barriers.d_weights_done]
    )


@gluon.jit
def issue_d_query(tiles, columns, barriers, j, variant: gl.constexpr):
    """Likewise, for what adds to dQ."""
    await_tile(barriers.key_columns_full, j, variant.stages)
    key = matrix(tiles.key_columns.index(j % variant.stages))
    blackwell.tcgen05_mma(columns.d_scores, key, columns.d_query, use_acc=j > 0, mbarriers=[barriers.d_query_done])


@gluon.jit
def share(d_scores, tiles, columns, variant: gl.constexpr):
    """Store dS for the tensor cores; then both CTAs have, and have read their scores."""
    columns.d_scores.store(gl.convert_layout(d_scores.to(tiles.key.dtype), variant.factor))
    hopper.cluster.barrier()


@gluon.jit
def one_by_one(arrays, tiles, columns, barriers, work, scale, variant: gl.constexpr):
    """All tiles of keys; every product is waited for before anything else begins."""
    STAGES: gl.constexpr = variant.stages
    for j in gl.static_range(STAGES):
        fetch_for_scores(arrays, tiles, barriers, work, j, variant)
        fetch_for_sums(arrays, tiles, barriers, work, j, variant)
    for j in range(work.end):
        # --- the weights again, and dS ---
        issue_scores(tiles, columns, barriers, j, variant)
        mbarrier.wait(barriers.scores_done, j & 1)
        weights = weigh(columns.scores.load(variant.accumulator), work, j, scale, variant)
        issue_d_weights(tiles, columns, barriers, j, variant)
        mbarrier.wait(barriers.d_weights_done, j & 1)
        fetch_for_scores(arrays, tiles, barriers, work, j + STAGES, variant)
        d_weights = columns.d_weights.load(variant.accumulator)
        share(weights * (d_weights - work.row_sum[:, None]), tiles, columns, variant)

        # --- dQ ---
        issue_d_query(tiles, columns, barriers, j, variant)
        mbarrier.wait(barriers.d_query_done, j & 1)
        fetch_for_sums(arrays, tiles, barriers, work, j + STAGES, variant)


@gluon.jit
def next_scores_first(arrays, tiles, columns, barriers, work, scale, variant: gl.constexpr):
    """As ``one_by_one``, with dQ under way while the next tile's weights and dS are computed.

    The next tile's scores, and the gradients of its weights, begin before dQ does.
    """
    STAGES: gl.constexpr = variant.stages
    for j in gl.static_range(STAGES):
        fetch_for_scores(arrays, tiles, barriers, work, j, variant)
        fetch_for_sums(arrays, tiles, barriers, work, j, variant)
    issue_scores(tiles, columns, barriers, 0, variant)
    issue_d_weights(tiles, columns, barriers, 0, variant)
    for j in range(work.end):
        # --- the weights again, and dS, under dQ of the tile before ---
        mbarrier.wait(barriers.scores_done, j & 1)
        weights = weigh(columns.scores.load(variant.accumulator), work, j, scale, variant)
        mbarrier.wait(barriers.d_weights_done, j & 1)
        fetch_for_scores(arrays, tiles, barriers, work, j + STAGES, variant)
        d_scores = weights * (columns.d_weights.load(variant.accumulator) - work.row_sum[:, None])
        if j > 0:
            mbarrier.wait(barriers.d_query_done, j & 1 ^ 1)
            fetch_for_sums(arrays, tiles, barriers, work, j - 1 + STAGES, variant)
        share(d_scores, tiles, columns, variant)

        # --- the next tile's, and dQ ---
        if j + 1 < work.end:
            issue_scores(tiles, columns, barriers, j + 1, variant)
            issue_d_weights(tiles, columns, barriers, j + 1, variant)
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
    LN2: gl.constexpr = 0.6931471805599453  # the scale is in base 2, which dQ's is not
    dtype: gl.constexpr = Q.dtype
    arrays = Arrays(Q, K, KColumns, V, DO, DQ)
    tiles = Tiles(
        gl.allocate_shared_memory(dtype, OWN, variant.shared),
        gl.allocate_shared_memory(dtype, OWN, variant.shared),
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
    barriers = Barriers(
        joint_barrier(),
        cluster_ring(STAGES, 1, True),
        cluster_ring(STAGES, 1, True),
        cluster_ring(STAGES, 1, True),
        barrier_of_each(),
        barrier_of_each(),
        barrier_of_each(),
    )

    work = own_work(Numbers, seq_len_kv, heads, batches, padded, variant)
    mbarrier.expect(barriers.queries_full, Q.nbytes_per_cta + DO.nbytes_per_cta)
    tma.async_load(Q, [work.batch, work.head, work.query_row, 0], barriers.queries_full, tiles.query)
    tma.async_load(DO, [work.batch, work.head, work.query_row, 0], barriers.queries_full, tiles.d_output)
    mbarrier.wait(barriers.queries_full, 0)
    variant.walk(arrays, tiles, columns, barriers, work, scale, variant)

    # --- dQ leaves from where Q was ---
    AT_ONCE: gl.constexpr = variant.at_once
    PANELS: gl.constexpr = [HEAD_DIM // AT_ONCE, 1, 1, QUERIES, AT_ONCE]
    panels = tiles.query.reinterpret(dtype, PANELS, variant.shared)
    factor = gl.full([QUERIES], scale * LN2, gl.float32, gl.SliceLayout(1, variant.output))
    to_panels(columns.d_query, factor, panels, variant)
    fence_async_shared()
    for n in gl.static_range(PANELS[0]):
        tma.async_store(DQ, [work.batch, work.head, work.query_row, n * AT_ONCE], panels.index(n))
    tma.store_wait(0)
