"""Attention in Gluon, with its launch, for an NVIDIA GPU of compute capability 9.0 (H100, H200).

    attention(q, k, v, sinks, scale=None) -> o

Compiled in: head_dim 64, bfloat16, a sliding window of 128, 8 query heads for each head of keys and values. Batch,
heads and lengths may be others, as far as the checks say; the launch is chosen for the problem at the end. Tensors are
[batch, heads, length, head_dim]. A sink, float32 [heads], is a logit that takes part in every softmax of its head and
has no value. Query i sees keys 0 to i, also where the lengths differ. There is no autograd. It needs PyTorch and Triton
3.9. Not included: the tutorial's hook in Triton that rewrites PTX (descriptors of wgmma, barriers).

Roles are called by their functions, with a number. TMA arrives when its bytes are there.
barrier      slots  arrivals  who arrives           who waits, and its first parity  complete when
key_empty    2      2         consume 0, consume 1  produce 2: 1                     key: read
key_full     2      1         produce 2, TMA        consume 0: 0, consume 1: 0       key: filled
query_empty  2      2         consume 0, consume 1  produce 2: 1                     query: read
query_full   2      1         produce 2, TMA        consume 0: 0, consume 1: 0       query: filled
value_empty  2      2         consume 0, consume 1  produce 2: 1                     value: read
value_full   2      1         produce 2, TMA        consume 0: 0, consume 1: 0       value: filled
Bytes of shared memory: query 32,768, key 16,384, value 16,384, output 16,384, barriers 96; together 82,016.

Made from step 908 attention_sinks (Attention sinks) of the FMHA tutorial by
python -m steps.export attention_sinks --head-dim 64 --seq-len 4096 --dtype bfloat16 --causal --window 128
With --head-dim 128 it writes: HEAD_DIM 128; TILE_KEY 128; VALUE_DIM 128; TILE_QUERY 128; GROUP_SIZE 8; OUTPUT_COLUMNS
128; GROUP GROUP_SIZE.value; other layouts ACCUMULATOR, OUTPUT; other lines in tiles_to_visit, consume, produce, fmha,
deal, attention.
"""

import heapq
import itertools
import math
import sys
from collections import namedtuple
from functools import lru_cache, partial

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.testing import do_bench

QUERY_STAGES, WARPGROUPS, ROWS, HEAD_DIM, STAGES, TILE_KEY, VALUE_DIM = map(gl.constexpr, (2, 2, 64, 64, 2, 64, 64))
TILE_QUERY, GROUP_SIZE, WINDOW, TOGETHER, LOG2E = map(gl.constexpr, (64, 4, 128, 2, 1.4426950408889634))
LEAST, OUTPUT_COLUMNS = map(gl.constexpr, (-3.4028234663852886e38, 64))
GROUP = 8  # query heads for each head of keys and values
D, TILE_Q, TILE_K = HEAD_DIM.value, TILE_QUERY.value, TILE_KEY.value
SHARED = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4))
ACCUMULATOR = OUTPUT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
WEIGHTS = gl.constexpr(gl.DotOperandLayout(operand_index=0, parent=ACCUMULATOR, k_width=2))

# Q, K, V and the output in global memory, as TMA knows them: described by shape, strides and box.
Arrays = namedtuple("Arrays", "query key value output")
# What is to be computed. order, starts: the tiles of block b are order[starts[b] : starts[b + 1]]. sinks: of query
# heads, where they have some.
Work = namedtuple("Work", "order starts heads tiles_a_head seq_len_kv sinks")
# Tiles in shared memory. query, output: slots for each warpgroup; key, value: rings.
Tiles = namedtuple("Tiles", "query key value output")
# mbarriers of a slot. full: TMA has filled it. empty, if any: all warpgroups have read it.
Barriers = namedtuple("Barriers", "query_full query_empty key_full key_empty value_full value_empty")
# A tile of queries. row: of its first query. kv_head, batch: of its keys. seq_len_kv: how many keys there are.
QueryTile = namedtuple("QueryTile", "row kv_head batch seq_len_kv")


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
def query_of(queries, query_iteration, warpgroup: gl.constexpr):
    """A warpgroup's queries [query, head_dim] of tile ``query_iteration`` of the queries."""
    return queries.index(query_iteration % QUERY_STAGES * WARPGROUPS + warpgroup).reshape([ROWS, HEAD_DIM])


@gluon.jit
def issue_scores(query, keys, iteration):
    """Begin the QK product [query, key]. K and Q lie in shared memory."""
    none = gl.full([ROWS, TILE_KEY], 0.0, gl.float32, ACCUMULATOR)
    key = keys.index(iteration % STAGES).reshape([TILE_KEY, HEAD_DIM])
    return warpgroup_mma(query, key.permute((1, 0)), none, use_acc=False, is_async=True)


@gluon.jit
def hide_where_needed(scores, j, whole, first_query):
    """Scores of tile j with the mask where it needs one: a branch that whole tiles jump over."""
    if j >= whole:
        # Scores [query, key] with minus infinity where a query must not see a key.
        query = first_query + gl.arange(0, scores.shape[0], gl.SliceLayout(1, ACCUMULATOR))
        key = j * TILE_KEY + gl.arange(0, scores.shape[1], gl.SliceLayout(0, ACCUMULATOR))
        scores = gl.where(key[None, :] <= query[:, None], scores, float("-inf"))
    if j * TILE_KEY < first_query + ROWS - WINDOW:
        # Scores [query, key] with minus infinity where a key stands before a query's sliding window.
        query_2 = first_query + gl.arange(0, scores.shape[0], gl.SliceLayout(1, ACCUMULATOR))
        key_2 = j * TILE_KEY + gl.arange(0, scores.shape[1], gl.SliceLayout(0, ACCUMULATOR))
        scores = gl.where(key_2[None, :] > query_2[:, None] - WINDOW, scores, float("-inf"))
    return scores


@gluon.jit
def with_sink(row_sum, sink, row_max):
    """The sums of the first tile, and the weight of the sink where there is one. The loop need not know of it."""
    weight = exp2(sink - row_max)
    if len(row_sum.shape) == 2:
        own = gl.convert_layout(weight, gl.SliceLayout(1, row_sum.type.layout))
        return row_sum + 0.25 * own[:, None]
    else:
        return row_sum + weight


@gluon.jit
def consume(arrays, tiles, barriers, work, scale, warpgroup: gl.constexpr):
    """A consumer warpgroup: its rows of every tile of queries that is this block's."""
    output = tiles.output.index(warpgroup)
    iteration = 0  # tiles of keys so far
    query_iteration = 0
    # The part [first, last) of the order that was dealt to this block.
    n = gl.program_id(0)
    last = gl.load(work.starts + n + 1)
    n = gl.load(work.starts + n)
    mbarrier.wait(barriers.query_full.index(0), 0)
    mbarrier.wait(barriers.key_full.index(0), 0)
    issued = issue_scores(query_of(tiles.query, 0, warpgroup), tiles.key, 0)
    while n < last:
        # Which queries, and keys, belong to the n-th tile of the order.
        number = gl.load(work.order + n)
        head = number // work.tiles_a_head
        head, batch, i = head % work.heads, head // work.heads, number % work.tiles_a_head
        query_tile = QueryTile(i * TILE_QUERY, head // GROUP_SIZE, batch, work.seq_len_kv)
        head = head * TOGETHER + warpgroup
        query = query_of(tiles.query, query_iteration, warpgroup)
        # Attention of a warpgroup's queries to the keys that they see.
        before = gl.maximum(query_tile.row + 1 - WINDOW, 0) // TILE_KEY * TILE_KEY
        query_tile_2 = QueryTile(
            query_tile.row - before, query_tile.kv_head, query_tile.batch, query_tile.seq_len_kv - before
        )
        sink = gl.load(work.sinks + head) * LOG2E
        row_max = gl.full([ROWS], gl.maximum(sink, LEAST), gl.float32, gl.SliceLayout(1, ACCUMULATOR))
        accumulator = gl.full([ROWS, VALUE_DIM], 0.0, gl.float32, OUTPUT)
        # A warpgroup's first query, row, and its tiles of keys, (whole, end). block_end: where those of its block end.
        row = query_tile_2.row
        whole, block_end = tiles_to_visit(query_tile_2.row, query_tile_2.seq_len_kv)
        # --- the first tile ---
        first_scores = warpgroup_mma_wait(0, deps=[issued])
        mbarrier.arrive(barriers.key_empty.index(iteration % STAGES), count=1)
        first_scores = hide_where_needed(first_scores, 0, whole, row)
        row_max = gl.maximum(row_max, gl.max(first_scores, 1) * scale)
        # (weights, sums) of the first tile of keys.
        weights = exp2(first_scores * scale - row_max[:, None])
        row_sum = with_sink(sum_own(weights), sink, row_max)
        weights = gl.convert_layout(weights.to(tiles.key.dtype), WEIGHTS)
        # --- all others, and the last tile's output ---
        for j in range(1, block_end):
            # --- issue: scores of this tile, output of the tile before ---
            mbarrier.wait(barriers.key_full.index((iteration + 1) % STAGES), (iteration + 1) // STAGES & 1)
            scores = issue_scores(query, tiles.key, iteration + 1)
            mbarrier.wait(barriers.value_full.index(iteration % STAGES), iteration // STAGES & 1)
            # Begin to add the PV product to the output; V lies in shared memory.
            value = tiles.value.index(iteration % STAGES).reshape([TILE_KEY, VALUE_DIM])
            accumulator = warpgroup_mma(weights, value, accumulator, is_async=True)
            scores = warpgroup_mma_wait(1, deps=[scores])
            mbarrier.arrive(barriers.key_empty.index((iteration + 1) % STAGES), count=1)
            # --- online softmax, while the output is computed ---
            scores = hide_where_needed(scores, j, whole, row)
            # The softmax of a tile, and the output rescaled, once the PV product of tile ``iteration`` has ended.
            new_max = gl.maximum(row_max, gl.max(scores, 1) * scale)
            correction = exp2(row_max - new_max)
            mbarrier.wait(barriers.value_full.index(iteration % STAGES), iteration // STAGES & 1)
            accumulator, new_max, correction = warpgroup_mma_wait(0, deps=[accumulator, new_max, correction])
            weights = exp2(scores * scale - new_max[:, None])
            # What each lane holds of the sums so far, and of one more tile.
            own = gl.convert_layout(correction, gl.SliceLayout(1, row_sum.type.layout))
            row_sum = row_sum * own[:, None] + sum_own(weights)
            row_max = new_max
            mbarrier.arrive(barriers.value_empty.index(iteration % STAGES), count=1)
            accumulator = accumulator * gl.convert_layout(correction, gl.SliceLayout(1, OUTPUT))[:, None]
            weights = gl.convert_layout(weights.to(tiles.key.dtype), WEIGHTS)
            iteration += 1
        mbarrier.wait(barriers.value_full.index(iteration % STAGES), iteration // STAGES & 1)
        value = tiles.value.index(iteration % STAGES).reshape([TILE_KEY, VALUE_DIM])
        accumulator = warpgroup_mma(weights, value, accumulator, is_async=True)
        last_iteration = iteration
        # Which tile of queries comes behind this one.
        n = n + 1
        mbarrier.arrive(barriers.query_empty.index(query_iteration % QUERY_STAGES), count=1)
        # The first product for the next queries is issued after the last for these, and runs while these are
        # stored. After the very last queries it is wasted: with a branch around it the compiler would wait at once.
        if n < last:
            # Wait until TMA has filled the slot of this tile of a ring.
            awaited = query_iteration + 1
            mbarrier.wait(barriers.query_full.index(awaited % QUERY_STAGES), awaited // QUERY_STAGES & 1)
            mbarrier.wait(barriers.key_full.index((iteration + 1) % STAGES), (iteration + 1) // STAGES & 1)
        following = query_of(tiles.query, query_iteration + 1, warpgroup)
        issued = issue_scores(following, tiles.key, iteration + 1)
        accumulator = warpgroup_mma_wait(1, deps=[accumulator])
        mbarrier.arrive(barriers.value_empty.index(last_iteration % STAGES), count=1)
        iteration += 1
        # Normalise and store a warpgroup's output; TMA drops rows past the end. output: its buffer in shared memory.
        row_sum = gl.convert_layout(gl.sum(row_sum, 1), gl.SliceLayout(1, ACCUMULATOR))
        o = (accumulator * gl.convert_layout(1.0 / row_sum, gl.SliceLayout(1, OUTPUT))[:, None]).to(output.dtype)
        row = query_tile.row
        # Hand columns of the output [query, column] to TMA, by way of their buffer in shared memory once that is free.
        tma.store_wait(0)
        output.reshape(o.shape).store(o)
        fence_async_shared()
        tma.async_store(arrays.output, [batch, head, row, 0], output)
        query_iteration += 1
    issued = warpgroup_mma_wait(0, deps=[issued])
    tma.store_wait(0)


@gluon.jit
def produce(arrays, tiles, barriers, work):
    """The producer: fetches the tiles of this block, each as soon as its slot is empty."""
    iteration = 0  # tiles of keys so far: tells the slot in the ring, and how often it was filled
    query_iteration = 0
    # The part [first, last) of the order that was dealt to this block.
    n = gl.program_id(0)
    last = gl.load(work.starts + n + 1)
    n = gl.load(work.starts + n)
    while n < last:
        # (head, batch) and index of a tile of queries in its head, from the tile's number.
        number = gl.load(work.order + n)
        head = number // work.tiles_a_head
        head, batch, i = head % work.heads, head // work.heads, number % work.tiles_a_head
        row = i * TILE_QUERY
        before = gl.maximum(row + 1 - WINDOW, 0) // TILE_KEY * TILE_KEY
        _, end = tiles_to_visit(row - before, work.seq_len_kv - before)
        empty = barriers.query_empty.index(query_iteration % QUERY_STAGES)
        mbarrier.wait(empty, query_iteration // QUERY_STAGES & 1 ^ 1)
        # Ask TMA for a tile of queries, a copy for each warpgroup; the barrier completes when all of it is there.
        query_stage = query_iteration % QUERY_STAGES
        full = barriers.query_full.index(query_stage)
        mbarrier.expect(full, WARPGROUPS * arrays.query.nbytes_per_cta)
        for warpgroup in gl.static_range(WARPGROUPS):
            at = [batch, head * TOGETHER + warpgroup, row, 0]
            tma.async_load(arrays.query, at, full, tiles.query.index(query_stage * WARPGROUPS + warpgroup))
        kv_head = head // GROUP_SIZE
        # Ask TMA for so many tiles of keys and values as ``end`` says.
        for j in range(end):
            key = before + j * TILE_KEY
            # Ask TMA for tile ``iteration`` of the keys and of the values, each as soon as its slot is empty.
            stage = iteration % STAGES
            used = iteration // STAGES & 1 ^ 1
            mbarrier.wait(barriers.key_empty.index(stage), used)
            # Ask TMA for a tile of keys or values, which begins at this row, into a slot of their ring.
            mbarrier.expect(barriers.key_full.index(stage), arrays.key.nbytes_per_cta)
            tma.async_load(arrays.key, [batch, kv_head, key, 0], barriers.key_full.index(stage), tiles.key.index(stage))
            mbarrier.wait(barriers.value_empty.index(stage), used)
            mbarrier.expect(barriers.value_full.index(stage), arrays.value.nbytes_per_cta)
            tma.async_load(
                arrays.value, [batch, kv_head, key, 0], barriers.value_full.index(stage), tiles.value.index(stage)
            )
            iteration += 1
        n = n + 1
        query_iteration += 1


@gluon.jit(do_not_specialize=["seq_len_kv", "heads", "tiles_a_head"])
def fmha(Q, K, V, Out, order, starts, scale, seq_len_kv, heads, tiles_a_head, Sinks):
    arrays = Arrays(Q, K, V, Out)
    # Slots in shared memory for tiles of queries, keys, values and the output.
    QUERIES: gl.constexpr = [QUERY_STAGES * WARPGROUPS, 1, 1, ROWS, HEAD_DIM]
    queries = gl.allocate_shared_memory(Q.dtype, QUERIES, SHARED)
    keys = gl.allocate_shared_memory(Q.dtype, [STAGES, 1, 1, TILE_KEY, HEAD_DIM], SHARED)
    values = gl.allocate_shared_memory(Q.dtype, [STAGES, 1, 1, TILE_KEY, VALUE_DIM], SHARED)
    outputs = gl.allocate_shared_memory(queries.dtype, [WARPGROUPS, 1, 1, ROWS, OUTPUT_COLUMNS], SHARED)
    tiles = Tiles(queries, keys, values, outputs)
    # mbarriers for roles: a slot is full when TMA has filled it, and empty when all warpgroups have read it.
    query_full, query_empty = barrier_ring(QUERY_STAGES, 1), barrier_ring(QUERY_STAGES, WARPGROUPS)
    key_full, key_empty = barrier_ring(STAGES, 1), barrier_ring(STAGES, WARPGROUPS)
    value_full, value_empty = barrier_ring(STAGES, 1), barrier_ring(STAGES, WARPGROUPS)
    barriers = Barriers(query_full, query_empty, key_full, key_empty, value_full, value_empty)
    work = Work(order, starts, heads, tiles_a_head, seq_len_kv, Sinks)
    fence_async_shared()
    # --- who does what; the first warpgroup's warps are those that the block began with ---
    gl.warp_specialize([
        (consume, (arrays, tiles, barriers, work, scale, 0)),
        (consume, (arrays, tiles, barriers, work, scale, 1)),
        (produce, (arrays, tiles, barriers, work)),
    ], [4, 1], [104, 24])  # fmt: skip


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
    rows = range(0, seq_len_q, TILE_Q)
    lengths = [1 + -(-min(seq_len_kv, row + TILE_Q) // TILE_K) - max(0, row + 1 - 128) // TILE_K for row in rows]
    section = max(1, min(lines, int(8 * 2**20 / (2 * 2 * seq_len_kv * D / 4))))  # heads
    firsts = [*range(0, lines, section)]  # heads that sections begin with
    _, dealt = deal_in_sections(lengths, firsts, lines, blocks)
    starts = [0, *itertools.accumulate(map(len, dealt))]
    return tuple(torch.tensor(x, dtype=torch.int32, device=device) for x in ([*itertools.chain(*dealt)], starts))


def attention(q, k, v, sinks, scale=None):
    """softmax(scale * q @ k^T) @ v, as q. scale: above 0; None means 1 / sqrt(head_dim)."""
    shapes = {"q": [*q.shape[:3], D], "k": [*q.shape[:1], *k.shape[1:3], D], "v": [*k.shape]}
    for (name, shape), x in zip(shapes.items(), (q, k, v)):
        expect(name, f"torch.bfloat16 {shape} on {q.device}", f"{x.dtype} {[*x.shape]} on {x.device}")
        expect(name, "data that begin at a multiple of 16 bytes", hex(x.data_ptr()), x.data_ptr() % 16 == 0)
        fits = x.stride(3) == 1 and all(n > 0 and n % 8 == 0 for n in x.stride()[:3])
        expect(name, "strides in steps of 16 bytes, and a last one of 1", x.stride(), fits)
    for name, x in {"sinks": sinks}.items():
        wanted = f"contiguous torch.float32 {[*q.shape[1:2]]} on {q.device}"
        expect(name, wanted, f"{'contiguous ' * x.is_contiguous()}{x.dtype} {[*x.shape]} on {x.device}")
    expect("q", "a tensor on a GPU", f"one on {q.device}", q.device.type == "cuda")
    expect("q and k", "no length of 0", f"{[*q.shape]} and {[*k.shape]}", min(*q.shape, *k.shape) > 0)
    expect("q", f"{GROUP} heads for each of k's {k.shape[1]}", q.shape[1], q.shape[1] == GROUP * k.shape[1])
    expect("k", f"a multiple of {TILE_K} keys", k.shape[2], k.shape[2] % TILE_K == 0)
    expect("k", "a key for every query", k.shape[2], q.shape[2] - 128 < k.shape[2])
    scale = 1 / math.sqrt(D) if scale is None else scale
    expect("scale", "a number above 0", scale, scale > 0)
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    heads = q.shape[1] // 2  # as blocks count them: each has several of a group
    tiles, lines = -(-q.shape[2] // TILE_Q), q.shape[0] * heads  # of these; of all batches
    places = 2 * torch.cuda.get_device_properties(q.device).multi_processor_count
    blocks = min(tiles * lines, places)
    lists = deal(lines, q.shape[2], k.shape[2], blocks, q.device)
    queries, output = (TensorDescriptor.from_tensor(x, [1, 1, ROWS.value, D], SHARED.value) for x in (q, o))
    keys, values = (TensorDescriptor.from_tensor(x, [1, 1, TILE_K, D], SHARED.value) for x in (k, v))
    numbers = (scale / math.log(2), k.shape[2], heads, tiles)  # the kernel's scale is in base 2
    arguments = (queries, keys, values, output, *lists, *numbers, sinks)
    with torch.cuda.device(q.device), triton.knobs.nvidia.scope():
        triton.knobs.nvidia.ptxas_blackwell = triton.knobs.nvidia.ptxas.path  # the older ptxas: it spills less
        how = {"num_warps": 4, "maxnreg": 80, "enable_fp_fusion": True}  # for blocks that share an SM
        fmha[(blocks, 1, 1)](*arguments, **how)
    return o


def hidden(queries, keys):
    """Which keys a query does not see, [queries, keys]."""
    behind = torch.arange(keys, device="cuda") - torch.arange(queries, device="cuda")[:, None]
    return (behind > 0) | (behind <= -128)


def exact(q, k, v, sinks):
    """Attention in float64, a head of Q at a time."""
    o = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    for b, h in itertools.product(*map(range, q.shape[:2])):
        queries, keys, values = (x.double() for x in (q[b, h], k[b, h // GROUP], v[b, h // GROUP]))
        scores = queries @ keys.T / math.sqrt(D)
        scores = scores.masked_fill(hidden(*scores.shape), -math.inf)
        scores = torch.cat([scores, sinks[h].double().expand(len(scores), 1)], 1)  # a key without a value
        o[b, h] = scores.softmax(1)[:, :-1] @ values
    return o


def pytorch(q, k, v, sinks):
    """What PyTorch makes of it, operation by operation: its own attention knows no sinks."""
    k, v = (x.repeat_interleave(GROUP, 1) for x in (k, v))
    scores = q @ k.transpose(2, 3) / math.sqrt(D)
    scores = scores.masked_fill(hidden(*scores.shape[2:]), -math.inf)
    scores = torch.cat([scores, sinks.to(q.dtype)[:, None, None].expand(*scores.shape[:3], 1)], 3)
    return scores.softmax(3)[..., :-1] @ v


def main():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        print("this program needs an NVIDIA GPU of compute capability 9.0 (H100, H200)", file=sys.stderr)
        return 2
    shapes = (4, 64, 4096, 64), (4, 8, 4096, 64), (4, 8, 4096, 64)
    q, k, v = (torch.randn(shape, dtype=torch.bfloat16, device="cuda") for shape in shapes)
    v += 0.5  # so that the mean of the output is not zero
    sinks = (4.84 + torch.randn(q.shape[1], device="cuda")).to(q.dtype).float()  # about half of the weight
    ours, theirs = (partial(function, q, k, v, sinks) for function in (attention, pytorch))
    for name, mine, its, wanted in [("o", ours(), theirs(), exact(q, k, v, sinks))]:
        step = torch.finfo(mine.dtype).eps * 2.0 ** math.floor(math.log2(wanted.abs().max()))  # of rounding
        error, limit = (mine - wanted).abs().max(), 2 * (its - wanted).abs().max() + step
        judged = "right" if error <= limit else "WRONG"
        print(f"attention_sinks: {name} {judged}, error {error:.3g}, at most {limit:.3g} is allowed")
        if judged == "WRONG":
            return 1
    mine, its = (do_bench(function, return_mode="median") for function in (ours, theirs))  # milliseconds
    told = [f"{ms:.4f} ms, {33_822_867_456 / 1e9 / ms:.1f} TFLOPS" for ms in (mine, its)]  # of the matrix products
    print(f"attention_sinks: {told[0]}; PyTorch: {told[1]}; {its / mine:.2f} times as fast")
    return 0


if __name__ == "__main__":
    sys.exit(main())
