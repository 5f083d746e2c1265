"""Gradients of attention in Gluon, with its launch, for an NVIDIA GPU of compute capability 9.0 (H100, H200).

    gradients(q, k, v, o, lse, do, scale=None) -> dq, dk, dv

Compiled in: head_dim 64, float16, no mask. Batch, heads and lengths may be others, as far as the checks say; the launch
is chosen for the problem at the end. Tensors are [batch, heads, length, head_dim]. Blocks add to dQ in any order, so
its last bits vary. There is no autograd. It needs PyTorch and Triton 3.9. Not included: the tutorial's hook in Triton
that rewrites PTX (descriptors of wgmma, barriers).

Roles are called by their functions, with a number. TMA arrives when its bytes are there. Counts lie in global memory,
polled until all have added to them. That ends if blocks begin in the order of their numbers: CUDA does not promise it.
gdc_wait awaits the kernel before, and gdc_launch_dependents lets the next one begin.
barrier         slots  arrivals  who arrives           who waits, and its first parity           complete when
d_output_empty  2      2         consume 0, consume 1  consume 0: 1, consume 1: 1, produce 2: 1  d_output: read
d_output_full   2      1         produce 2, TMA        consume 0: 0, consume 1: 0                d_output: filled
d_scores_full   2      2         consume 0, consume 1  consume 0: 1, consume 1: 1                d_scores: filled
done            2      2         consume 0, consume 1  consume 0: 0, consume 1: 0                K and V are read
keys_full       1      1         produce 2, TMA        consume 0: 0, consume 1: 0                key, value: filled
query_empty     2      2         consume 0, consume 1  produce 2: 1                              query: read
query_full      2      1         produce 2, TMA        consume 0: 0, consume 1: 0                query: filled
counts                           consume 0, consume 1  spare 4
counts                           spare 3               produce 2
kernel before                                          produce 2, spare 3, spare 4
next kernel                      produce 2
Bytes of shared memory: key 16,384, value 16,384, query 32,768, lse 1,024, d_output 32,768, row_sum 1,024, d_scores
65,536, d_query 32,768, barriers 104; together 198,760.

Made from step 507 deferred_reduce_add (dQ added a tile later) of the FMHA tutorial by
python -m steps.export deferred_reduce_add --head-dim 64 --seq-len 4096 --dtype float16 --no-causal
With --head-dim 128 it writes: TILE_QUERY 64; LANES 32; HEAD_DIM 128; ROWS_SCALED 4; ROWS_PREPARED 8; other layouts
SUMS, SCORES; other lines in issue_own_d_query, consume; not as functions of their own: store_for_tma, let_tma_add; also
add_by_tma (Store a warpgroup's dQ when TMA has read the last one, and ask it to add this one); also number_of (A number
for each query, along the columns of scores [1, query]).
"""

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
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.testing import do_bench

SMALL_ROWS, TILE_QUERY, LANES, HEAD_DIM, INVERSE_LN2 = map(gl.constexpr, (32, 128, 16, 64, 1.4426950408889634))
TILE_KEY, STAGES, WARPGROUPS, QUERY_ROWS, QUERY_COLUMNS, WRITERS, KEYS = map(gl.constexpr, (128, 2, 2, 64, 64, 2, 64))
KEY_TILES, ROWS_SCALED, ROWS_PREPARED, LN2, AHEAD, KEPT = map(gl.constexpr, (1, 8, 16, 0.6931471805599453, 144, 64))
D, TILE_Q, TILE_K = HEAD_DIM.value, TILE_QUERY.value, TILE_KEY.value
AWAIT = gl.constexpr("{ .reg .pred wrong; .reg .b32 seen; again: ld.acquire.gpu.global.b32 seen, [$1]; setp.ne.b32 "
    "wrong, seen, $2; @wrong bra again; fence.proxy.async.global; mov.b32 $0, seen; }")  # fmt: skip
SHARED = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4))
SHARED_NUMBERS = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32))
SHARED_SCORES = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16))
SHARED_SUMS = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=4))
SUMS = QUERY_SUMS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
SCORES = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16]))
SHARED_FOURS = gl.constexpr(gl.SharedLinearLayout(offset_bases=[[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [1, 20],
    [2, 8], [4, 16], [8, 0], [16, 0], [32, 0], [0, 32]]))  # fmt: skip
QUERY_FOURS = gl.constexpr(gl.DistributedLinearLayout([[0, 1], [0, 2], [8, 0], [0, 16], [0, 32]], [[0, 4], [0, 8],
    [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [64, 64]))  # fmt: skip
FACTOR = gl.constexpr(gl.DotOperandLayout(operand_index=0, parent=SUMS, k_width=2))
KEY_FACTOR = gl.constexpr(gl.DotOperandLayout(operand_index=0, parent=SCORES, k_width=2))

# Global memory, for TMA. numbers: log-sum-exps in base 2, and row sums (delta) below [head, query]; sums: of dQ.
Arrays = namedtuple("Arrays", "query key value d_output numbers sums d_key d_value")
# Pointers; strides of o, dO, lse, dQ. counts: of what is done. rates: pieces of rows an iteration, times 2^16.
Aside = namedtuple("Aside", "counts output d_output lse numbers sums d_query strides rates length padded heads batches")
# Shared memory: K and V of the block, rings for what belongs to queries, two slots for dS. d_query: dQ, for TMA.
Tiles = namedtuple("Tiles", "key value query lse d_output row_sum d_scores d_query")
# mbarriers: a slot is full, or empty. done: K and V are read, dK and dV there.
Barriers = namedtuple("Barriers", "keys_full query_full query_empty d_output_full d_output_empty d_scores_full done")
# A block's keys. a_head: tiles of queries of a head.
Work = namedtuple("Work", "key_row head kv_head batch heads batches a_head")


@gluon.jit
def store_for_tma(d_query, tiles, warpgroup: gl.constexpr):
    """Store a warpgroup's dQ where TMA reads it, once TMA has read the one before. A fence must follow."""
    tma.store_wait(0)
    # A tile with other columns side by side: of 16, a lane has two, and two that lie 8 further. No number moves.
    d_query = d_query.reshape([d_query.shape[0], d_query.shape[1] // 16, 2, 4, 2]).permute((0, 1, 3, 2, 4))
    d_query = d_query.reshape([d_query.shape[0], 16 * d_query.shape[1]])
    d_query = gl.convert_layout(d_query, QUERY_FOURS, assert_trivial=True)
    tiles.d_query.index(warpgroup).reinterpret(gl.float32, [QUERY_ROWS, QUERY_COLUMNS], SHARED_FOURS).store(d_query)


@gluon.jit
def let_tma_add(arrays, tiles, iteration, work, warpgroup: gl.constexpr):
    """Ask TMA to add a warpgroup's dQ of an iteration, which the warpgroup has stored."""
    fence_async_shared()
    corner = [work.batch, work.head, (iteration * TILE_QUERY) + warpgroup * QUERY_ROWS, 0]
    tma.async_atomic_add(arrays.sums, corner, tiles.d_query.index(warpgroup))


@gluon.jit
def produce(arrays, tiles, barriers, work, aside):
    """The producer: fetches the block's keys and values, and then tiles of queries, each when its slot is empty."""
    keys_full = barriers.keys_full.index(0)
    mbarrier.expect(keys_full, arrays.key.nbytes_per_cta + arrays.value.nbytes_per_cta)
    tma.async_load(arrays.key, [work.batch, work.kv_head, work.key_row, 0], keys_full, tiles.key)
    tma.async_load(arrays.value, [work.batch, work.kv_head, work.key_row, 0], keys_full, tiles.value)
    gdc_launch_dependents()
    gdc_wait()  # now: no kernel of this call has written keys or values
    # Wait until spare warps have made a given number of pieces for this block's head.
    pieces = aside.padded // ROWS_PREPARED
    own = work.batch * gl.num_programs(1) + work.head
    if own >= gl.maximum(2, AHEAD // gl.num_programs(0)):  # earlier heads' rows were made by the kernel in front
        gl.inline_asm_elementwise(AWAIT, "=r,l,r", [aside.counts + own, pieces], dtype=gl.int32, is_pure=False, pack=1)
    for iteration in range(work.a_head):
        line = work.batch * work.heads + work.head
        slot, used = iteration % STAGES, iteration // STAGES & 1 ^ 1
        mbarrier.wait(barriers.query_empty.index(slot), used)
        # Ask TMA for a tile of queries of Q or dO, and for its log-sum-exps or row sums, to fill the n-th slot.
        full, tile, rest = barriers.query_full.index(slot), tiles.query.index(slot), tiles.lse.index(slot)
        mbarrier.expect(full, arrays.query.nbytes_per_cta + arrays.numbers.nbytes_per_cta)
        tma.async_load(arrays.query, [work.batch, work.head, iteration * TILE_QUERY, 0], full, tile)
        tma.async_load(arrays.numbers, [line, iteration * TILE_QUERY], full, rest)
        mbarrier.wait(barriers.d_output_empty.index(slot), used)
        full, tile, rest = barriers.d_output_full.index(slot), tiles.d_output.index(slot), tiles.row_sum.index(slot)
        mbarrier.expect(full, arrays.d_output.nbytes_per_cta + arrays.numbers.nbytes_per_cta)
        tma.async_load(arrays.d_output, [work.batch, work.head, iteration * TILE_QUERY, 0], full, tile)
        tma.async_load(arrays.numbers, [work.batches * work.heads + line, iteration * TILE_QUERY], full, rest)


@gluon.jit
def issue_own_d_query(tiles, iteration, warpgroup: gl.constexpr):
    """Begin this warpgroup's share of an iteration's dQ: its queries, or its columns."""
    d_scores, keys = tiles.d_scores.index(iteration & 1), tiles.key.reshape([TILE_KEY, HEAD_DIM])
    d_scores = d_scores.slice(warpgroup * QUERY_ROWS, QUERY_ROWS, 1)
    # Begin dQ [query, head_dim] of a tile: dS, turned, times K.
    none = gl.full([QUERY_ROWS, QUERY_COLUMNS], 0.0, gl.float32, QUERY_SUMS)
    return warpgroup_mma(d_scores.permute((1, 0)), keys, none, use_acc=False, is_async=True)


@gluon.jit
def consume(arrays, tiles, barriers, work, scale, aside, warpgroup: gl.constexpr):
    """A warpgroup: dK and dV of its keys, and its share of what the block adds to dQ."""
    dtype: gl.constexpr = tiles.key.dtype
    keys = tiles.key.reshape([TILE_KEY, HEAD_DIM]).slice(warpgroup * KEYS, KEYS, 0)
    values = tiles.value.reshape([TILE_KEY, HEAD_DIM]).slice(warpgroup * KEYS, KEYS, 0)
    d_key, d_value = gl.full([KEYS, HEAD_DIM], 0.0, gl.float32, SUMS), gl.full([KEYS, HEAD_DIM], 0.0, gl.float32, SUMS)
    mbarrier.wait(barriers.keys_full.index(0), 0)
    kept = keys.slice(0, KEPT, 1).load(KEY_FACTOR)
    for iteration in range(0, work.a_head):
        query = tiles.query.index(iteration % STAGES).reshape([TILE_QUERY, HEAD_DIM])
        d_output = tiles.d_output.index(iteration % STAGES).reshape([TILE_QUERY, HEAD_DIM])
        # --- the weights again, and dV ---
        mbarrier.wait(barriers.query_full.index(iteration % STAGES), iteration // STAGES & 1)
        # Begin scores [key, query], with K from registers as far as it is kept there, else from shared memory.
        none = gl.full([KEYS, TILE_QUERY], 0.0, gl.float32, SCORES)
        scores = warpgroup_mma(kept, query.slice(0, KEPT, 1).permute((1, 0)), none, use_acc=False, is_async=True)
        mbarrier.wait(barriers.d_output_full.index(iteration % STAGES), iteration // STAGES & 1)
        # Begin a product [key, query]: scores from K and Q, or the weights' gradient from V and dO.
        d_weights = warpgroup_mma(values, d_output.permute((1, 0)), none, use_acc=False, is_async=True)
        # Ask TMA to add what was stored at the end of the iteration before.
        if iteration > 1:
            let_tma_add(arrays, tiles, iteration - 2, work, warpgroup)
        scores = warpgroup_mma_wait(1, deps=[scores])
        # A number for each query, along the columns of scores [1, query].
        lse = tiles.lse.index(iteration % STAGES).reshape([TILE_QUERY]).load(gl.SliceLayout(0, SCORES))[None, :]
        # The weights [key, query] again, from scores and log-sum-exps in base 2; zero where the mask hides.
        weights = gl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [scores * scale - lse], dtype=gl.float32, is_pure=True, pack=1
        )
        rounded = weights.to(dtype)
        d_value = warpgroup_mma(gl.convert_layout(rounded, FACTOR), d_output, d_value, is_async=True)
        # --- dS ---
        d_weights = warpgroup_mma_wait(1, deps=[d_weights])
        weights = rounded.to(gl.float32)
        # dS: the row sums are taken off now.
        delta = tiles.row_sum.index(iteration % STAGES).reshape([TILE_QUERY]).load(gl.SliceLayout(0, SCORES))[None, :]
        d_scores = (weights * (d_weights - delta)).to(dtype)
        other = iteration + 1  # its parity names the other of the two slots of dS: the iteration before wrote that
        # Wait until the slot of dS is free: both warpgroups have released dO of the iteration before.
        told = (iteration + STAGES - 1) // STAGES & 1 ^ 1
        mbarrier.wait(barriers.d_output_empty.index((iteration + 1) % STAGES), told)
        tiles.d_scores.index(iteration & 1).slice(warpgroup * KEYS, KEYS, 0).store(d_scores)
        # --- dQ of the iteration before, added under dK's product; iteration 0's, of an unwritten slot, is dropped ---
        mbarrier.wait(barriers.d_scores_full.index(other & 1), iteration - 1 >> 1 & 1)
        d_query = issue_own_d_query(tiles, other, warpgroup)
        d_key = warpgroup_mma(gl.convert_layout(d_scores, FACTOR), query, d_key, is_async=True)
        # Tell both warpgroups that this one has stored its dS of an iteration. wgmma reads it, which takes a fence.
        fence_async_shared()
        mbarrier.arrive(barriers.d_scores_full.index(iteration & 1), count=1)
        d_value, d_query = warpgroup_mma_wait(1, deps=[d_value, d_query])
        mbarrier.arrive(barriers.d_output_empty.index(iteration % STAGES), count=1)
        if iteration > 0:
            store_for_tma(d_query, tiles, warpgroup)
        d_key = warpgroup_mma_wait(0, deps=[d_key])
        mbarrier.arrive(barriers.query_empty.index(iteration % STAGES), count=1)
    # --- dQ of the last iteration ---
    if work.a_head > 0:
        if work.a_head > 1:
            let_tma_add(arrays, tiles, work.a_head - 2, work, warpgroup)
        mbarrier.wait(barriers.d_scores_full.index(work.a_head + 1 & 1), work.a_head - 1 >> 1 & 1)
        d_query = warpgroup_mma_wait(0, deps=[issue_own_d_query(tiles, work.a_head + 1, warpgroup)])
        store_for_tma(d_query, tiles, warpgroup)
        let_tma_add(arrays, tiles, work.a_head - 1, work, warpgroup)
    # --- dK and dV ---
    # Wait until all warpgroups are here.
    mbarrier.arrive(barriers.done.index(0), count=1)
    mbarrier.wait(barriers.done.index(0), 0)
    keys.store((d_key * (scale * LN2)).to(dtype))
    values.store(d_value.to(dtype))
    fence_async_shared()
    mbarrier.arrive(barriers.done.index(1), count=1)
    mbarrier.wait(barriers.done.index(1), 0)
    if warpgroup == 0:
        tma.async_store(arrays.d_key, [work.batch, work.kv_head, work.key_row, 0], tiles.key)
        tma.async_store(arrays.d_value, [work.batch, work.kv_head, work.key_row, 0], tiles.value)
    LEFT: gl.constexpr = 2 if warpgroup == 0 else 0  # dK and dV
    # Count this warpgroup of this block, when all that it has added to dQ is in global memory.
    WRITTEN: gl.constexpr = f"cp.async.bulk.wait_group {LEFT}; mov.b32 $0, 0;"
    gl.inline_asm_elementwise(WRITTEN, "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    gl.barrier()  # one thread counts for all
    lines = gl.num_programs(1) * gl.num_programs(2)
    gl.atomic_add(aside.counts + lines + (work.batch * gl.num_programs(1) + work.head), 1, sem="release", scope="gpu")
    tma.store_wait(0)


@gluon.jit
def prepare_rows(aside, first_row, line, clear, rows: gl.constexpr):
    """A few rows of a head: log-sum-exps in base 2; row sums (delta) of dO * O; zeros for dQ, where asked for."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 16], [512 // HEAD_DIM, HEAD_DIM // 16], [gl.num_warps(), 1], [1, 0])
    ZEROS: gl.constexpr = gl.BlockedLayout([4], [32], [gl.num_warps()], [0])
    of_o, of_do, of_lse = aside.strides[0], aside.strides[1], aside.strides[2]
    head, batch = (line % aside.heads).to(gl.int64), (line // aside.heads).to(gl.int64)
    row = first_row + gl.arange(0, rows, gl.SliceLayout(1, LAYOUT))
    column = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, LAYOUT))
    there = row < aside.length
    far = gl.minimum(row, aside.length - 1).to(gl.int64)  # a row that exists, so that loads need no mask
    own = batch * aside.heads + head
    lse = gl.load(aside.lse + batch * of_lse[0] + head * of_lse[1] + far * of_lse[2])
    o_rows = aside.output + batch * of_o[0] + head * of_o[1] + (far[:, None] * of_o[2] + column[None, :])
    do_rows = aside.d_output + batch * of_do[0] + head * of_do[1] + (far[:, None] * of_do[2] + column[None, :])
    o, do = gl.load(o_rows), gl.load(do_rows)
    row_sum = gl.sum(o.to(gl.float32) * do.to(gl.float32), 1)
    gl.store(aside.numbers + (aside.batches * aside.heads + own) * aside.padded + row, gl.where(there, row_sum, 0.0))
    there &= lse > float("-inf")
    gl.store(aside.numbers + own * aside.padded + row, gl.where(there, lse * INVERSE_LN2, float("inf")))
    if clear:
        offset = (line.to(gl.int64) * aside.padded + first_row) * HEAD_DIM + gl.arange(0, rows * HEAD_DIM, ZEROS)
        gl.store(aside.sums + offset, gl.full([rows * HEAD_DIM], 0.0, gl.float32, ZEROS))


@gluon.jit(do_not_specialize=["seq_len_q", "padded", "heads", "batches", "counts", "clearing"])
def prepare(Out, DO, LSE, Numbers, Sums, strides, seq_len_q, padded, heads, batches, counts, clearing, Counts):
    """All that is made ready for a tile of queries; and zeros, shared out among the tiles."""
    gdc_wait()
    gdc_launch_dependents()  # now: the next kernel reads keys and values at once, which those before this one may write
    i = gl.program_id(0)
    line = gl.num_programs(1) * gl.num_programs(2) - 1 - (gl.program_id(1) + gl.num_programs(1) * gl.program_id(2))
    aside = Aside(Counts, Out, DO, LSE, Numbers, Sums, None, strides, None, seq_len_q, padded, heads, batches)
    prepare_rows(aside, i * SMALL_ROWS, line, line < clearing, SMALL_ROWS)
    for n in range(line * gl.num_programs(0) + i, counts, gl.num_programs(0) * gl.num_programs(1) * gl.num_programs(2)):
        gl.store(Counts + n, 0)


@gluon.jit
def round_rows(aside, strides, scale, factor: gl.constexpr, first_row, line, rows: gl.constexpr):
    """A few rows of dQ, or of dK or dV: what has been added up, times scale and factor, rounded."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 4], [32 // LANES, LANES], [gl.num_warps(), 1], [1, 0])
    head, batch = line % aside.heads, line // aside.heads
    row = first_row + gl.arange(0, rows, gl.SliceLayout(1, LAYOUT))
    column = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, LAYOUT))
    offset = row[:, None] * HEAD_DIM + (column[None, :] ^ (row & 1)[:, None] * 16)  # swaps halves
    offset = gl.max_contiguous(gl.multiple_of(offset, [1, 4]), [1, 4])
    sums = gl.load(aside.sums + (batch.to(gl.int64) * aside.heads + head) * aside.padded * HEAD_DIM + offset)
    column = (column & -16) + (column >> 1 & 1) * 8 + (column >> 2 & 3) * 2 + (column & 1)  # two, 8 further two
    to = aside.d_query + batch.to(gl.int64) * strides[0] + head.to(gl.int64) * strides[1]
    target = gl.max_contiguous(gl.multiple_of(row.to(gl.int64)[:, None] * strides[2] + column[None, :], [1, 2]), [1, 2])
    gl.store(to + target, (sums * scale * factor).to(to.dtype.element_ty), mask=(row < aside.length)[:, None])


@gluon.jit(do_not_specialize=["seq_len_q", "padded", "heads", "first_line"])
def scaled(Sums, DQ, dq_strides, scale, seq_len_q, padded, heads, first_line):
    """dQ of a tile of queries: what has been added up, times the scale, rounded; of heads from ``first_line`` on."""
    gdc_wait()
    i = gl.program_id(0)
    line = first_line + (
        gl.num_programs(1) * gl.num_programs(2) - 1 - (gl.program_id(1) + gl.num_programs(1) * gl.program_id(2))
    )
    aside = Aside(None, None, None, None, None, Sums, DQ, None, None, seq_len_q, padded, heads, None)
    round_rows(aside, dq_strides, scale, 1.0, i * SMALL_ROWS, line, SMALL_ROWS)


@gluon.jit
def barrier_ring(length: gl.constexpr, arrivals: gl.constexpr):
    """A ring of mbarriers; each completes after the given number of arrivals."""
    barriers = gl.allocate_shared_memory(gl.int64, [length, 1], mbarrier.MBarrierLayout())
    for n in gl.static_range(length):
        mbarrier.init(barriers.index(n), count=arrivals)
    return barriers


@gluon.jit
def spare(work, scale, aside, behind: gl.constexpr):
    """Spare warps: they prepare rows of a later head, or scale dQ of one behind, when all has been added to it."""
    ROWS: gl.constexpr = ROWS_SCALED if behind else ROWS_PREPARED
    gdc_wait()
    own = work.batch * gl.num_programs(1) + work.head
    ahead = gl.maximum(2, AHEAD // gl.num_programs(0))
    lines = gl.num_programs(1) * gl.num_programs(2)
    line = own - ahead if behind else own + ahead
    if line >= 0 if behind else line < lines:
        # (first, end) of so many pieces of a head's work: this block's share, by the iterations that it takes.
        pieces = aside.padded // ROWS
        rate = aside.rates[behind]
        j, tiles = work.key_row // TILE_KEY, work.a_head.to(gl.int64)
        first = gl.minimum(j.to(gl.int64) * tiles * rate >> 16, pieces).to(gl.int32)
        end = gl.minimum((j + 1).to(gl.int64) * tiles * rate >> 16, pieces).to(gl.int32)
        if behind and first < end:
            added, additions = aside.counts + lines + line, gl.num_programs(0) * WARPGROUPS
            gl.inline_asm_elementwise(AWAIT, "=r,l,r", [added, additions], dtype=gl.int32, is_pure=False, pack=1)
        for piece in range(first, end):
            if behind:
                round_rows(aside, aside.strides[3], scale, LN2, piece * ROWS, line, ROWS)
            else:
                prepare_rows(aside, piece * ROWS, line, True, ROWS)
        if not behind:
            gl.barrier()  # one thread counts for all
            gl.atomic_add(aside.counts + line, end - first, sem="release", scope="gpu")


@gluon.jit(do_not_specialize=["seq_len_q", "seq_len_kv", "heads", "batches", "padded"])
def fmha_backward(Q, K, V, DO, Numbers, Sums, DK, DV, scale, seq_len_q, seq_len_kv, heads, batches, padded, Counts,
        AllSums, DQ, AllNumbers, Out, AllDO, LSE, strides, rates):  # fmt: skip
    arrays = Arrays(Q, K, V, DO, Numbers, Sums, DK, DV)
    # Shared memory: tiles, and the slots of rings.
    OWN: gl.constexpr = [1, 1, TILE_KEY, HEAD_DIM]
    key, value = gl.allocate_shared_memory(Q.dtype, OWN, SHARED), gl.allocate_shared_memory(Q.dtype, OWN, SHARED)
    query = gl.allocate_shared_memory(Q.dtype, [STAGES, 1, 1, TILE_QUERY, HEAD_DIM], SHARED)
    lse = gl.allocate_shared_memory(gl.float32, [STAGES, 1, TILE_QUERY], SHARED_NUMBERS)
    d_output = gl.allocate_shared_memory(Q.dtype, [STAGES, 1, 1, TILE_QUERY, HEAD_DIM], SHARED)
    row_sum = gl.allocate_shared_memory(gl.float32, [STAGES, 1, TILE_QUERY], SHARED_NUMBERS)
    d_scores = gl.allocate_shared_memory(Q.dtype, [2, TILE_KEY, TILE_QUERY], SHARED_SCORES)
    d_query = gl.allocate_shared_memory(gl.float32, [WARPGROUPS, 1, 1, QUERY_ROWS, QUERY_COLUMNS], SHARED_SUMS)
    tiles = Tiles(key, value, query, lse, d_output, row_sum, d_scores, d_query)
    # mbarriers for roles. None is made that nobody uses: the compiler would give its memory to something else, too.
    query_full, d_scores_full, done = barrier_ring(STAGES, 1), barrier_ring(2, WRITERS), barrier_ring(2, WARPGROUPS)
    keys_full, query_empty = barrier_ring(KEY_TILES, 1), barrier_ring(STAGES, WARPGROUPS)
    d_output_full, d_output_empty = barrier_ring(STAGES, 1), barrier_ring(STAGES, WARPGROUPS)
    barriers = Barriers(keys_full, query_full, query_empty, d_output_full, d_output_empty, d_scores_full, done)
    fence_async_shared()  # TMA sees the barriers
    # The work of this block.
    j, head, batch = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    work = Work(j * TILE_KEY, head, head, batch, heads, batches, gl.cdiv(seq_len_q, TILE_QUERY))
    aside = Aside(Counts, Out, AllDO, LSE, AllNumbers, AllSums, DQ, strides, rates, seq_len_q, padded, heads, batches)
    # --- who does what; the first warpgroup's warps are those that the block began with ---
    gl.warp_specialize([
        (consume, (arrays, tiles, barriers, work, scale, aside, 0)),
        (consume, (arrays, tiles, barriers, work, scale, aside, 1)),
        (produce, (arrays, tiles, barriers, work, aside)),
        (spare, (work, scale, aside, 0)),
        (spare, (work, scale, aside, 1)),
    ], [4, 1, 2, 1], [240, 24, 24, 24])  # fmt: skip


def expect(name, wanted, came, fits=None):
    """Raise ValueError unless this fits; where nothing is said of that, unless what came is what is wanted."""
    if not (came == wanted if fits is None else fits):
        raise ValueError(f"{name}: expected {wanted}, got {came}")


def gradients(q, k, v, o, lse, do, scale=None):
    """(dq, dk, dv) of attention. o: its output; lse: each query's log-sum-exp, natural logarithm; do: o's gradient."""
    shapes = {"q": [*q.shape[:3], D], "k": [*q.shape[:2], *k.shape[2:3], D], "v": [*k.shape]}
    shapes |= {"o": [*q.shape], "do": [*q.shape]}
    for (name, shape), x in zip(shapes.items(), (q, k, v, o, do)):
        expect(name, f"torch.float16 {shape} on {q.device}", f"{x.dtype} {[*x.shape]} on {x.device}")
        expect(name, "data that begin at a multiple of 16 bytes", hex(x.data_ptr()), x.data_ptr() % 16 == 0)
        fits = x.stride(3) == 1 and all(n > 0 and n % 8 == 0 for n in x.stride()[:3])
        expect(name, "strides in steps of 16 bytes, and a last one of 1", x.stride(), fits)
    expect("lse", f"torch.float32 {[*q.shape[:3]]} on {q.device}", f"{lse.dtype} {[*lse.shape]} on {lse.device}")
    expect("q", "a tensor on a GPU", f"one on {q.device}", q.device.type == "cuda")
    expect("q and k", "no length of 0", f"{[*q.shape]} and {[*k.shape]}", min(*q.shape, *k.shape) > 0)
    expect("k", f"a multiple of {TILE_K} keys", k.shape[2], k.shape[2] % TILE_K == 0)
    expect("q", f"a multiple of {TILE_Q} queries", q.shape[2], q.shape[2] % TILE_Q == 0)
    scale = 1 / math.sqrt(D) if scale is None else scale
    expect("scale", "a number above 0", scale, scale > 0)
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    (batch, heads, seq_len_q, _), (_, kv_heads, seq_len_kv, _) = q.shape, k.shape
    tiles, blocks = -(-seq_len_q // TILE_Q), -(-seq_len_kv // TILE_K)  # of queries, and of keys, a head
    padded, lines = tiles * TILE_Q, batch * heads
    numbers, sums = (q.new_empty(n, dtype=torch.float32) for n in ((2 * lines, padded), (batch, heads, padded, D)))
    counts = torch.empty(2 * lines, dtype=torch.int32, device=q.device)
    strides, sizes = (o.stride()[:3], do.stride()[:3], lse.stride()), (seq_len_q, padded, heads)
    cleared = min(lines, max(2, AHEAD.value // blocks))  # heads that spare warps do not prepare, nor scale
    rows = (padded // SMALL_ROWS.value, 1, cleared)
    queries, d_output = (TensorDescriptor.from_tensor(x, [1, 1, TILE_Q, D], SHARED.value) for x in (q, do))
    keys, values, *into = (TensorDescriptor.from_tensor(x, [1, 1, TILE_K, D], SHARED.value) for x in (k, v, dk, dv))
    of_rows = TensorDescriptor.from_tensor(numbers, [1, TILE_Q], SHARED_NUMBERS.value)
    added = TensorDescriptor.from_tensor(sums, [1, 1, QUERY_ROWS.value, QUERY_COLUMNS.value], SHARED_SUMS.value)
    arguments = (queries, keys, values, d_output, of_rows, added, *into, scale / math.log(2))  # in base 2
    arguments += (seq_len_q, seq_len_kv, heads, batch, padded, counts)
    rates = tuple(-(-(padded // n << 16) // (tiles * blocks)) for n in (ROWS_PREPARED.value, ROWS_SCALED.value))
    arguments += (sums, dq, numbers, o, do, lse, (*strides, dq.stride()[:3]), rates)  # for spare warps
    how = {"num_warps": 4, "enable_fp_fusion": True, "launch_pdl": True}  # begins before the kernel in front ends
    with torch.cuda.device(q.device), triton.knobs.nvidia.scope():
        triton.knobs.nvidia.ptxas_blackwell = triton.knobs.nvidia.ptxas.path  # the older ptxas: it spills less
        prepare[rows](o, do, lse, numbers, sums, strides, *sizes, batch, counts.numel(), cleared, counts, **how)
        fmha_backward[(blocks, kv_heads, batch)](*arguments, **how)
        scaled[rows](sums, dq, dq.stride()[:3], scale, *sizes, lines - cleared, **how)  # of the last heads
    return dq, dk, dv


def exact(q, k, v, do):
    """(o, log-sum-exps, dq, dk, dv) in float64, a head of Q at a time; gradients by autograd."""
    made = []
    for *each, d_rows in zip(*(x.flatten(0, 1) for x in (q, k, v, do))):
        queries, keys, values = leaves = [x.double().requires_grad_() for x in each]
        scores = queries @ keys.T / math.sqrt(D)
        rows = scores.softmax(1) @ values
        made.append([rows.detach(), scores.logsumexp(1).detach(), *torch.autograd.grad(rows, leaves, d_rows.double())])
    return [torch.stack(x).unflatten(0, q.shape[:2]) for x in zip(*made)]


def main():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        print("this program needs an NVIDIA GPU of compute capability 9.0 (H100, H200)", file=sys.stderr)
        return 2
    q, k, v, do = (torch.randn((4, 32, 4096, 64), dtype=torch.float16, device="cuda") for _ in range(4))
    v += 0.5  # so that the mean of the output is not zero
    o, lse, *right = exact(q, k, v, do)
    ours = partial(gradients, q, k, v, o.to(q.dtype), lse.float(), do)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    graph = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=False)
    theirs = partial(torch.autograd.grad, graph, leaves, do, retain_graph=True)
    for name, mine, its, wanted in zip(("dq", "dk", "dv"), ours(), theirs(), right):
        step = torch.finfo(mine.dtype).eps * 2.0 ** math.floor(math.log2(wanted.abs().max()))  # of rounding
        error, limit = (mine - wanted).abs().max(), 2 * (its - wanted).abs().max() + step
        judged = "right" if error <= limit else "WRONG"
        print(f"deferred_reduce_add: {name} {judged}, error {error:.3g}, at most {limit:.3g} is allowed")
        if judged == "WRONG":
            return 1
    mine, its = (do_bench(function, return_mode="median") for function in (ours, theirs))  # milliseconds
    told = [f"{ms:.4f} ms, {1_374_389_534_720 / 1e9 / ms:.1f} TFLOPS" for ms in (mine, its)]  # of the matrix products
    print(f"deferred_reduce_add: {told[0]}; SDPA: {told[1]}; {its / mine:.2f} times as fast")
    return 0


if __name__ == "__main__":
    sys.exit(main())
