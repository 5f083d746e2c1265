"""Attention in Gluon, with its launch, for an NVIDIA GPU of compute capability 10.0 (B200).

    attention(q, k, v, scale=None) -> o

Compiled in: head_dim 128, float16, no mask. Batch, heads and lengths may be others, as far as the checks say; the
launch is chosen for the problem at the end. Tensors are [batch, heads, length, head_dim]. There is no autograd. It
needs PyTorch and Triton 3.9.

Roles are called by their functions, with a number. TMA arrives when its bytes are there. tcgen05 arrives when a product
is complete. Both CTAs of a cluster share key_full, query_full, value_full: there Triton doubles the arrivals that the
kernel asks for, as each CTA arrives, and only CTA 0 waits. At the cluster barrier all warps of both wait for each
other; the first time is behind the initialization of barriers, where the compiler puts it.
barrier          slots  arrivals  who arrives                  who waits, and its first parity  complete when
key_full         2      2         all warps of both CTAs, TMA  all warps of CTA 0: 0            key: filled
output_full      1      1         tcgen05                      all warps of both CTAs: 0        output: filled
query_full       1      2         all warps of both CTAs, TMA  all warps of CTA 0: 0            query: filled
scores_full      1      1         tcgen05                      all warps of both CTAs: 0        scores: filled
value_full       2      2         all warps of both CTAs, TMA  all warps of CTA 0: 0            value: filled
cluster barrier                   all warps of both CTAs       all warps of both CTAs
Bytes of shared memory of each CTA: query 32,768, key 32,768, value 32,768, barriers 56; together 98,360.
Columns of tensor memory of each CTA: scores 128, output 128, weights 64; together 320.

Made from step 604 two_cta_mma (2-CTA MMA) of the FMHA tutorial by
python -m steps.export two_cta_mma --head-dim 128 --seq-len 4096 --dtype float16 --no-causal
With --head-dim 64 it writes: HEAD_DIM 64; other layouts SHARED_VALUE, SUMS; other lines in fmha, attention.
"""

import itertools
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

STAGES, ROWS, LEAST, WARPGROUPS, HEAD_DIM, TILE_KEY = map(gl.constexpr, (2, 256, -3.4028234663852886e38, 1, 128, 128))
TILE_QUERY, AT_ONCE_2 = map(gl.constexpr, (256, 64))
D, TILE_Q, TILE_K = HEAD_DIM.value, TILE_QUERY.value, TILE_KEY.value
SHARED = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4,
    cga_layout=[[0, 0, 1, 0]]))  # fmt: skip
SHARED_KEY = SHARED
SHARED_VALUE = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4,
    cga_layout=[[0, 0, 0, 1]]))  # fmt: skip
SCORES = gl.constexpr(blackwell.TensorMemoryLayout(block=(128, 128), col_stride=1, cga_layout=[[1, 0]], two_ctas=True))
SUMS = SCORES

# mbarriers: of each warpgroup, and for key and value of each slot. full: it is there; empty: nobody reads it.
# output_full: the PV product has ended.
Barriers = namedtuple("Barriers", "query_full key_full value_full scores_full output_full")
# Tiles in shared memory. query, output: slots for each warpgroup; key, value: rings.
Tiles = namedtuple("Tiles", "query key value output")
# Columns of tensor memory, for each warpgroup: scores and outputs in float32, weights in Q's dtype.
Columns = namedtuple("Columns", "scores weights output")
# A tile of queries. row: of its first query. kv_head, batch: of its keys. seq_len_kv: how many keys there are.
QueryTile = namedtuple("QueryTile", "row kv_head batch seq_len_kv")


@gluon.jit
def rescale(output, factor):
    """Multiply the rows of an output [query, head_dim] by a factor [query], some columns at a time."""
    by = gl.convert_layout(factor, gl.SliceLayout(1, output.slice(0, AT_ONCE_2).get_reg_layout()))[:, None]
    for column in gl.static_range(0, HEAD_DIM, AT_ONCE_2):
        some = output.slice(column, AT_ONCE_2)
        some.store(some.load() * by)


@gluon.jit
def fetch_tile(array, ring, full, query_tile, j, iteration):
    """Ask TMA for the j-th tile of keys or values, into the slot of tile ``iteration``."""
    stage = iteration % STAGES
    mbarrier.expect(full.index(stage), array.nbytes_per_cta)
    tma.async_load(array, [query_tile.batch, query_tile.kv_head, j * TILE_KEY, 0], full.index(stage), ring.index(stage))


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
    barriers = gl.allocate_shared_memory(gl.int64, [WARPGROUPS, 2], mbarrier.MBarrierLayout([[1]]))
    mbarrier.init(barriers.index(0), count=1)
    return barriers


@gluon.jit
def exp2(x):
    """2^x, with results below 2^-126 flushed to zero: MUFU.EX2 and nothing around it."""
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit(do_not_specialize=["seq_len_kv", "heads", "tiles_a_head"])
def fmha(Q, K, V, Out, order, starts, scale, seq_len_kv, heads, tiles_a_head):
    # --- shared memory; the output leaves from where Q was ---
    KEYS: gl.constexpr = [STAGES, 1, 1, TILE_KEY, HEAD_DIM]
    queries = gl.allocate_shared_memory(Q.dtype, [WARPGROUPS, 1, 1, ROWS, HEAD_DIM], SHARED)
    keys = gl.allocate_shared_memory(Q.dtype, KEYS, SHARED_KEY)
    values = gl.allocate_shared_memory(Q.dtype, KEYS, SHARED_VALUE)
    tiles = Tiles(queries, keys, values, queries)
    # --- tensor memory ---
    scores_2 = blackwell.allocate_tensor_memory(gl.float32, [WARPGROUPS, ROWS, TILE_KEY], SCORES)
    output = blackwell.allocate_tensor_memory(gl.float32, [WARPGROUPS, ROWS, HEAD_DIM], SUMS)
    WEIGHTS: gl.constexpr = [WARPGROUPS, ROWS, TILE_KEY]
    columns = Columns(scores_2, blackwell.allocate_tensor_memory(Q.dtype, WEIGHTS, SCORES), output)
    # mbarriers of tiles that TMA brings, and of products.
    query_full, key_full = joint_ring(WARPGROUPS), joint_ring(STAGES)
    value_full, scores_full = joint_ring(STAGES), cluster_ring()
    output_full = cluster_ring()
    barriers = Barriers(query_full, key_full, value_full, scores_full, output_full)
    # --- a tile of queries, a tile of keys after the other; a product is begun, and waited for at once ---
    n = gl.program_id(0)
    # (head, batch) and index of a tile of queries in its head, from the tile's number.
    head = n // tiles_a_head
    head, batch, i = head % heads, head // heads, n % tiles_a_head
    query_tile = QueryTile(i * TILE_QUERY, head, batch, seq_len_kv)
    # (whole, end): tiles of keys [0, whole) need no mask, tiles [whole, end) do.
    whole = query_tile.seq_len_kv // TILE_KEY
    end = gl.cdiv(query_tile.seq_len_kv, TILE_KEY)
    # Ask TMA for a warpgroup's queries.
    full = barriers.query_full.index(0)
    mbarrier.expect(full, Q.nbytes_per_cta)
    tma.async_load(Q, [query_tile.batch, head, query_tile.row, 0], full, tiles.query.index(0))
    for j in gl.static_range(STAGES):
        if j < end:
            fetch_tile(K, tiles.key, barriers.key_full, query_tile, j, j)
            fetch_tile(V, tiles.value, barriers.value_full, query_tile, j, j)
    scores_at = columns.scores.index(0)
    weights_at = columns.weights.index(0)
    output_at = columns.output.index(0)
    ROW: gl.constexpr = gl.SliceLayout(1, scores_at.get_reg_layout())
    row_max, row_sum = gl.full([ROWS], LEAST, gl.float32, ROW), gl.full([ROWS], 0.0, gl.float32, ROW)
    mbarrier.wait(barriers.query_full.index(0), 0)
    for j in range(0, whole):
        # --- scores: QK product ---
        mbarrier.wait(barriers.key_full.index(j % STAGES), j // STAGES & 1)
        # Begin a QK product [query, key]. ``scores_full`` completes when it, and all that was begun before, has ended.
        query = tiles.query.index(0).reshape([ROWS, HEAD_DIM])
        key = tiles.key.index(j % STAGES).reshape([TILE_KEY, HEAD_DIM]).permute((1, 0))
        into, done = columns.scores.index(0), barriers.scores_full.index(0)
        blackwell.tcgen05_mma(query, key, into, use_acc=False, mbarriers=[done])
        mbarrier.wait(barriers.scores_full.index(0), j & 1)
        if j + STAGES < end:
            fetch_tile(K, tiles.key, barriers.key_full, query_tile, j + STAGES, j)
        scores = scores_at.load()
        # --- online softmax ---
        new_max = gl.maximum(row_max, gl.max(scores, 1) * scale)
        row_max, correction = new_max, exp2(row_max - new_max)
        weights = exp2(scores * scale - row_max[:, None])
        # The sums [query] so far, and those of one more tile of weights [query, key].
        total = gl.sum(gl.sum(gl.reshape(weights, [ROWS, TILE_KEY // 16, 16]), 2), 1)
        row_sum = row_sum * correction + gl.convert_layout(total, row_sum.type.layout)
        weights = gl.convert_layout(weights.to(tiles.key.dtype), weights_at.get_reg_layout())
        if j > 0:
            rescale(output_at, correction)
        weights_at.store(weights)
        # --- output: PV product ---
        mbarrier.wait(barriers.value_full.index(j % STAGES), j // STAGES & 1)
        # The weights of both CTAs are there, their outputs are rescaled, and their scores are read:
        # a product of both reads and writes in both.
        hopper.cluster.barrier()
        # Begin a PV product. ``output_full`` tells of its end.
        value = tiles.value.index(j % STAGES).reshape([TILE_KEY, HEAD_DIM])
        into, done = columns.output.index(0), barriers.output_full.index(0)
        blackwell.tcgen05_mma(weights_at, value, into, use_acc=j > 0, mbarriers=[done])
        mbarrier.wait(barriers.output_full.index(0), j & 1)
        if j + STAGES < end:
            fetch_tile(V, tiles.value, barriers.value_full, query_tile, j + STAGES, j)
    # Multiply a warpgroup's output by a factor [query], and let TMA store it, from where its Q was, in panels.
    PANELS: gl.constexpr = [HEAD_DIM // AT_ONCE_2, 1, 1, ROWS, AT_ONCE_2]
    output = columns.output.index(0)
    # A factor [query] as [query, 1], to multiply as many columns of the output as are in registers at once.
    by = gl.convert_layout(1.0 / row_sum, gl.SliceLayout(1, output.slice(0, AT_ONCE_2).get_reg_layout()))[:, None]
    panels = tiles.output.index(0).reinterpret(tiles.output.dtype, PANELS, SHARED)
    # Multiply an output by a number, or numbers [query, 1], and store it in shared memory, from which TMA takes it.
    for n_2 in gl.static_range(HEAD_DIM // AT_ONCE_2):
        some_2 = output.slice(n_2 * AT_ONCE_2, AT_ONCE_2).load() * by
        panels.index(n_2).reshape([ROWS, AT_ONCE_2]).store(some_2.to(panels.dtype))
    fence_async_shared()
    for n_2 in gl.static_range(PANELS[0]):
        tma.async_store(Out, [query_tile.batch, head, query_tile.row, n_2 * AT_ONCE_2], panels.index(n_2))
    tma.store_wait(0)


def expect(name, wanted, came, fits=None):
    """Raise ValueError unless this fits; where nothing is said of that, unless what came is what is wanted."""
    if not (came == wanted if fits is None else fits):
        raise ValueError(f"{name}: expected {wanted}, got {came}")


def attention(q, k, v, scale=None):
    """softmax(scale * q @ k^T) @ v, as q. scale: above 0; None means 1 / sqrt(head_dim)."""
    shapes = {"q": [*q.shape[:3], D], "k": [*q.shape[:2], *k.shape[2:3], D], "v": [*k.shape]}
    for (name, shape), x in zip(shapes.items(), (q, k, v)):
        expect(name, f"torch.float16 {shape} on {q.device}", f"{x.dtype} {[*x.shape]} on {x.device}")
        expect(name, "data that begin at a multiple of 16 bytes", hex(x.data_ptr()), x.data_ptr() % 16 == 0)
        fits = x.stride(3) == 1 and all(n > 0 and n % 8 == 0 for n in x.stride()[:3])
        expect(name, "strides in steps of 16 bytes, and a last one of 1", x.stride(), fits)
    expect("q", "a tensor on a GPU", f"one on {q.device}", q.device.type == "cuda")
    expect("q and k", "no length of 0", f"{[*q.shape]} and {[*k.shape]}", min(*q.shape, *k.shape) > 0)
    expect("k", f"a multiple of {TILE_K} keys", k.shape[2], k.shape[2] % TILE_K == 0)
    scale = 1 / math.sqrt(D) if scale is None else scale
    expect("scale", "a number above 0", scale, scale > 0)
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    tiles, lines = -(-q.shape[2] // TILE_Q), q.shape[0] * q.shape[1]  # of a head; heads of all batches
    blocks = tiles * lines
    lists = 2 * (torch.empty(1, dtype=torch.int32, device=q.device),)  # nobody reads them
    queries = TensorDescriptor.from_tensor(q, [1, 1, ROWS.value, D], SHARED.value)
    output = TensorDescriptor.from_tensor(o, [1, 1, ROWS.value, 64], SHARED.value)
    keys = TensorDescriptor.from_tensor(k, [1, 1, TILE_K, D], SHARED.value)
    values = TensorDescriptor.from_tensor(v, [1, 1, TILE_K, D], SHARED_VALUE.value)
    numbers = (scale / math.log(2), k.shape[2], q.shape[1], tiles)  # the kernel's scale is in base 2
    arguments = (queries, keys, values, output, *lists, *numbers)
    with torch.cuda.device(q.device):
        fmha[(blocks, 1, 1)](*arguments, num_warps=4, num_ctas=2, enable_fp_fusion=True)
    return o


def exact(q, k, v):
    """Attention in float64, a head of Q at a time."""
    o = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    for b, h in itertools.product(*map(range, q.shape[:2])):
        queries, keys, values = (x.double() for x in (q[b, h], k[b, h], v[b, h]))
        scores = queries @ keys.T / math.sqrt(D)
        o[b, h] = scores.softmax(1) @ values
    return o


def main():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (10, 0):
        print("this program needs an NVIDIA GPU of compute capability 10.0 (B200)", file=sys.stderr)
        return 2
    q, k, v = (torch.randn((4, 32, 4096, 128), dtype=torch.float16, device="cuda") for _ in range(3))
    v += 0.5  # so that the mean of the output is not zero
    ours = partial(attention, q, k, v)
    theirs = partial(torch.nn.functional.scaled_dot_product_attention, q, k, v, is_causal=False)
    for name, mine, its, wanted in [("o", ours(), theirs(), exact(q, k, v))]:
        step = torch.finfo(mine.dtype).eps * 2.0 ** math.floor(math.log2(wanted.abs().max()))  # of rounding
        error, limit = (mine - wanted).abs().max(), 2 * (its - wanted).abs().max() + step
        judged = "right" if error <= limit else "WRONG"
        print(f"two_cta_mma: {name} {judged}, error {error:.3g}, at most {limit:.3g} is allowed")
        if judged == "WRONG":
            return 1
    mine, its = (do_bench(function, return_mode="median") for function in (ours, theirs))  # milliseconds
    told = [f"{ms:.4f} ms, {1_099_511_627_776 / 1e9 / ms:.1f} TFLOPS" for ms in (mine, its)]  # of the matrix products
    print(f"two_cta_mma: {told[0]}; SDPA: {told[1]}; {its / mine:.2f} times as fast")
    return 0


if __name__ == "__main__":
    sys.exit(main())
