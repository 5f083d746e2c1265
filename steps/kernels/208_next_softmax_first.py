"""Attention in Gluon, with its launch, for an NVIDIA GPU of compute capability 9.0 (H100, H200).

    attention(q, k, v, scale=None) -> o

Compiled in: head_dim 128, float16, a causal mask. Batch, heads and lengths may be others, as far as the checks say; the
launch is chosen for the problem at the end. Tensors are [batch, heads, length, head_dim]. Query i sees keys 0 to i,
also where the lengths differ. There is no autograd. It needs PyTorch and Triton 3.9. Not included: the tutorial's hook
in Triton that rewrites PTX (descriptors of wgmma, barriers).

Roles are called by their functions, with a number. TMA arrives when its bytes are there.
barrier      slots  arrivals  who arrives           who waits, and its first parity  complete when
key_empty    2      2         consume 0, consume 1  produce 2: 1                     key: read
key_full     2      1         produce 2, TMA        consume 0: 0, consume 1: 0       key: filled
nobody       1      1                               consume 0: 1, consume 1: 1
query_empty  2      2         consume 0, consume 1  produce 2: 1                     query: read
query_full   2      1         produce 2, TMA        consume 0: 0, consume 1: 0       query: filled
value_empty  2      2         consume 0, consume 1  produce 2: 1                     value: read
value_full   2      1         produce 2, TMA        consume 0: 0, consume 1: 0       value: filled
Bytes of shared memory: query 65,536, key 65,536, value 65,536, output 32,768, barriers 104; together 229,480.

Made from step 208 next_softmax_first (The next tile's softmax first) of the FMHA tutorial by
python -m steps.export next_softmax_first --head-dim 128 --seq-len 4096 --dtype float16 --causal
With --head-dim 64 it writes: WARPGROUPS 3; HEAD_DIM 64; VALUE_DIM 64; TILE_QUERY 192; OUTPUT_COLUMNS 64; other layouts
OUTPUT, WEIGHTS; other lines in consume, fmha; not as functions of their own: query_tile_until, tiles_of_warpgroup,
first_weights, first_maxima; also take_turn (Wait until it is this warpgroup's turn, for the n-th time); also
issue_scores (Begin the QK product [query, key]).
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

QUERY_STAGES, WARPGROUPS, ROWS, HEAD_DIM, STAGES, TILE_KEY, VALUE_DIM = map(gl.constexpr, (2, 2, 64, 128, 2, 128, 128))
TILE_QUERY, QUARTER, LEAST, OUTPUT_COLUMNS = map(gl.constexpr, (128, 32, -3.4028234663852886e38, 128))
D, TILE_Q, TILE_K = HEAD_DIM.value, TILE_QUERY.value, TILE_KEY.value
SHARED = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4))
ACCUMULATOR = OUTPUT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16]))
WEIGHTS = gl.constexpr(gl.DotOperandLayout(operand_index=0, parent=ACCUMULATOR, k_width=2))

# Q, K, V and the output in global memory, as TMA knows them: described by shape, strides and box.
Arrays = namedtuple("Arrays", "query key value output")
# What is to be computed. order, starts: the tiles of block b are order[starts[b] : starts[b + 1]].
Work = namedtuple("Work", "order starts heads tiles_a_head seq_len_kv")
# Tiles in shared memory. query, output: slots for each warpgroup; key, value: rings.
Tiles = namedtuple("Tiles", "query key value output")
# mbarriers of a slot. full: TMA has filled it. empty, if any: all warpgroups have read it. nobody: there nobody
# arrives, so a wait for parity 1 passes, and the compiler moves nothing over it.
Barriers = namedtuple("Barriers", "query_full query_empty key_full key_empty value_full value_empty nobody")
# A tile of queries. row: of its first query. seq_len_kv: how many keys there are.
QueryTile = namedtuple("QueryTile", "row seq_len_kv")


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
def query_tile_until(n, last, work):
    """(query_tile, head, batch) of the n-th tile of queries in the order; behind the last of them, of the last."""
    n = gl.minimum(n, last - 1)
    # Which queries, and keys, belong to the n-th tile of the order.
    number = gl.load(work.order + n)
    head = number // work.tiles_a_head
    head, batch, i = head % work.heads, head // work.heads, number % work.tiles_a_head
    return QueryTile(i * TILE_QUERY, work.seq_len_kv), head, batch


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
def tiles_of_warpgroup(query_tile, warpgroup: gl.constexpr):
    """A warpgroup's first query, row, and its tiles of keys, (whole, end)."""
    row = query_tile.row + warpgroup * ROWS
    block_end = tiles_to_visit(query_tile.row, query_tile.seq_len_kv)
    # (whole, end) of the tiles of keys that the warpgroup with these queries sees, of those that its block visits.
    whole = gl.minimum(row, query_tile.seq_len_kv) // TILE_KEY
    end = gl.minimum(block_end, gl.cdiv(row + ROWS, TILE_KEY))
    return row, whole, end


@gluon.jit
def first_weights(scores, row_max, dtype: gl.constexpr, scale):
    """(weights, sums) of the first tile of keys."""
    weights = exp2(scores * scale - row_max[:, None])
    row_sum = sum_own(weights)
    return gl.convert_layout(weights.to(dtype), WEIGHTS), row_sum


@gluon.jit
def in_four_chains(scores):
    """The largest score of every row [query]: by four chains of comparisons a lane and row."""
    PAIRS: gl.constexpr = scores.shape[1] // 8  # of 8 columns a lane has 2
    chains = gl.reshape(scores, [scores.shape[0], 2, PAIRS // 2, 4, 2])
    ends = gl.max(chains, 2)  # of the chains: [query, half of the columns, lane, which of a pair]
    own = gl.max(gl.max(ends, 3), 1)  # [query, 4]: each lane's maximum of a row
    return gl.convert_layout(gl.max(own, 1), gl.SliceLayout(1, ACCUMULATOR))


@gluon.jit
def first_maxima(scores, query_tile, scale, warpgroup: gl.constexpr):
    """(scores behind the mask, maxima) of the first tile of keys."""
    row, whole, end = tiles_of_warpgroup(query_tile, warpgroup)
    # Scores of tile j with the mask where it needs one: a branch that whole tiles jump over.
    if whole <= 0:
        # Scores [query, key] with minus infinity where a query must not see a key.
        query = row + gl.arange(0, scores.shape[0], gl.SliceLayout(1, ACCUMULATOR))
        key = gl.arange(0, scores.shape[1], gl.SliceLayout(0, ACCUMULATOR))
        scores = gl.where(key[None, :] <= query[:, None], scores, float("-inf"))
    return scores, gl.maximum(
        gl.full([ROWS], LEAST, gl.float32, gl.SliceLayout(1, ACCUMULATOR)), in_four_chains(scores) * scale
    )


@gluon.jit
def consume(arrays, tiles, barriers, work, scale, warpgroup: gl.constexpr):
    """A consumer warpgroup: its rows of every tile of queries that is this block's."""
    dtype: gl.constexpr = tiles.key.dtype
    output = tiles.output.index(warpgroup)
    iteration = 0  # tiles of keys so far
    query_iteration = 0
    # The part [first, last) of the order that was dealt to this block.
    n = gl.program_id(0)
    last = gl.load(work.starts + n + 1)
    n = gl.load(work.starts + n)
    query_tile, head, batch = query_tile_until(n, last, work)
    mbarrier.wait(barriers.query_full.index(0), 0)
    mbarrier.wait(barriers.key_full.index(0), 0)
    query_2 = query_of(tiles.query, 0, warpgroup)
    none_2 = gl.full([ROWS, TILE_KEY], 0.0, gl.float32, ACCUMULATOR)
    key_2 = tiles.key.index(0).reshape([TILE_KEY, HEAD_DIM])
    first_scores = warpgroup_mma(query_2, key_2.permute((1, 0)), none_2, use_acc=False, is_async=True)
    first_scores = warpgroup_mma_wait(0, deps=[first_scores])
    mbarrier.arrive(barriers.key_empty.index(0), count=1)
    first_scores, first_max = first_maxima(first_scores, query_tile, scale, warpgroup)
    weights, row_sum = first_weights(first_scores, first_max, dtype, scale)
    # Computed anew, not `= query_tile, head, batch`: Triton takes variables that begin as one value for one.
    sent_tile, sent_head, sent_batch = query_tile_until(n, last, work)
    while n < last:
        n = n + 1
        more = n < last
        next_tile, next_head, next_batch = query_tile_until(n, last, work)
        # (the first quarter of head_dim of Q, in registers; the second, and the upper half, in shared memory)
        query = query_of(tiles.query, query_iteration, warpgroup)
        held = query.slice(0, QUARTER, 1).load(gl.DotOperandLayout(0, ACCUMULATOR, 2))
        query = held, query.slice(QUARTER, QUARTER, 1), query.slice(2 * QUARTER, 2 * QUARTER, 1)
        row, whole, end = tiles_of_warpgroup(query_tile, warpgroup)
        accumulator = gl.full([ROWS, VALUE_DIM], 0.0, gl.float32, OUTPUT)
        # Attention of a warpgroup's queries to all tiles of keys but the first, with two products begun together.
        row_max = first_max
        for j in range(1, end):
            # --- issue: scores of this tile, output of the tile before ---
            mbarrier.wait(barriers.key_full.index((iteration + 1) % STAGES), (iteration + 1) // STAGES & 1)
            # A quarter of Q is in registers: a product for it, and two for what is not.
            lower, second, upper = query
            none = gl.full([ROWS, TILE_KEY], 0.0, gl.float32, ACCUMULATOR)
            key = tiles.key.index((iteration + 1) % STAGES).reshape([TILE_KEY, HEAD_DIM])
            of_second, of_upper = key.slice(QUARTER, QUARTER, 1), key.slice(2 * QUARTER, 2 * QUARTER, 1)
            scores = warpgroup_mma(lower, key.slice(0, QUARTER, 1).permute((1, 0)), none, use_acc=False, is_async=True)
            scores = warpgroup_mma(second, of_second.permute((1, 0)), scores, is_async=True)
            scores = warpgroup_mma(upper, of_upper.permute((1, 0)), scores, is_async=True)
            mbarrier.wait(barriers.value_full.index(iteration % STAGES), iteration // STAGES & 1)
            # Begin to add the PV product to the output; V lies in shared memory.
            value = tiles.value.index(iteration % STAGES).reshape([TILE_KEY, VALUE_DIM])
            accumulator = warpgroup_mma(weights, value, accumulator, is_async=True)
            scores = warpgroup_mma_wait(1, deps=[scores])
            mbarrier.arrive(barriers.key_empty.index((iteration + 1) % STAGES), count=1)
            # --- online softmax, while the output is computed ---
            if j >= whole:
                # Scores [query, key] with minus infinity where a query must not see a key.
                query_3 = row + gl.arange(0, scores.shape[0], gl.SliceLayout(1, ACCUMULATOR))
                key_3 = j * TILE_KEY + gl.arange(0, scores.shape[1], gl.SliceLayout(0, ACCUMULATOR))
                scores = gl.where(key_3[None, :] <= query_3[:, None], scores, float("-inf"))
            # The softmax of a tile, and the output rescaled, once the PV product of tile ``iteration`` has ended.
            new_max = gl.maximum(row_max, in_four_chains(scores) * scale)
            correction = exp2(row_max - new_max)
            mbarrier.wait(barriers.nobody.index(0), 1)
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
        # --- issue: first scores for the next queries, last output for these ---
        if more:
            # Wait until TMA has filled the slot of this tile of a ring.
            awaited = query_iteration + 1
            mbarrier.wait(barriers.query_full.index(awaited % QUERY_STAGES), awaited // QUERY_STAGES & 1)
            mbarrier.wait(barriers.key_full.index((iteration + 1) % STAGES), (iteration + 1) // STAGES & 1)
        following = query_of(tiles.query, query_iteration + 1, warpgroup)
        # Begin the QK product [query, key]. K and Q lie in shared memory.
        none = gl.full([ROWS, TILE_KEY], 0.0, gl.float32, ACCUMULATOR)
        key = tiles.key.index((iteration + 1) % STAGES).reshape([TILE_KEY, HEAD_DIM])
        first_scores = warpgroup_mma(following, key.permute((1, 0)), none, use_acc=False, is_async=True)
        mbarrier.wait(barriers.value_full.index(iteration % STAGES), iteration // STAGES & 1)
        value = tiles.value.index(iteration % STAGES).reshape([TILE_KEY, VALUE_DIM])
        accumulator = warpgroup_mma(weights, value, accumulator, is_async=True)
        # --- what needs neither ---
        mbarrier.arrive(barriers.query_empty.index(query_iteration % QUERY_STAGES), count=1)
        if query_iteration > 0:
            # Ask TMA to store a warpgroup's output, which the warps have written to its buffer in shared memory.
            fence_async_shared()
            at = [sent_batch, sent_head, sent_tile.row + warpgroup * ROWS, 0]
            tma.async_store(arrays.output, at, tiles.output.index(warpgroup))
        row_sum = gl.convert_layout(gl.sum(row_sum, 1), gl.SliceLayout(1, ACCUMULATOR))
        inverse = gl.convert_layout(1.0 / row_sum, gl.SliceLayout(1, OUTPUT))[:, None]
        # --- the next softmax; between its maxima and its exponentials the output is complete ---
        first_scores = warpgroup_mma_wait(1, deps=[first_scores])
        mbarrier.arrive(barriers.key_empty.index((iteration + 1) % STAGES), count=1, pred=more)
        first_scores, first_max = first_maxima(first_scores, next_tile, scale, warpgroup)
        mbarrier.wait(barriers.nobody.index(0), 1)
        accumulator, first_max = warpgroup_mma_wait(0, deps=[accumulator, first_max])
        o = (accumulator * inverse).to(dtype)
        weights, row_sum = first_weights(first_scores, first_max, dtype, scale)
        mbarrier.arrive(barriers.value_empty.index(iteration % STAGES), count=1)
        tma.store_wait(0)
        output.reshape(o.shape).store(o)
        sent_tile, sent_head, sent_batch = query_tile, head, batch
        query_tile, head, batch = next_tile, next_head, next_batch
        iteration += 1
        query_iteration += 1
    fence_async_shared()
    at = [sent_batch, sent_head, sent_tile.row + warpgroup * ROWS, 0]
    tma.async_store(arrays.output, at, tiles.output.index(warpgroup))
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
        end = tiles_to_visit(row, work.seq_len_kv)
        empty = barriers.query_empty.index(query_iteration % QUERY_STAGES)
        mbarrier.wait(empty, query_iteration // QUERY_STAGES & 1 ^ 1)
        # Ask TMA for a tile of queries, a copy for each warpgroup; the barrier completes when all of it is there.
        query_stage = query_iteration % QUERY_STAGES
        full = barriers.query_full.index(query_stage)
        mbarrier.expect(full, WARPGROUPS * arrays.query.nbytes_per_cta)
        for warpgroup in gl.static_range(WARPGROUPS):
            at = [batch, head, row + warpgroup * ROWS, 0]
            tma.async_load(arrays.query, at, full, tiles.query.index(query_stage * WARPGROUPS + warpgroup))
        # Ask TMA for so many tiles of keys and values as ``end`` says.
        for j in range(end):
            key = j * TILE_KEY
            # Ask TMA for tile ``iteration`` of the keys and of the values, each as soon as its slot is empty.
            stage = iteration % STAGES
            used = iteration // STAGES & 1 ^ 1
            mbarrier.wait(barriers.key_empty.index(stage), used)
            # Ask TMA for a tile of keys or values, which begins at this row, into a slot of their ring.
            mbarrier.expect(barriers.key_full.index(stage), arrays.key.nbytes_per_cta)
            tma.async_load(arrays.key, [batch, head, key, 0], barriers.key_full.index(stage), tiles.key.index(stage))
            mbarrier.wait(barriers.value_empty.index(stage), used)
            mbarrier.expect(barriers.value_full.index(stage), arrays.value.nbytes_per_cta)
            tma.async_load(
                arrays.value, [batch, head, key, 0], barriers.value_full.index(stage), tiles.value.index(stage)
            )
            iteration += 1
        n = n + 1
        query_iteration += 1


@gluon.jit(do_not_specialize=["seq_len_kv", "heads", "tiles_a_head"])
def fmha(Q, K, V, Out, order, starts, scale, seq_len_kv, heads, tiles_a_head):
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
    value_full, value_empty, nobody = barrier_ring(STAGES, 1), barrier_ring(STAGES, WARPGROUPS), barrier_ring(1, 1)
    barriers = Barriers(query_full, query_empty, key_full, key_empty, value_full, value_empty, nobody)
    work = Work(order, starts, heads, tiles_a_head, seq_len_kv)
    fence_async_shared()
    # Ask the hook that rewrites PTX to drop barriers of warps that nothing needs. Without it this does nothing.
    gl.inline_asm_elementwise(
        "// no meetings that nothing needs (16ca12b9)\n mov.b32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )
    # --- who does what; the first warpgroup's warps are those that the block began with ---
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
    end, dealt = deal_in_sections(lengths, firsts, lines, blocks)
    last = min(lines, -(-blocks * max(lengths) // sum(lengths)))  # heads with as many tiles as all blocks take at last
    if last > section:  # would the blocks end together with more heads in the last section?
        other_end, other = deal_in_sections(lengths, firsts[: (lines - last) // section + 1], lines, blocks)
        dealt = other if end > 1.01 * other_end else dealt
    starts = [0, *itertools.accumulate(map(len, dealt))]
    return tuple(torch.tensor(x, dtype=torch.int32, device=device) for x in ([*itertools.chain(*dealt)], starts))


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
    blocks = min(tiles * lines, torch.cuda.get_device_properties(q.device).multi_processor_count)
    lists = deal(lines, q.shape[2], k.shape[2], blocks, q.device)
    queries, output = (TensorDescriptor.from_tensor(x, [1, 1, ROWS.value, D], SHARED.value) for x in (q, o))
    keys, values = (TensorDescriptor.from_tensor(x, [1, 1, TILE_K, D], SHARED.value) for x in (k, v))
    numbers = (scale / math.log(2), k.shape[2], q.shape[1], tiles)  # the kernel's scale is in base 2
    arguments = (queries, keys, values, output, *lists, *numbers)
    with torch.cuda.device(q.device), triton.knobs.nvidia.scope():
        triton.knobs.nvidia.ptxas_blackwell = triton.knobs.nvidia.ptxas.path  # the older ptxas: it spills less
        fmha[(blocks, 1, 1)](*arguments, num_warps=4, enable_fp_fusion=True)
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
        print(f"next_softmax_first: {name} {judged}, error {error:.3g}, at most {limit:.3g} is allowed")
        if judged == "WRONG":
            return 1
    mine, its = (do_bench(function, return_mode="median") for function in (ours, theirs))  # milliseconds
    told = [f"{ms:.4f} ms, {549_755_813_888 / 1e9 / ms:.1f} TFLOPS" for ms in (mine, its)]  # of the matrix products
    print(f"next_softmax_first: {told[0]}; SDPA: {told[1]}; {its / mine:.2f} times as fast")
    return 0


if __name__ == "__main__":
    sys.exit(main())
