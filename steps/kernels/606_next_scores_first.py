"""Gradients of attention in Gluon, with its launch, for an NVIDIA GPU of compute capability 10.0 (B200).

    gradients(q, k, v, o, lse, do, scale=None) -> dq, dk, dv

Compiled in: head_dim 256, bfloat16, a causal mask. Batch, heads and lengths may be others, as far as the checks say;
the launch is chosen for the problem at the end. Tensors are [batch, heads, length, head_dim]. Query i sees keys 0 to i,
also where the lengths differ. There is no autograd. It needs PyTorch and Triton 3.9.

Roles are called by their functions, with a number. TMA arrives when its bytes are there. tcgen05 arrives when a product
is complete. Both CTAs of a cluster share key_columns_full, key_full, queries_full, value_full: there Triton doubles the
arrivals that the kernel asks for, as each CTA arrives, and only CTA 0 waits. At the cluster barrier all warps of both
wait for each other; the first time is behind the initialization of barriers, where the compiler puts it.
barrier           slots  arrivals  who arrives                  who waits, and its first parity  complete when
d_query_done      1      1         tcgen05                      all warps of both CTAs: 0        a product has ended
d_weights_done    1      1         tcgen05                      all warps of both CTAs: 0        a product has ended
key_columns_full  2      2         all warps of both CTAs, TMA  all warps of CTA 0: 0            key_columns: filled
key_full          2      2         all warps of both CTAs, TMA  all warps of CTA 0: 0            key: filled
queries_full      1      2         all warps of both CTAs, TMA  all warps of CTA 0: 0
scores_done       1      1         tcgen05                      all warps of both CTAs: 0        a product has ended
value_full        2      2         all warps of both CTAs, TMA  all warps of CTA 0: 0            value: filled
cluster barrier                    all warps of both CTAs       all warps of both CTAs
Bytes of shared memory of each CTA: query 65,536, d_output 65,536, key 32,768, value 32,768, key_columns 32,768,
barriers 80; together 229,456.
Columns of tensor memory of each CTA: scores 64, d_weights 64, d_scores 32, d_query 256; together 416.

Made from step 606 next_scores_first (Next scores before dQ) of the FMHA tutorial by
python -m steps.export next_scores_first --head-dim 256 --seq-len 4096 --dtype bfloat16 --causal
"""

import math
import sys
from collections import namedtuple
from functools import partial

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import blackwell, hopper
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.testing import do_bench

TILE_QUERY, HEAD_DIM, STAGES, TILE_KEY, AT_ONCE, LN2 = map(gl.constexpr, (256, 256, 2, 64, 64, 0.6931471805599453))
TILE_KEY_2, TILE_QUERY_2, TILE_QUERY_3, INVERSE_LN2, ROWS = map(gl.constexpr, (128, 128, 32, 1.4426950408889634, 256))
D, TILE_Q, TILE_K = HEAD_DIM.value, TILE_QUERY.value, TILE_KEY.value
SHARED = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4,
    cga_layout=[[0, 0, 1, 0]]))  # fmt: skip
SHARED_COLUMNS = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4,
    cga_layout=[[0, 0, 0, 1]]))  # fmt: skip
SCORES = gl.constexpr(blackwell.TensorMemoryLayout(block=(128, 64), col_stride=1, cga_layout=[[1, 0]], two_ctas=True))
SUMS = gl.constexpr(blackwell.TensorMemoryLayout(block=(128, 256), col_stride=1, cga_layout=[[1, 0]], two_ctas=True))
SHARED_SCORES = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, cga_layout=[[1, 0]]))
SCORES_2 = gl.constexpr(blackwell.TensorMemoryLayout(block=(64, 128), col_stride=1, cga_layout=[[1, 0]], two_ctas=True))
SUMS_2 = gl.constexpr(blackwell.TensorMemoryLayout(block=(64, 256), col_stride=1, cga_layout=[[1, 0]], two_ctas=True))

# Shared memory. query and d_output [query, head_dim] are the cluster's own; of the others there are rings.
Tiles = namedtuple("Tiles", "query d_output key value key_columns")
# Tensor memory: scores, gradients of weights and dS [query, key], and dQ [query, head_dim].
Columns = namedtuple("Columns", "scores d_weights d_scores d_query")
# mbarriers. full: TMA has brought a tile to both CTAs. done: a product has ended.
Barriers = namedtuple("Barriers", "key_full value_full key_columns_full scores_done d_weights_done d_query_done")
# What a cluster computes: its queries, with tiles of keys [0, end); those from ``whole`` on need the mask. lse,
# row_sum: the log-sum-exp in base 2 and D of each query.
Work = namedtuple("Work", "query_row kv_head batch seq_len_kv whole end lse row_sum")
# What a cluster computes with its keys: iterations for tiles of queries, those of a head together. first: the first
# tile of queries that sees the keys; a_head: tiles from there.
KeyWork = namedtuple("KeyWork", "kv_head batch first a_head")


@gluon.jit
def fetch_queries(array, tile, full, work, n):
    """Ask TMA for the n-th iteration's tile of Q or dO, where there is one: each CTA asks for its half."""
    if n < work.a_head:
        # (query head, first row) of the n-th iteration's tile of queries.
        head = work.kv_head + n // work.a_head
        row = (work.first + n % work.a_head) * TILE_QUERY_2
        mbarrier.expect(full, array.nbytes_per_cta)
        tma.async_load(array, [work.batch, head, row, 0], full, tile)


@gluon.jit
def numbers_of(Numbers, line, row, count: gl.constexpr, padded, layout: gl.constexpr):
    """The numbers of so many queries of a head, from ``row`` on; rows are padded to whole tiles."""
    offset = line.to(gl.int64) * padded + row + gl.arange(0, count, layout)
    return gl.load(Numbers + gl.max_contiguous(gl.multiple_of(offset, [4]), [4]))


@gluon.jit(do_not_specialize=["seq_len_q", "padded", "heads", "batches"])
def prepare(Out, DO, LSE, Numbers, strides, seq_len_q, padded, heads, batches):
    """For every query the log-sum-exp in base 2, and behind all of these D, the sum of dO O over head_dim."""
    line = gl.program_id(2) * heads + gl.program_id(1)
    # A few rows of a head: log-sum-exps in base 2; row sums (delta) of dO * O; zeros for dQ, where asked for.
    first_row = gl.program_id(0) * TILE_QUERY_3
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 16], [512 // HEAD_DIM, HEAD_DIM // 16], [gl.num_warps(), 1], [1, 0])
    ZEROS: gl.constexpr = gl.BlockedLayout([4], [32], [gl.num_warps()], [0])
    of_o, of_do, of_lse = strides[0], strides[1], strides[2]
    head, batch = (line % heads).to(gl.int64), (line // heads).to(gl.int64)
    row = first_row + gl.arange(0, TILE_QUERY_3, gl.SliceLayout(1, LAYOUT))
    column = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, LAYOUT))
    there = row < seq_len_q
    far = gl.minimum(row, seq_len_q - 1).to(gl.int64)  # a row that exists, so that loads need no mask
    own = batch * heads + head
    lse = gl.load(LSE + batch * of_lse[0] + head * of_lse[1] + far * of_lse[2])
    o_rows = Out + batch * of_o[0] + head * of_o[1] + (far[:, None] * of_o[2] + column[None, :])
    do_rows = DO + batch * of_do[0] + head * of_do[1] + (far[:, None] * of_do[2] + column[None, :])
    o, do = gl.load(o_rows), gl.load(do_rows)
    row_sum = gl.sum(o.to(gl.float32) * do.to(gl.float32), 1)
    gl.store(Numbers + (batches * heads + own) * padded + row, gl.where(there, row_sum, 0.0))
    there &= lse > float("-inf")
    gl.store(Numbers + own * padded + row, gl.where(there, lse * INVERSE_LN2, float("inf")))


@gluon.jit
def joint_ring(length: gl.constexpr):
    """A ring of mbarriers that both CTAs have together."""
    barriers = gl.allocate_shared_memory(gl.int64, [length, 1], mbarrier.MBarrierLayout([[0]]))
    for n in gl.static_range(length):
        mbarrier.init(barriers.index(n), count=1)
    return barriers


@gluon.jit
def cluster_ring():
    """A ring of mbarriers of each CTA; each completes after the given number of arrivals."""
    barriers = gl.allocate_shared_memory(gl.int64, [1, 2], mbarrier.MBarrierLayout([[1]]))
    mbarrier.init(barriers.index(0), count=1)
    return barriers


@gluon.jit
def exp2(x):
    """2^x, with results below 2^-126 flushed to zero: MUFU.EX2 and nothing around it."""
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit(do_not_specialize=["seq_len_q", "heads", "batches", "padded"])
def fmha_backward_dkdv(Q, QColumns, K, V, DO, DOColumns, Numbers, DK, DV, scale, seq_len_q, heads, batches, padded):
    OWN: gl.constexpr = [1, 1, TILE_KEY_2, HEAD_DIM]
    PASSING: gl.constexpr = [1, 1, TILE_QUERY_2, HEAD_DIM]
    dtype: gl.constexpr = Q.dtype
    # --- shared memory; dK and dV leave from where K and V were ---
    key, value = gl.allocate_shared_memory(dtype, OWN, SHARED), gl.allocate_shared_memory(dtype, OWN, SHARED)
    query = gl.allocate_shared_memory(dtype, PASSING, SHARED)
    query_columns = gl.allocate_shared_memory(dtype, PASSING, SHARED_COLUMNS)
    d_output = gl.allocate_shared_memory(dtype, PASSING, SHARED)
    d_output_columns = gl.allocate_shared_memory(dtype, PASSING, SHARED_COLUMNS)
    weights_at = gl.allocate_shared_memory(dtype, [TILE_KEY_2, TILE_QUERY_2], SHARED_SCORES)
    d_scores_at = gl.allocate_shared_memory(dtype, [TILE_KEY_2, TILE_QUERY_2], SHARED_SCORES)
    # --- tensor memory: [key, query] and [key, head_dim]; a key that no query sees has gradients of zero ---
    scores_at = blackwell.allocate_tensor_memory(gl.float32, [TILE_KEY_2, TILE_QUERY_2], SCORES_2)
    d_weights_at = blackwell.allocate_tensor_memory(gl.float32, [TILE_KEY_2, TILE_QUERY_2], SCORES_2)
    d_key = blackwell.allocate_tensor_memory(gl.float32, [TILE_KEY_2, HEAD_DIM], SUMS_2)
    d_value = blackwell.allocate_tensor_memory(gl.float32, [TILE_KEY_2, HEAD_DIM], SUMS_2)
    none = gl.full([TILE_KEY_2, HEAD_DIM], 0.0, gl.float32, d_key.get_reg_layout())
    d_key.store(none)
    d_value.store(none)
    # --- mbarriers. full: TMA has brought a tile to both CTAs. done: a product has ended, and all begun before it ---
    keys_full = joint_ring(1).index(0)
    query_full = joint_ring(1).index(0)
    d_output_full = joint_ring(1).index(0)
    query_columns_full, d_output_columns_full = joint_ring(1).index(0), joint_ring(1).index(0)
    scores_done = cluster_ring().index(0)
    d_weights_done = cluster_ring().index(0)
    sums_done = cluster_ring().index(0)
    key_row, kv_head, batch = gl.program_id(0) * TILE_KEY_2, gl.program_id(1), gl.program_id(2)
    first = gl.minimum(gl.cdiv(seq_len_q, TILE_QUERY_2), key_row // TILE_QUERY_2)
    work = KeyWork(kv_head, batch, first, gl.cdiv(seq_len_q, TILE_QUERY_2) - first)
    if work.a_head > 0:  # else no query sees these keys
        mbarrier.expect(keys_full, K.nbytes_per_cta + V.nbytes_per_cta)
        tma.async_load(K, [batch, kv_head, key_row, 0], keys_full, key)
        tma.async_load(V, [batch, kv_head, key_row, 0], keys_full, value)
        mbarrier.wait(keys_full, 0)
    keys, values = key.reshape([TILE_KEY_2, HEAD_DIM]), value.reshape([TILE_KEY_2, HEAD_DIM])
    # --- all tiles of queries; a product is waited for before anything else begins ---
    fetch_queries(Q, query, query_full, work, 0)
    fetch_queries(DO, d_output, d_output_full, work, 0)
    fetch_queries(DOColumns, d_output_columns, d_output_columns_full, work, 0)
    fetch_queries(QColumns, query_columns, query_columns_full, work, 0)
    for n in range(work.a_head):
        # The weights [key, query] again, from scores and log-sum-exps in base 2; zero where the mask hides. Keys behind
        # the end need no mask: they are rows of their own, which are not stored.
        mbarrier.wait(query_full, n & 1)
        second = query.reshape([TILE_QUERY_2, HEAD_DIM]).permute((1, 0))
        blackwell.tcgen05_mma(keys, second, scores_at, use_acc=False, mbarriers=[scores_done])
        mbarrier.wait(scores_done, n & 1)
        scores = scores_at.load()
        COLUMN: gl.constexpr = gl.SliceLayout(0, scores.type.layout)
        # (query head, first row) of the n-th iteration's tile of queries.
        head = work.kv_head + n // work.a_head
        row = (work.first + n % work.a_head) * TILE_QUERY_2
        lse = numbers_of(Numbers, batch * heads + head, row, TILE_QUERY_2, padded, COLUMN)
        weights = exp2(scores * scale - lse[None, :])
        if row < key_row + TILE_KEY_2:
            its_key = key_row + gl.arange(0, TILE_KEY_2, gl.SliceLayout(1, scores.type.layout))
            its_query = row + gl.arange(0, TILE_QUERY_2, COLUMN)
            weights = gl.where(its_key[:, None] <= its_query[None, :], weights, 0.0)
        # dS [key, query], before the scale.
        mbarrier.wait(d_output_full, n & 1)
        second = d_output.reshape([TILE_QUERY_2, HEAD_DIM]).permute((1, 0))
        blackwell.tcgen05_mma(values, second, d_weights_at, use_acc=False, mbarriers=[d_weights_done])
        mbarrier.wait(d_weights_done, n & 1)
        fetch_queries(Q, query, query_full, work, n + 1)
        fetch_queries(DO, d_output, d_output_full, work, n + 1)
        d_weights = d_weights_at.load()
        row_sum = numbers_of(Numbers, (batches + batch) * heads + head, row, TILE_QUERY_2, padded, COLUMN)
        weights_at.store(weights.to(dtype))
        d_scores_at.store((weights * (d_weights - row_sum[None, :])).to(dtype))
        fence_async_shared()
        hopper.cluster.barrier()  # both CTAs have stored theirs, and have read their scores
        # dV and dK.
        mbarrier.wait(d_output_columns_full, n & 1)
        blackwell.tcgen05_mma(weights_at, d_output_columns.reshape([TILE_QUERY_2, HEAD_DIM]), d_value, mbarriers=[])
        mbarrier.wait(query_columns_full, n & 1)
        blackwell.tcgen05_mma(
            d_scores_at, query_columns.reshape([TILE_QUERY_2, HEAD_DIM]), d_key, mbarriers=[sums_done]
        )
        mbarrier.wait(sums_done, n & 1)
        fetch_queries(DOColumns, d_output_columns, d_output_columns_full, work, n + 1)
        fetch_queries(QColumns, query_columns, query_columns_full, work, n + 1)
    keys.store((d_key.load() * (scale * LN2)).to(dtype))
    values.store(d_value.load().to(dtype))
    fence_async_shared()
    tma.async_store(DK, [batch, kv_head, key_row, 0], key)
    tma.async_store(DV, [batch, kv_head, key_row, 0], value)
    tma.store_wait(0)


@gluon.jit
def fetch_keys(array, ring, full, work, j):
    """Ask TMA for the j-th tile of K or V, where there is one: each CTA asks for its half."""
    if j < work.end:
        stage = j % STAGES
        mbarrier.expect(full.index(stage), array.nbytes_per_cta)
        tma.async_load(array, [work.batch, work.kv_head, j * TILE_KEY, 0], full.index(stage), ring.index(stage))


@gluon.jit
def issue(own, ring, full, sums, done, j):
    """Wait for the j-th tile of K or V, and begin the product of Q or dO with it."""
    mbarrier.wait(full.index(j % STAGES), j // STAGES & 1)
    second = ring.index(j % STAGES).reshape([TILE_KEY, HEAD_DIM]).permute((1, 0))
    blackwell.tcgen05_mma(own, second, sums, use_acc=False, mbarriers=[done])


@gluon.jit(do_not_specialize=["seq_len_kv", "heads", "batches", "padded"])
def fmha_backward_dq(Q, K, KColumns, V, DO, Numbers, DQ, scale, seq_len_kv, heads, batches, padded):
    OWN: gl.constexpr = [1, 1, TILE_QUERY, HEAD_DIM]
    PASSING: gl.constexpr = [STAGES, 1, 1, TILE_KEY, HEAD_DIM]
    dtype: gl.constexpr = Q.dtype
    query, d_output = gl.allocate_shared_memory(dtype, OWN, SHARED), gl.allocate_shared_memory(dtype, OWN, SHARED)
    tiles = Tiles(
        query.reshape([TILE_QUERY, HEAD_DIM]), d_output.reshape([TILE_QUERY, HEAD_DIM]),
        gl.allocate_shared_memory(dtype, PASSING, SHARED), gl.allocate_shared_memory(dtype, PASSING, SHARED),
        gl.allocate_shared_memory(dtype, PASSING, SHARED_COLUMNS),
    )  # fmt: skip
    columns = Columns(
        blackwell.allocate_tensor_memory(gl.float32, [TILE_QUERY, TILE_KEY], SCORES),
        blackwell.allocate_tensor_memory(gl.float32, [TILE_QUERY, TILE_KEY], SCORES),
        blackwell.allocate_tensor_memory(dtype, [TILE_QUERY, TILE_KEY], SCORES),
        blackwell.allocate_tensor_memory(gl.float32, [TILE_QUERY, HEAD_DIM], SUMS),
    )
    queries_full = joint_ring(1).index(0)
    barriers = Barriers(
        joint_ring(STAGES), joint_ring(STAGES), joint_ring(STAGES), cluster_ring().index(0), cluster_ring().index(0),
        cluster_ring().index(0),
    )  # fmt: skip
    row, head, batch = gl.program_id(0) * TILE_QUERY, gl.program_id(1), gl.program_id(2)
    # (whole, end): tiles of keys [0, whole) need no mask, tiles [whole, end) do.
    whole = seq_len_kv // TILE_KEY
    end = gl.cdiv(seq_len_kv, TILE_KEY)
    whole = gl.minimum(whole, row // TILE_KEY)
    end = gl.minimum(end, gl.cdiv(row + TILE_QUERY, TILE_KEY))
    ROW: gl.constexpr = gl.SliceLayout(1, columns.scores.get_reg_layout())
    lse = numbers_of(Numbers, batch * heads + head, row, TILE_QUERY, padded, ROW)
    row_sum = numbers_of(Numbers, (batches + batch) * heads + head, row, TILE_QUERY, padded, ROW)
    work = Work(row, head, batch, seq_len_kv, whole, end, lse, row_sum)
    mbarrier.expect(queries_full, Q.nbytes_per_cta + DO.nbytes_per_cta)
    tma.async_load(Q, [batch, head, row, 0], queries_full, query)
    tma.async_load(DO, [batch, head, row, 0], queries_full, d_output)
    mbarrier.wait(queries_full, 0)
    for j in gl.static_range(STAGES):
        fetch_keys(K, tiles.key, barriers.key_full, work, j)
        fetch_keys(V, tiles.value, barriers.value_full, work, j)
        fetch_keys(KColumns, tiles.key_columns, barriers.key_columns_full, work, j)
    issue(tiles.query, tiles.key, barriers.key_full, columns.scores, barriers.scores_done, 0)
    issue(tiles.d_output, tiles.value, barriers.value_full, columns.d_weights, barriers.d_weights_done, 0)
    for j in range(work.end):
        # --- the weights again, and dS, under dQ of the tile before ---
        mbarrier.wait(barriers.scores_done, j & 1)
        # The weights [query, key] again, from scores and log-sum-exps in base 2; zero where the mask hides.
        scores = columns.scores.load()
        weights = exp2(scores * scale - work.lse[:, None])
        if j >= work.whole:
            key = j * TILE_KEY + gl.arange(0, TILE_KEY, gl.SliceLayout(0, scores.type.layout))
            query_2 = work.query_row + gl.arange(0, TILE_QUERY, gl.SliceLayout(1, scores.type.layout))
            weights = gl.where(key[None, :] <= query_2[:, None], weights, 0.0)
        mbarrier.wait(barriers.d_weights_done, j & 1)
        fetch_keys(K, tiles.key, barriers.key_full, work, j + STAGES)
        fetch_keys(V, tiles.value, barriers.value_full, work, j + STAGES)
        d_scores = weights * (columns.d_weights.load() - work.row_sum[:, None])
        if j > 0:
            mbarrier.wait(barriers.d_query_done, j & 1 ^ 1)
            fetch_keys(KColumns, tiles.key_columns, barriers.key_columns_full, work, j - 1 + STAGES)
        # Store dS for the tensor cores; then both CTAs have, and have read their scores.
        LAYOUT: gl.constexpr = columns.d_scores.get_reg_layout()
        columns.d_scores.store(gl.convert_layout(d_scores.to(tiles.key.dtype), LAYOUT))
        hopper.cluster.barrier()
        # --- the next tile's, and dQ ---
        if j + 1 < work.end:
            issue(tiles.query, tiles.key, barriers.key_full, columns.scores, barriers.scores_done, j + 1)
            issue(tiles.d_output, tiles.value, barriers.value_full, columns.d_weights, barriers.d_weights_done, j + 1)
        # Wait for the j-th tile of K halved by columns, and begin what adds to dQ.
        mbarrier.wait(barriers.key_columns_full.index(j % STAGES), j // STAGES & 1)
        key = tiles.key_columns.index(j % STAGES).reshape([TILE_KEY, HEAD_DIM])
        blackwell.tcgen05_mma(columns.d_scores, key, columns.d_query, use_acc=j > 0, mbarriers=[barriers.d_query_done])
    mbarrier.wait(barriers.d_query_done, work.end & 1 ^ 1)
    # --- dQ leaves from where Q was ---
    PANELS: gl.constexpr = [HEAD_DIM // AT_ONCE, 1, 1, TILE_QUERY, AT_ONCE]
    panels = query.reinterpret(dtype, PANELS, SHARED)
    # Multiply an output by a number, or numbers [query, 1], and store it in shared memory, from which TMA takes it.
    for n_2 in gl.static_range(HEAD_DIM // AT_ONCE):
        some = columns.d_query.slice(n_2 * AT_ONCE, AT_ONCE).load() * (scale * LN2)
        panels.index(n_2).reshape([ROWS, AT_ONCE]).store(some.to(panels.dtype))
    fence_async_shared()
    for n in gl.static_range(PANELS[0]):
        tma.async_store(DQ, [batch, head, row, n * AT_ONCE], panels.index(n))
    tma.store_wait(0)


def expect(name, wanted, came, fits=None):
    """Raise ValueError unless this fits; where nothing is said of that, unless what came is what is wanted."""
    if not (came == wanted if fits is None else fits):
        raise ValueError(f"{name}: expected {wanted}, got {came}")


def gradients(q, k, v, o, lse, do, scale=None):
    """(dq, dk, dv) of attention. o: its output; lse: each query's log-sum-exp, natural logarithm; do: o's gradient."""
    shapes = {"q": [*q.shape[:3], D], "k": [*q.shape[:2], *k.shape[2:3], D], "v": [*k.shape]}
    shapes |= {"o": [*q.shape], "do": [*q.shape]}
    for (name, shape), x in zip(shapes.items(), (q, k, v, o, do)):
        expect(name, f"torch.bfloat16 {shape} on {q.device}", f"{x.dtype} {[*x.shape]} on {x.device}")
        expect(name, "data that begin at a multiple of 16 bytes", hex(x.data_ptr()), x.data_ptr() % 16 == 0)
        fits = x.stride(3) == 1 and all(n > 0 and n % 8 == 0 for n in x.stride()[:3])
        expect(name, "strides in steps of 16 bytes, and a last one of 1", x.stride(), fits)
    expect("lse", f"torch.float32 {[*q.shape[:3]]} on {q.device}", f"{lse.dtype} {[*lse.shape]} on {lse.device}")
    expect("q", "a tensor on a GPU", f"one on {q.device}", q.device.type == "cuda")
    expect("q and k", "no length of 0", f"{[*q.shape]} and {[*k.shape]}", min(*q.shape, *k.shape) > 0)
    expect("k", f"a multiple of {TILE_K} keys", k.shape[2], k.shape[2] % TILE_K == 0)
    scale = 1 / math.sqrt(D) if scale is None else scale
    expect("scale", "a number above 0", scale, scale > 0)
    log2_scale = scale / math.log(2)
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    (batch, heads, seq_len_q, _), (_, kv_heads, seq_len_kv, _) = q.shape, k.shape
    clusters, key_clusters = -(-seq_len_q // TILE_Q), -(-seq_len_kv // 128)  # of a head
    padded = clusters * TILE_Q
    numbers = torch.empty((2 * batch * heads, padded), dtype=torch.float32, device=q.device)  # log-sum-exps, row sums
    strides = (o.stride()[:3], do.stride()[:3], lse.stride())
    preparing = (o, do, lse, numbers, strides, seq_len_q, padded, heads, batch)
    sizes = (heads, batch, padded)
    describe, by_rows, by_columns = TensorDescriptor.from_tensor, SHARED.value, SHARED_COLUMNS.value

    box = [1, 1, 128, D]  # of queries that pass by
    queries, grads, other_queries, other_grads = (
        describe(x, box, its) for its in (by_rows, by_columns) for x in (q, do)
    )
    keys, values, *into = (describe(x, [1, 1, 128, D], by_rows) for x in (k, v, dk, dv))
    of_keys = (queries, other_queries, keys, values, grads, other_grads, numbers, *into, log2_scale, seq_len_q, *sizes)

    box = [1, 1, TILE_K, D]  # of keys that pass by
    keys, values, other_keys = describe(k, box, by_rows), describe(v, box, by_rows), describe(k, box, by_columns)
    queries, grads = (describe(x, [1, 1, TILE_Q, D], by_rows) for x in (q, do))
    to_dq = describe(dq, [1, 1, TILE_Q, 64], by_rows)
    of_queries = (queries, keys, other_keys, values, grads, numbers, to_dq, log2_scale, seq_len_kv, *sizes)

    how = {"num_warps": 8, "num_ctas": 2, "enable_fp_fusion": True}
    with torch.cuda.device(q.device):
        small = (padded // 32, heads, batch)
        prepare[small](*preparing, num_warps=4, enable_fp_fusion=True)
        fmha_backward_dkdv[(key_clusters, kv_heads, batch)](*of_keys, **how)
        fmha_backward_dq[(clusters, heads, batch)](*of_queries, **how)
    return dq, dk, dv


def exact(q, k, v, do):
    """(o, log-sum-exps, dq, dk, dv) in float64, a head of Q at a time; gradients by autograd."""
    made = []
    for *each, d_rows in zip(*(x.flatten(0, 1) for x in (q, k, v, do))):
        queries, keys, values = leaves = [x.double().requires_grad_() for x in each]
        scores = queries @ keys.T / math.sqrt(D)
        scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -math.inf)
        rows = scores.softmax(1) @ values
        made.append([rows.detach(), scores.logsumexp(1).detach(), *torch.autograd.grad(rows, leaves, d_rows.double())])
    return [torch.stack(x).unflatten(0, q.shape[:2]) for x in zip(*made)]


def main():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (10, 0):
        print("this program needs an NVIDIA GPU of compute capability 10.0 (B200)", file=sys.stderr)
        return 2
    q, k, v, do = (torch.randn((4, 16, 4096, 256), dtype=torch.bfloat16, device="cuda") for _ in range(4))
    v += 0.5  # so that the mean of the output is not zero
    o, lse, *right = exact(q, k, v, do)
    ours = partial(gradients, q, k, v, o.to(q.dtype), lse.float(), do)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    graph = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True)
    theirs = partial(torch.autograd.grad, graph, leaves, do, retain_graph=True)
    for name, mine, its, wanted in zip(("dq", "dk", "dv"), ours(), theirs(), right):
        step = torch.finfo(mine.dtype).eps * 2.0 ** math.floor(math.log2(wanted.abs().max()))  # of rounding
        error, limit = (mine - wanted).abs().max(), 2 * (its - wanted).abs().max() + step
        judged = "right" if error <= limit else "WRONG"
        print(f"next_scores_first: {name} {judged}, error {error:.3g}, at most {limit:.3g} is allowed")
        if judged == "WRONG":
            return 1
    mine, its = (do_bench(function, return_mode="median") for function in (ours, theirs))  # milliseconds
    told = [f"{ms:.4f} ms, {1_374_389_534_720 / 1e9 / ms:.1f} TFLOPS" for ms in (mine, its)]  # of the matrix products
    print(f"next_scores_first: {told[0]}; SDPA: {told[1]}; {its / mine:.2f} times as fast")
    return 0


if __name__ == "__main__":
    sys.exit(main())
