"""Attention in Gluon, with its launch, for an NVIDIA GPU of compute capability 9.0 (H100, H200).

    attention(q, k, v, q_scale, k_scale, v_scale, scale=None) -> o

Compiled in: head_dim 128, float8_e4m3fn, a causal mask. Batch, heads and lengths may be others, as far as the checks
say; the launch is chosen for the problem at the end. Tensors are [batch, heads, length, head_dim]. Scales, float32
[batch, kv_heads], multiply q, k and v. Query i sees keys 0 to i, also where the lengths differ. There is no autograd.
It needs PyTorch and Triton 3.9. Not included: the tutorial's hook in Triton that rewrites PTX (descriptors of wgmma,
barriers).

Roles are called by their functions, with a number. TMA arrives when its bytes are there. gdc_wait awaits the kernel
before, and gdc_launch_dependents lets the next one begin.
barrier        slots  arrivals  who arrives           who waits, and its first parity  complete when
key_empty      2      2         consume 0, consume 1  produce 2: 1                     key: read
key_full       2      1         produce 2, TMA        consume 0: 0, consume 1: 0       key: filled
nobody         1      1                               consume 0: 1, consume 1: 1
query_empty    2      2         consume 0, consume 1  produce 2: 1                     query: read
query_full     2      1         produce 2, TMA        consume 0: 0, consume 1: 0       query: filled
value_empty    2      2         consume 0, consume 1  produce 2: 1                     value: read
value_full     2      1         produce 2, TMA        consume 0: 0, consume 1: 0       value: filled
kernel before                                         produce 2
Bytes of shared memory: query 32,768, key 32,768, value 32,768, output 32,768, barriers 104; together 131,176.

Made from step 305 two_level_accumulation (Two-level accumulation) of the FMHA tutorial by
python -m steps.export two_level_accumulation --head-dim 128 --seq-len 4096 --dtype float8_e4m3fn --causal
With --head-dim 64 it writes: HEAD_DIM 64; VALUE_ROWS 64; other layouts SHARED, OUTPUT, WEIGHTS; other lines in
attention.
"""

import heapq
import itertools
import math
import sys
from collections import namedtuple
from functools import lru_cache, partial

import torch
import triton
from torch.nn.functional import scaled_dot_product_attention
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.testing import do_bench

FOUR, WIDE, HEAD_DIM, WARPS, KEYS, QUERY_STAGES, WARPGROUPS = map(gl.constexpr, (4, 16, 128, 4, 128, 2, 2))
ROWS, STAGES, TILE_KEY, VALUE_ROWS, VALUE_COLUMNS, TILE_QUERY = map(gl.constexpr, (64, 2, 128, 128, 128, 128))
LEAST, OFFSET = map(gl.constexpr, (-3.4028234663852886e38, 8))
D, TILE_Q, TILE_K = HEAD_DIM.value, TILE_QUERY.value, TILE_KEY.value
FOUR_TO_E4M3 = gl.constexpr(
    "{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, $2, $1; cvt.rn.satfinite.e4m3x2.f32 "
    "high, $4, $3; mov.b32 $0, {low, high}; }")  # fmt: skip
SHARED = SHARED_VALUE = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=8, rank=4))
SHARED_OUTPUT = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4))
ACCUMULATOR = OUTPUT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 32]))
WEIGHTS = gl.constexpr(gl.DotOperandLayout(operand_index=0, parent=ACCUMULATOR, k_width=4))

# Q, K, V and the output in global memory, as TMA knows them: described by shape, strides and box.
Arrays = namedtuple("Arrays", "query key value output")
# What is to be computed: lists of tiles (order, starts), sizes, and the scales [batch, kv_head] of Q, K and V.
Work = namedtuple("Work", "order starts heads tiles_a_head seq_len_kv query_scale key_scale value_scale")
# Tiles in shared memory. query, output: slots for each warpgroup; key, value: rings.
Tiles = namedtuple("Tiles", "query key value output")
# mbarriers of a slot. full: TMA has filled it. empty, if any: all warpgroups have read it. nobody: there nobody
# arrives, so a wait for parity 1 passes, and the compiler moves nothing over it.
Barriers = namedtuple("Barriers", "query_full query_empty key_full key_empty value_full value_empty nobody")


@gluon.jit
def fours(kept):
    """Weights [query, key] in e4m3 from int32 [query, key / 4]: the same bits, so that LLVM leaves nothing of it."""
    halves = gl.join(kept.to(gl.int16), (kept >> 16).to(gl.int16))
    quarters = gl.join(halves.to(gl.int8), (halves >> 8).to(gl.int8))
    weights = quarters.reshape([kept.shape[0], 4 * kept.shape[1]]).to(gl.float8e4nv, bitcast=True)
    return gl.convert_layout(weights, WEIGHTS, assert_trivial=True)


@gluon.jit
def keep_fours(weights):
    """Weights [query, key] in e4m3, as int32 [query, key / 4], in the order in which V was transposed."""
    ordered = weights.reshape([weights.shape[0], weights.shape[1] // 16, 2, 4, 2]).permute((0, 1, 3, 2, 4))
    even, odd = ordered.reshape([weights.shape[0], weights.shape[1] // 4, 2, 2]).split()
    first, third = even.split()
    second, fourth = odd.split()
    fours = [first, second, third, fourth]
    return gl.inline_asm_elementwise(FOUR_TO_E4M3, "=r,f,f,f,f", fours, dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def issue_alone(weights, value):
    """The tensor cores add up one tile of keys."""
    none = gl.full([ROWS, HEAD_DIM], 0.0, gl.float32, OUTPUT)
    return warpgroup_mma(weights, value, none, use_acc=False, is_async=True)


@gluon.jit
def tiles_to_visit(first_query, seq_len_kv):
    """(whole, end), of which end is returned: tiles of keys [0, whole) need no mask, tiles [whole, end) do."""
    return gl.minimum(gl.cdiv(seq_len_kv, TILE_KEY), gl.cdiv(first_query + TILE_QUERY, TILE_KEY))


@gluon.jit
def exp2(x):
    """2^x, with results below 2^-126 flushed to zero: MUFU.EX2 and nothing around it."""
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def sum_own(weights):
    """Sums [query, 4] of what each of the four lanes that share a row holds of it; no lane asks another."""
    eights = gl.reshape(weights, [weights.shape[0], weights.shape[1] // 8, 4, 2])  # of 8 columns a lane has 2
    return gl.sum(gl.sum(eights, 3), 1)


@gluon.jit
def barrier_ring(length: gl.constexpr, arrivals: gl.constexpr):
    """A ring of mbarriers; each completes after the given number of arrivals."""
    barriers = gl.allocate_shared_memory(gl.int64, [length, 1], mbarrier.MBarrierLayout())
    for n in gl.static_range(length):
        mbarrier.init(barriers.index(n), count=arrivals)
    return barriers


@gluon.jit
def place(work, n):
    """Of the n-th tile of queries in the order: (head, batch, first query)."""
    number = gl.load(work.order + n)
    head = number // work.tiles_a_head
    return head % work.heads, head // work.heads, number % work.tiles_a_head * TILE_QUERY


@gluon.jit(do_not_specialize=["seq_len_kv", "kv_heads"])
def transpose(V, strides, Out, seq_len_kv, kv_heads, padded, head_dim):
    """A block turns ``KEYS`` keys of a head. padded: keys of a row of Out; behind seq_len_kv they are zeros."""
    gdc_launch_dependents()
    IN: gl.constexpr = gl.BlockedLayout([FOUR, WIDE], [32 * WIDE // HEAD_DIM, HEAD_DIM // WIDE], [WARPS, 1], [1, 0])
    OUT: gl.constexpr = gl.BlockedLayout([1, WIDE], [32 * WIDE // KEYS, KEYS // WIDE], [WARPS, 1], [1, 0])
    first, head, batch = gl.program_id(0) * KEYS, gl.program_id(1), gl.program_id(2).to(gl.int64)
    # Which key stands at a place in memory: the order in which a lane has the weights.
    place_2 = first + gl.arange(0, KEYS, gl.SliceLayout(1, IN))
    key_at = place_2 - place_2 % 16 + (place_2 // 2 % 2) * 8 + (place_2 // 4 % 4) * 2 + (place_2 % 2)
    key = key_at[:, None]
    column = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, IN))[None, :]
    begin = V + (batch * strides[0] + head * strides[1] + first.to(gl.int64) * strides[2])
    there = (key < seq_len_kv) & (column < head_dim)
    value = gl.load(begin + ((key - first) * strides[2] + column * strides[3]), mask=there, other=0.0)
    value = gl.convert_layout(value.permute((1, 0)), OUT)
    row = gl.arange(0, HEAD_DIM, gl.SliceLayout(1, OUT))[:, None]
    place = first + gl.arange(0, KEYS, gl.SliceLayout(0, OUT))[None, :]
    begin = Out + (batch * kv_heads + head) * head_dim * padded
    gl.store(begin + (row * padded + place), value, mask=(row < head_dim) & (place < padded))


@gluon.jit
def produce(arrays, tiles, barriers, work):
    """The producer: fetches the tiles of this block, each as soon as its slot is empty."""
    iteration, query_iteration = 0, 0
    # The part [first, last) of the order that was dealt to this block.
    n = gl.program_id(0)
    last = gl.load(work.starts + n + 1)
    n = gl.load(work.starts + n)
    while n < last:
        head, batch, row = place(work, n)
        end = tiles_to_visit(row, work.seq_len_kv)
        empty = barriers.query_empty.index(query_iteration % QUERY_STAGES)
        mbarrier.wait(empty, query_iteration // QUERY_STAGES & 1 ^ 1)
        # Ask TMA for a tile of queries, a copy for each warpgroup; the barrier completes when all of it is there.
        query_stage = query_iteration % QUERY_STAGES
        full_2 = barriers.query_full.index(query_stage)
        mbarrier.expect(full_2, WARPGROUPS * arrays.query.nbytes_per_cta)
        for warpgroup in gl.static_range(WARPGROUPS):
            at_2 = [batch, head, row + warpgroup * ROWS, 0]
            tma.async_load(arrays.query, at_2, full_2, tiles.query.index(query_stage * WARPGROUPS + warpgroup))
        for j in range(end):
            key = (end - 1 - j) * TILE_KEY
            stage = iteration % STAGES
            used = iteration // STAGES & 1 ^ 1
            mbarrier.wait(barriers.key_empty.index(stage), used)
            # Ask TMA for a tile of keys or values, which begins at this row, into a slot of their ring.
            mbarrier.expect(barriers.key_full.index(stage), arrays.key.nbytes_per_cta)
            tma.async_load(arrays.key, [batch, head, key, 0], barriers.key_full.index(stage), tiles.key.index(stage))
            mbarrier.wait(barriers.value_empty.index(stage), used)
            if iteration == 0:
                gdc_wait()
            full = barriers.value_full.index(stage)
            mbarrier.expect(full, arrays.value.nbytes_per_cta)
            tma.async_load(arrays.value, [batch, head, 0, key], full, tiles.value.index(stage))
            iteration += 1
        n = n + 1
        query_iteration += 1


@gluon.jit
def issue_scores(tiles, query_iteration, iteration, warpgroup: gl.constexpr):
    """Begin the QK product [query, key] of these queries and tile ``iteration`` of the keys."""
    query = tiles.query.index(query_iteration % QUERY_STAGES * WARPGROUPS + warpgroup).reshape([ROWS, HEAD_DIM])
    key = tiles.key.index(iteration % STAGES).reshape([TILE_KEY, HEAD_DIM])
    none = gl.full([ROWS, TILE_KEY], 0.0, gl.float32, ACCUMULATOR)
    return warpgroup_mma(query, key.permute((1, 0)), none, use_acc=False, is_async=True)


@gluon.jit
def issue_output(weights, tiles, barriers, iteration):
    """Begin the PV product [query, head_dim] of tile ``iteration``. weights: as ``Values.keep`` keeps them."""
    weights = fours(weights)
    mbarrier.wait(barriers.value_full.index(iteration % STAGES), iteration // STAGES & 1)
    value = tiles.value.index(iteration % STAGES).reshape([HEAD_DIM, TILE_KEY]).permute((1, 0))
    return issue_alone(weights, value)


@gluon.jit
def consume(arrays, tiles, barriers, work, scale, warpgroup: gl.constexpr):
    """A consumer warpgroup: its rows of every tile of queries that is this block's."""
    output = tiles.output.index(warpgroup)
    iteration, query_iteration = 0, 0  # tiles of keys, and of queries, so far
    # The part [first, last) of the order that was dealt to this block.
    n = gl.program_id(0)
    last = gl.load(work.starts + n + 1)
    n = gl.load(work.starts + n)
    mbarrier.wait(barriers.query_full.index(0), 0)
    mbarrier.wait(barriers.key_full.index(0), 0)
    scores = issue_scores(tiles, 0, 0, warpgroup)
    while n < last:
        head, batch, row = place(work, n)
        line = batch * work.heads + head
        scale_of_head = scale * (gl.load(work.query_scale + line) * gl.load(work.key_scale + line))
        end = tiles_to_visit(row, work.seq_len_kv)
        row += warpgroup * ROWS
        # --- the first tile ---
        scores_2 = warpgroup_mma_wait(0, deps=[scores])
        mbarrier.arrive(barriers.key_empty.index(iteration % STAGES), count=1)
        # Scores [query, key] with minus infinity where a query must not see a key.
        query = row + gl.arange(0, scores_2.shape[0], gl.SliceLayout(1, ACCUMULATOR))
        key = (end - 1) * TILE_KEY + gl.arange(0, scores_2.shape[1], gl.SliceLayout(0, ACCUMULATOR))
        scores_2 = gl.where(key[None, :] <= query[:, None], scores_2, float("-inf"))
        row_max = gl.full([ROWS], LEAST, gl.float32, gl.SliceLayout(1, ACCUMULATOR))
        row_max = gl.maximum(row_max, gl.max(scores_2, 1) * scale_of_head - OFFSET)
        weights = exp2(scores_2 * scale_of_head - row_max[:, None])
        row_sum = sum_own(weights)
        weights = keep_fours(weights)
        total, before = gl.full([ROWS, HEAD_DIM], 0.0, gl.float32, OUTPUT), gl.full([ROWS, 1], 1.0, gl.float32, OUTPUT)
        for j in range(1, end):
            # --- issue: scores of this tile, output of the tile before ---
            mbarrier.wait(barriers.key_full.index((iteration + 1) % STAGES), (iteration + 1) // STAGES & 1)
            scores_2 = issue_scores(tiles, query_iteration, iteration + 1, warpgroup)
            product_2 = issue_output(weights, tiles, barriers, iteration)
            scores_2 = warpgroup_mma_wait(1, deps=[scores_2])
            mbarrier.arrive(barriers.key_empty.index((iteration + 1) % STAGES), count=1)
            # --- online softmax, while the output is computed ---
            new_max = gl.maximum(row_max, gl.max(scores_2, 1) * scale_of_head - OFFSET)
            correction = exp2(row_max - new_max)
            mbarrier.wait(barriers.nobody.index(0), 1)
            product_2, row_max, correction = warpgroup_mma_wait(0, deps=[product_2, new_max, correction])
            mbarrier.arrive(barriers.value_empty.index(iteration % STAGES), count=1)
            rescaling = gl.convert_layout(correction, gl.SliceLayout(1, OUTPUT))[:, None]
            total = total * before + product_2
            before = rescaling
            weights = exp2(scores_2 * scale_of_head - row_max[:, None])
            # What each lane holds of the sums so far, and of one more tile.
            own = gl.convert_layout(correction, gl.SliceLayout(1, row_sum.type.layout))
            row_sum = row_sum * own[:, None] + sum_own(weights)
            weights = keep_fours(weights)
            iteration += 1
        mbarrier.arrive(barriers.query_empty.index(query_iteration % QUERY_STAGES), count=1)
        n = n + 1
        query_iteration += 1
        # --- issue: the first scores for the next queries, the last output for these ---
        if n < last:
            mbarrier.wait(
                barriers.query_full.index(query_iteration % QUERY_STAGES), query_iteration // QUERY_STAGES & 1
            )
            mbarrier.wait(barriers.key_full.index((iteration + 1) % STAGES), (iteration + 1) // STAGES & 1)
        scores = issue_scores(tiles, query_iteration, iteration + 1, warpgroup)
        product = issue_output(weights, tiles, barriers, iteration)
        product = warpgroup_mma_wait(0, deps=[product])
        mbarrier.arrive(barriers.value_empty.index(iteration % STAGES), count=1)
        iteration += 1
        # --- normalise and store; TMA drops rows past the end ---
        row_sum = gl.convert_layout(gl.sum(row_sum, 1), gl.SliceLayout(1, ACCUMULATOR))
        total = total * before + product
        factor = gl.convert_layout(gl.load(work.value_scale + line) / row_sum, gl.SliceLayout(1, OUTPUT))[:, None]
        o = (total * factor).to(output.dtype)
        tma.store_wait(0)
        output.reshape(o.shape).store(o)
        fence_async_shared()
        tma.async_store(arrays.output, [batch, head, row, 0], output)
    scores = warpgroup_mma_wait(0, deps=[scores])
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["seq_len_kv", "heads", "tiles_a_head"])
def fmha(Q, K, V, Out, query_scale, key_scale, value_scale, order, starts, scale, seq_len_kv, heads, tiles_a_head):
    arrays = Arrays(Q, K, V, Out)
    tiles = Tiles(
        gl.allocate_shared_memory(Q.dtype, [QUERY_STAGES * WARPGROUPS, 1, 1, ROWS, HEAD_DIM], SHARED),
        gl.allocate_shared_memory(Q.dtype, [STAGES, 1, 1, TILE_KEY, HEAD_DIM], SHARED),
        gl.allocate_shared_memory(V.dtype, [STAGES, 1, 1, VALUE_ROWS, VALUE_COLUMNS], SHARED_VALUE),
        gl.allocate_shared_memory(Out.dtype, [WARPGROUPS, 1, 1, ROWS, HEAD_DIM], SHARED_OUTPUT),
    )
    # mbarriers for roles: a slot is full when TMA has filled it, and empty when all warpgroups have read it.
    query_full, query_empty = barrier_ring(QUERY_STAGES, 1), barrier_ring(QUERY_STAGES, WARPGROUPS)
    key_full, key_empty = barrier_ring(STAGES, 1), barrier_ring(STAGES, WARPGROUPS)
    value_full, value_empty, nobody = barrier_ring(STAGES, 1), barrier_ring(STAGES, WARPGROUPS), barrier_ring(1, 1)
    barriers = Barriers(query_full, query_empty, key_full, key_empty, value_full, value_empty, nobody)
    work = Work(order, starts, heads, tiles_a_head, seq_len_kv, query_scale, key_scale, value_scale)
    fence_async_shared()
    gl.warp_specialize([
        (consume, (arrays, tiles, barriers, work, scale, 0)),
        (consume, (arrays, tiles, barriers, work, scale, 1)),
        (produce, (arrays, tiles, barriers, work)),
    ], [4, 1], [240, 24])  # fmt: skip


def expect(name, wanted, came, fits=None):
    """Raise ValueError unless this fits; where nothing is said of that, unless what came is what is wanted."""
    if not (came == wanted if fits is None else fits):
        raise ValueError(f"{name}: expected {wanted}, got {came}")


def deal_in_sections(lengths, firsts, lines, blocks):
    """(when the last block ends, tiles of each): a tile goes to the block that is free first, the longest early."""
    free, dealt = [(0, block) for block in range(blocks)], [[] for _ in range(blocks)]  # free: (when, which)
    for first, end in itertools.pairwise([*firsts, lines]):
        for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
            for head in range(first, end):
                when, block = heapq.heappop(free)
                dealt[block].append(head * len(lengths) + i)
                heapq.heappush(free, (when + lengths[i], block))
    return max(free)[0], dealt


@lru_cache(maxsize=32)
def deal(lines, seq_len_q, seq_len_kv, blocks, device):
    """(order, starts), in sections of heads whose keys and values fit in L2. lengths: tiles of keys, and 1 to begin."""
    lengths = [1 + -(-min(seq_len_kv, row + TILE_Q) // TILE_K) for row in range(0, seq_len_q, TILE_Q)]
    section = max(1, min(lines, int(8 * 2**20 / (2 * 2 * seq_len_kv * D))))  # heads
    firsts = [*range(0, lines, section)]  # heads that sections begin with
    _, dealt = deal_in_sections(lengths, firsts, lines, blocks)
    starts = [0, *itertools.accumulate(map(len, dealt))]
    return tuple(torch.tensor(x, dtype=torch.int32, device=device) for x in ([*itertools.chain(*dealt)], starts))


def attention(q, k, v, q_scale, k_scale, v_scale, scale=None):
    """softmax(scale * q @ k^T) @ v in bfloat16. scale: above 0; None means 1 / sqrt(head_dim)."""
    shapes = {"q": [*q.shape[:3], D], "k": [*q.shape[:2], *k.shape[2:3], D], "v": [*k.shape]}
    for (name, shape), x in zip(shapes.items(), (q, k, v)):
        expect(name, f"torch.float8_e4m3fn {shape} on {q.device}", f"{x.dtype} {[*x.shape]} on {x.device}")
        expect(name, "data that begin at a multiple of 16 bytes", hex(x.data_ptr()), x.data_ptr() % 16 == 0)
        fits = x.stride(3) == 1 and all(n > 0 and n % 16 == 0 for n in x.stride()[:3])
        expect(name, "strides in steps of 16 bytes, and a last one of 1", x.stride(), fits)
    for name, x in {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale}.items():
        wanted = f"contiguous torch.float32 {[*k.shape[:2]]} on {q.device}"
        expect(name, wanted, f"{'contiguous ' * x.is_contiguous()}{x.dtype} {[*x.shape]} on {x.device}")
    expect("q", "a tensor on a GPU", f"one on {q.device}", q.device.type == "cuda")
    expect("q and k", "no length of 0", f"{[*q.shape]} and {[*k.shape]}", min(*q.shape, *k.shape) > 0)
    expect("k", f"a multiple of {TILE_K} keys", k.shape[2], k.shape[2] % TILE_K == 0)
    scale = 1 / math.sqrt(D) if scale is None else scale
    expect("scale", "a number above 0", scale, scale > 0)
    o = torch.empty(q.shape, dtype=torch.bfloat16, device=q.device)
    tiles, lines = -(-q.shape[2] // TILE_Q), q.shape[0] * q.shape[1]  # of a head; heads of all batches
    blocks = min(tiles * lines, torch.cuda.get_device_properties(q.device).multi_processor_count)
    lists = deal(lines, q.shape[2], k.shape[2], blocks, q.device)
    output = TensorDescriptor.from_tensor(o, [1, 1, ROWS.value, D], SHARED_OUTPUT.value)
    queries, keys = (
        TensorDescriptor.from_tensor(x, [1, 1, n, D], SHARED.value) for x, n in ((q, ROWS.value), (k, TILE_K))
    )
    columns = torch.empty((*k.shape[:2], D, -(-k.shape[2] // 16) * 16), dtype=v.dtype, device=v.device)  # of V
    turning = (v, v.stride(), columns, k.shape[2], k.shape[1], columns.shape[3], D)
    values = TensorDescriptor.from_tensor(columns, [1, 1, D, TILE_K], SHARED.value)
    numbers = (scale / math.log(2), k.shape[2], q.shape[1], tiles)  # the kernel's scale is in base 2
    arguments = (queries, keys, values, output, q_scale, k_scale, v_scale, *lists, *numbers)
    with torch.cuda.device(q.device), triton.knobs.nvidia.scope():
        triton.knobs.nvidia.ptxas_blackwell = triton.knobs.nvidia.ptxas.path  # the older ptxas: it spills less
        grid = (-(-columns.shape[3] // 128), k.shape[1], k.shape[0])
        transpose[grid](*turning, num_warps=4, enable_fp_fusion=True)
        how = {"num_warps": 4, "enable_fp_fusion": True, "launch_pdl": True}  # may begin before V is turned
        fmha[(blocks, 1, 1)](*arguments, **how)
    return o


def quantized(x):
    """(x / scale in 8 bits, scale [batch, kv_heads]): the largest number of its heads becomes the largest of 8 bits."""
    groups = x.unflatten(1, (32, -1))
    scale = groups.abs().amax((2, 3, 4)).float() / torch.finfo(torch.float8_e4m3fn).max
    return (groups / scale[:, :, None, None, None]).to(torch.float8_e4m3fn).flatten(1, 2), scale


def dequantized(x, scale, dtype=torch.float64):
    """x times its scales [batch, kv_heads], in dtype."""
    return (x.to(dtype).unflatten(1, (scale.shape[1], -1)) * scale[:, :, None, None, None]).to(dtype).flatten(1, 2)


def exact(q, k, v, rounded=False):
    """Attention in float64, a head of Q at a time. rounded: with weights rounded to torch.float8_e4m3fn."""
    o = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    for b, h in itertools.product(*map(range, q.shape[:2])):
        queries, keys, values = (x.double() for x in (q[b, h], k[b, h], v[b, h]))
        scores = queries @ keys.T / math.sqrt(D)
        scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -math.inf)
        weights = 256 * (scores - scores.amax(1, keepdim=True)).exp()  # as large as the kernel's
        taken = weights.to(torch.float8_e4m3fn).to(weights.dtype) if rounded else weights
        o[b, h] = taken @ values / weights.sum(1, keepdim=True)
    return o


def pytorch(q, k, v, q_scale, k_scale, v_scale):
    """What PyTorch makes of it: copies in 16 bits, times their scales, and its own attention of these."""
    q, k, v = (dequantized(*each, torch.bfloat16) for each in ((q, q_scale), (k, k_scale), (v, v_scale)))
    return scaled_dot_product_attention(q, k, v, is_causal=True)


def main():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        print("this program needs an NVIDIA GPU of compute capability 9.0 (H100, H200)", file=sys.stderr)
        return 2
    q, k, v = (torch.randn((4, 32, 4096, 128), dtype=torch.bfloat16, device="cuda") for _ in range(3))
    v += 0.5  # so that the mean of the output is not zero
    before = exact(q, k, v)
    (q, q_scale), (k, k_scale), (v, v_scale) = map(quantized, (q, k, v))
    whole = dequantized(q, q_scale), dequantized(k, k_scale), dequantized(v, v_scale)
    ours, theirs = (partial(function, q, k, v, q_scale, k_scale, v_scale) for function in (attention, pytorch))
    for name, mine, its, wanted in [("o", ours(), exact(*whole, rounded=True), exact(*whole))]:
        step = torch.finfo(mine.dtype).eps * 2.0 ** math.floor(math.log2(wanted.abs().max()))  # of rounding
        error, limit = (mine - wanted).abs().max(), 2 * (its - wanted).abs().max() + step
        judged = "right" if error <= limit else "WRONG"
        print(f"two_level_accumulation: {name} {judged}, error {error:.3g}, at most {limit:.3g} is allowed")
        if judged == "WRONG":
            return 1
    print(f"two_level_accumulation: quantizing changes o by {(before - wanted).abs().max():.3g}")
    mine, its = (do_bench(function, return_mode="median") for function in (ours, theirs))  # milliseconds
    told = [f"{ms:.4f} ms, {549_755_813_888 / 1e9 / ms:.1f} TFLOPS" for ms in (mine, its)]  # of the matrix products
    print(f"two_level_accumulation: {told[0]}; PyTorch: {told[1]}; {its / mine:.2f} times as fast")
    return 0


if __name__ == "__main__":
    sys.exit(main())
