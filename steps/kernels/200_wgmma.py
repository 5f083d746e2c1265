"""Attention in Gluon, with its launch, for an NVIDIA GPU of compute capability 9.0 (H100, H200).

    attention(q, k, v, scale=None) -> o

Compiled in: head_dim 128, float16, a causal mask. Batch, heads and lengths may be others, as far as the checks say; the
launch is chosen for the problem at the end. Tensors are [batch, heads, length, head_dim]. Query i sees keys 0 to i,
also where the lengths differ. There is no autograd. It needs PyTorch and Triton 3.9. Not included: the tutorial's hook
in Triton that rewrites PTX (descriptors of wgmma, barriers).

Roles are called by their functions, with a number. TMA arrives when its bytes are there.
barrier     slots  arrivals  who arrives     who waits, and its first parity  complete when
key_full    2      1         all warps, TMA  all warps: 0                     key: filled
query_full  1      1         all warps, TMA  all warps: 0                     query: filled
value_full  2      1         all warps, TMA  all warps: 0                     value: filled
Bytes of shared memory: query 32,768, key 65,536, value 65,536, barriers 40; together 163,880.

Made from step 200 wgmma (TMA and wgmma) of the FMHA tutorial by
python -m steps.export wgmma --head-dim 128 --seq-len 4096 --dtype float16 --causal
With --head-dim 64 it writes: HEAD_DIM 64; VALUE_DIM 64; other layouts OUTPUT, WEIGHTS.
"""

import itertools
import math
import sys
from collections import namedtuple
from functools import partial

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.testing import do_bench

STAGES, TILE_QUERY, QUERY_STAGES, ROWS, HEAD_DIM, TILE_KEY = map(gl.constexpr, (2, 128, 1, 128, 128, 128))
VALUE_DIM, LEAST = map(gl.constexpr, (128, -3.4028234663852886e38))
D, TILE_Q, TILE_K = HEAD_DIM.value, TILE_QUERY.value, TILE_KEY.value
SHARED = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4))
ACCUMULATOR = OUTPUT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [8, 1], [16, 128, 16]))
WEIGHTS = gl.constexpr(gl.DotOperandLayout(operand_index=0, parent=ACCUMULATOR, k_width=2))

# Q, K, V and the output in global memory, as TMA knows them: described by shape, strides and box.
Arrays = namedtuple("Arrays", "query key value")
# mbarriers of a slot. full: TMA has filled it. empty, if any: all warpgroups have read it.
Barriers = namedtuple("Barriers", "query_full key_full value_full")
# A tile of queries. row: of its first query. kv_head, batch: of its keys. seq_len_kv: how many keys there are.
QueryTile = namedtuple("QueryTile", "row kv_head batch seq_len_kv")
# Tiles in shared memory. query, output: slots for each warpgroup; key, value: rings.
Tiles = namedtuple("Tiles", "query key value output")


@gluon.jit
def tiles_to_visit(first_query, seq_len_kv):
    """(whole, end): tiles of keys [0, whole) need no mask, tiles [whole, end) do."""
    whole = seq_len_kv // TILE_KEY
    end = gl.cdiv(seq_len_kv, TILE_KEY)
    whole = gl.minimum(whole, first_query // TILE_KEY)
    end = gl.minimum(end, gl.cdiv(first_query + TILE_QUERY, TILE_KEY))
    return whole, end


@gluon.jit
def exp2(x):
    """2^x, with results below 2^-126 flushed to zero: MUFU.EX2 and nothing around it."""
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def barrier_ring(length: gl.constexpr):
    """A ring of mbarriers; each completes after the given number of arrivals."""
    barriers = gl.allocate_shared_memory(gl.int64, [length, 1], mbarrier.MBarrierLayout())
    for n in gl.static_range(length):
        mbarrier.init(barriers.index(n), count=1)
    return barriers


@gluon.jit
def fetch(array, ring, full, head, batch, row, stage):
    """Ask TMA for a tile of keys or values, which begins at this row, into a slot of their ring."""
    mbarrier.expect(full.index(stage), array.nbytes_per_cta)
    tma.async_load(array, [batch, head, row, 0], full.index(stage), ring.index(stage))


@gluon.jit
def fetch_both(arrays, tiles, barriers, query_tile, j, stage):
    """Ask for the j-th tile of keys and of values."""
    row = j * TILE_KEY
    fetch(arrays.key, tiles.key, barriers.key_full, query_tile.kv_head, query_tile.batch, row, stage)
    fetch(arrays.value, tiles.value, barriers.value_full, query_tile.kv_head, query_tile.batch, row, stage)


@gluon.jit(do_not_specialize=["seq_len_kv", "heads", "tiles_a_head"])
def fmha(Q, K, V, Out, order, starts, scale, seq_len_kv, heads, tiles_a_head):
    arrays = Arrays(Q, K, V)
    # Slots in shared memory for tiles of queries, keys, values and the output.
    queries = gl.allocate_shared_memory(Q.dtype, [QUERY_STAGES, 1, 1, ROWS, HEAD_DIM], SHARED)
    keys = gl.allocate_shared_memory(Q.dtype, [STAGES, 1, 1, TILE_KEY, HEAD_DIM], SHARED)
    values = gl.allocate_shared_memory(Q.dtype, [STAGES, 1, 1, TILE_KEY, VALUE_DIM], SHARED)
    tiles = Tiles(queries, keys, values, queries)
    query_full, key_full, value_full = barrier_ring(1), barrier_ring(STAGES), barrier_ring(STAGES)
    barriers = Barriers(query_full, key_full, value_full)
    fence_async_shared()  # TMA sees the barriers
    # --- the first copies are under way before anything is computed ---
    number = gl.program_id(0)
    head = number // tiles_a_head
    head, batch, i = head % heads, head // heads, number % tiles_a_head
    query_tile = QueryTile(i * TILE_QUERY, head, batch, seq_len_kv)
    _, tiles_seen = tiles_to_visit(query_tile.row, seq_len_kv)
    # Ask TMA for a tile of queries, a copy for each warpgroup; the barrier completes when all of it is there.
    full = barriers.query_full.index(0)
    mbarrier.expect(full, arrays.query.nbytes_per_cta)
    tma.async_load(arrays.query, [batch, head, query_tile.row, 0], full, tiles.query.index(0))
    for stage in gl.static_range(STAGES):
        if stage < tiles_seen:
            fetch_both(arrays, tiles, barriers, query_tile, stage, stage)
    # A loop of one iteration, as where blocks stay: without it ptxas keeps more in registers under a mask.
    n = gl.program_id(0)
    last = n + 1
    iteration = 0  # tiles of keys so far: tells the slot in the ring, and how often it was filled
    while n < last:
        # (head, batch) and index of a tile of queries in its head, from the tile's number.
        head = n // tiles_a_head
        head, batch, i = head % heads, head // heads, n % tiles_a_head
        query_tile = QueryTile(i * TILE_QUERY, head, batch, seq_len_kv)
        mbarrier.wait(barriers.query_full.index(0), 0)
        query = tiles.query.index(0).reshape([ROWS, HEAD_DIM])
        # Attention of a block's queries to the keys that they see, a tile after the other.
        ROW: gl.constexpr = gl.SliceLayout(1, ACCUMULATOR)
        row_max, row_sum = gl.full([ROWS], LEAST, gl.float32, ROW), gl.full([ROWS], 0.0, gl.float32, ROW)
        accumulator = gl.full([ROWS, VALUE_DIM], 0.0, gl.float32, OUTPUT)
        whole, end = tiles_to_visit(query_tile.row, query_tile.seq_len_kv)
        # Two loops from one text: over whole tiles, and over those that need the mask.
        for masked in gl.static_range(2):
            for j in range(whole if masked else 0, end if masked else whole):
                # --- scores: QK product ---
                mbarrier.wait(barriers.key_full.index(iteration % STAGES), iteration // STAGES & 1)
                # Begin the QK product [query, key]. K and Q lie in shared memory.
                none = gl.full([ROWS, TILE_KEY], 0.0, gl.float32, ACCUMULATOR)
                key = tiles.key.index(iteration % STAGES).reshape([TILE_KEY, HEAD_DIM])
                scores = warpgroup_mma(query, key.permute((1, 0)), none, use_acc=False, is_async=True)
                scores = warpgroup_mma_wait(0, deps=[scores])
                if masked:
                    # Scores [query, key] with minus infinity where a query must not see a key.
                    query_2 = query_tile.row + gl.arange(0, scores.shape[0], gl.SliceLayout(1, ACCUMULATOR))
                    key_2 = j * TILE_KEY + gl.arange(0, scores.shape[1], gl.SliceLayout(0, ACCUMULATOR))
                    scores = gl.where(key_2[None, :] <= query_2[:, None], scores, float("-inf"))
                # --- online softmax ---
                new_max = gl.maximum(row_max, gl.max(scores, 1) * scale)
                weights, correction, row_max = exp2(scores * scale - new_max[:, None]), exp2(row_max - new_max), new_max
                row_sum = row_sum * correction + gl.sum(weights, 1)
                accumulator = accumulator * gl.convert_layout(correction, gl.SliceLayout(1, OUTPUT))[:, None]
                weights = gl.convert_layout(weights.to(tiles.key.dtype), WEIGHTS)
                # --- output: PV product ---
                mbarrier.wait(barriers.value_full.index(iteration % STAGES), iteration // STAGES & 1)
                # Begin to add the PV product to the output; V lies in shared memory.
                value = tiles.value.index(iteration % STAGES).reshape([TILE_KEY, VALUE_DIM])
                accumulator = warpgroup_mma(weights, value, accumulator, is_async=True)
                accumulator = warpgroup_mma_wait(0, deps=[accumulator])
                gl.barrier()  # all warps have read this tile: fetch a later one into its slot
                if j + STAGES < end:
                    fetch_both(arrays, tiles, barriers, query_tile, j + STAGES, iteration % STAGES)
                iteration += 1
        # --- normalise and store; TMA drops rows past the end ---
        o = (accumulator * gl.convert_layout(1.0 / row_sum, gl.SliceLayout(1, OUTPUT))[:, None]).to(Q.dtype)
        # Hand the output to TMA, which drops rows past the end.
        slot = tiles.output.index(0)
        # Hand columns of the output [query, column] to TMA, by way of their buffer in shared memory once that is free.
        tma.store_wait(0)
        slot.reshape(o.shape).store(o)
        fence_async_shared()
        tma.async_store(Out, [batch, head, query_tile.row, 0], slot)
        tma.store_wait(0)
        n += 1
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
    queries, output = (TensorDescriptor.from_tensor(x, [1, 1, ROWS.value, D], SHARED.value) for x in (q, o))
    keys, values = (TensorDescriptor.from_tensor(x, [1, 1, TILE_K, D], SHARED.value) for x in (k, v))
    numbers = (scale / math.log(2), k.shape[2], q.shape[1], tiles)  # the kernel's scale is in base 2
    arguments = (queries, keys, values, output, *lists, *numbers)
    with torch.cuda.device(q.device), triton.knobs.nvidia.scope():
        triton.knobs.nvidia.ptxas_blackwell = triton.knobs.nvidia.ptxas.path  # the older ptxas: it spills less
        fmha[(blocks, 1, 1)](*arguments, num_warps=8, enable_fp_fusion=True)
    return o


def exact(q, k, v):
    """Attention in float64, a head of Q at a time."""
    o = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    for b, h in itertools.product(*map(range, q.shape[:2])):
        queries, keys, values = (x.double() for x in (q[b, h], k[b, h], v[b, h]))
        scores = queries @ keys.T / math.sqrt(D)
        scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -math.inf)
        o[b, h] = scores.softmax(1) @ values
    return o


def main():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        print("this program needs an NVIDIA GPU of compute capability 9.0 (H100, H200)", file=sys.stderr)
        return 2
    q, k, v = (torch.randn((4, 32, 4096, 128), dtype=torch.float16, device="cuda") for _ in range(3))
    v += 0.5  # so that the mean of the output is not zero
    ours = partial(attention, q, k, v)
    theirs = partial(torch.nn.functional.scaled_dot_product_attention, q, k, v, is_causal=True)
    for name, mine, its, wanted in [("o", ours(), theirs(), exact(q, k, v))]:
        step = torch.finfo(mine.dtype).eps * 2.0 ** math.floor(math.log2(wanted.abs().max()))  # of rounding
        error, limit = (mine - wanted).abs().max(), 2 * (its - wanted).abs().max() + step
        judged = "right" if error <= limit else "WRONG"
        print(f"wgmma: {name} {judged}, error {error:.3g}, at most {limit:.3g} is allowed")
        if judged == "WRONG":
            return 1
    mine, its = (do_bench(function, return_mode="median") for function in (ours, theirs))  # milliseconds
    told = [f"{ms:.4f} ms, {549_755_813_888 / 1e9 / ms:.1f} TFLOPS" for ms in (mine, its)]  # of the matrix products
    print(f"wgmma: {told[0]}; SDPA: {told[1]}; {its / mine:.2f} times as fast")
    return 0


if __name__ == "__main__":
    sys.exit(main())
