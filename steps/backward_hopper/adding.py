"""Pieces of the backward kernels for Hopper: how dQ is added to what other blocks have added, and in which order.

A float32 sum depends on the order of its additions. Where blocks add in a fixed order, its last bits are the same every
time: for every tile of dQ, and every warpgroup, global memory holds a number, how many blocks have added. A block waits
until all before it have, adds, and counts itself. It counts itself an iteration later, when TMA has long written what
it added, so that it seldom waits for that. Warps of their own may do all of this, or count the block as soon as it has
added.

The order is that of the blocks' numbers, in which a GPU starts them: a block waits for such as have started, and they
cannot all wait. Without a mask all blocks begin with the first tile of queries, and the first to add is block 0. Under
a causal mask the last keys come first: of all that add to a tile, their block begins with it. A block comes to a tile
when those before it have gone on, and nobody waits for long. FlashAttention-3 has that order, and calls it "shortest
processing time first" (https://github.com/Dao-AILab/flash-attention/pull/1893).

Where blocks begin in sections (``lib.l2_aware_lpt``), blocks of other heads begin between two of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from steps.backward_hopper.lib import (
    AWAIT,
    LN2,
    Helpers,
    async_reduce_shared_to_global,
    await_written,
    nothing,
    position,
    scratch_row,
)
from steps.core.fused import Pieces
from steps.gluon import names  # noqa: F401


@dataclass(frozen=True)
class Adding(Pieces):
    """How dQ is added. add(d_query, arrays, tiles, iteration, work, padded, warpgroup, variant): that of an iteration.

    order(d_query, variant): dQ as the sums have its columns. later(arrays, tiles, iterations, work, warpgroup,
    variant): what is left to do of an iteration when the next scores are under way; rest(...): when all iterations are
    over. by_tma: whether TMA adds. fours: whether the sums have a lane's four columns side by side. complete: a tile of
    dQ comes from one block, which stores it, scaled and rounded; sums are those for dK and dV alone.
    """

    add: Callable
    order: Callable
    later: Callable
    rest: Callable
    by_tma: bool
    fours: bool
    complete: bool = False


@dataclass(frozen=True)
class Sequence(Pieces):
    """In which order blocks add. before(barriers, aside, iteration, work, warpgroup, variant): wait until this
    warpgroup may.

    behind(barriers, iteration, warpgroup, variant): it has. end(aside, iteration, work, warpgroup, variant): so it has
    in the last iteration, too.
    """

    before: Callable
    behind: Callable
    end: Callable


@gluon.jit
def add_to_query(
    d_query, arrays, tiles, barriers, iteration, work, scale, padded, aside, warpgroup: gl.constexpr,
    variant: gl.constexpr,
):  # fmt: skip
    """Add a warpgroup's dQ [query, head_dim] of an iteration's tile of queries to the sums."""
    if warpgroup == 1 and variant.query_piece is not None:
        d_query = with_zeros(d_query, variant)
    variant.sequence.before(barriers, aside, iteration, work, warpgroup, variant)
    if variant.adding.complete:
        d_query *= scale * LN2
    variant.adding.add(d_query, arrays, tiles, iteration, work, padded, warpgroup, variant)
    variant.sequence.behind(barriers, iteration, warpgroup, variant)


@gluon.jit
def with_zeros(d_query, variant: gl.constexpr):
    """A piece of dQ, and zeros for the columns behind it."""
    DOUBLINGS: gl.constexpr = variant.doublings
    for _ in gl.static_range(DOUBLINGS):
        wider = gl.join(d_query, gl.zeros_like(d_query)).permute((0, 2, 1))
        d_query = wider.reshape([d_query.shape[0], 2 * d_query.shape[1]])
    return gl.convert_layout(d_query, variant.query_sums, assert_trivial=True)


@gluon.jit
def corner(iteration, work, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Where a warpgroup's dQ of an iteration's tile of queries begins: [batch, head, row, column]."""
    head, i = position(work, iteration, variant)
    row = scratch_row(i, work, variant)
    if variant.rows_apart:
        return [work.batch, head, row + warpgroup * variant.query_rows, 0]
    else:
        return [work.batch, head, row, warpgroup * variant.query_columns]


# --- from registers ---


@gluon.jit
def add_from_registers(d_query, arrays, tiles, iteration, work, padded, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Lanes add what they have."""
    ROWS: gl.constexpr = variant.query_rows
    COLUMNS: gl.constexpr = variant.query_columns
    D: gl.constexpr = variant.head_dim
    d_query = variant.adding.order(d_query, variant)
    LAYOUT: gl.constexpr = d_query.type.layout
    batch, head, first_row, first_column = corner(iteration, work, warpgroup, variant)
    start = ((batch.to(gl.int64) * work.heads + head) * padded + first_row) * D + first_column
    row = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    column = gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT))
    addresses = arrays.sums + (start + row * D)[:, None] + column[None, :]
    if variant.sum_columns < D:
        there = (first_column + column < variant.sum_columns)[None, :]
        gl.atomic_add(addresses, d_query, mask=there, sem="relaxed", scope="gpu")
    else:
        gl.atomic_add(addresses, d_query, sem="relaxed", scope="gpu")


@gluon.jit
def in_pairs(d_query, variant: gl.constexpr):
    """As wgmma leaves it, a lane has pairs of neighbouring columns."""
    return d_query


@gluon.jit
def fours_together(x, layout: gl.constexpr):
    """A tile with other columns side by side: of 16, a lane has two, and two that lie 8 further. No number moves."""
    x = x.reshape([x.shape[0], x.shape[1] // 16, 2, 4, 2]).permute((0, 1, 3, 2, 4))
    x = x.reshape([x.shape[0], 16 * x.shape[1]])
    return gl.convert_layout(x, layout, assert_trivial=True)


@gluon.jit
def in_fours(d_query, variant: gl.constexpr):
    """A lane has four columns side by side."""
    return fours_together(d_query, variant.query_fours)


@gluon.jit
def in_lines(d_query, variant: gl.constexpr):
    """A lane has four columns side by side, and eight lanes 128 bytes of a row."""
    return gl.convert_layout(fours_together(d_query, variant.query_fours), variant.query_lines)


@gluon.jit
def add_to_keys(x, sums, work, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Add a warpgroup's dK or dV of one query head to what the others of the group add: fours, as for dQ."""
    if variant.sum_pieces is None:
        add_columns_to_keys(x, sums, work, warpgroup, variant.key_fours, 0, variant)
    else:
        add_columns_to_keys(x[0], sums, work, warpgroup, variant.piece_fours[0], 0, variant)
        add_columns_to_keys(x[1], sums, work, warpgroup, variant.piece_fours[1], variant.sum_pieces[0], variant)


@gluon.jit
def add_columns_to_keys(
    x, sums, work, warpgroup: gl.constexpr, LAYOUT: gl.constexpr, first_column: gl.constexpr, variant: gl.constexpr
):
    """Likewise, of columns from ``first_column`` on."""
    padded = gl.num_programs(0) * variant.tile.key
    line = work.batch.to(gl.int64) * (work.heads // (variant.sharing * variant.group_size)) + work.kv_head
    first_row = work.key_row + warpgroup * variant.keys
    if variant.packed:
        first_row += work.key_rows
    row = first_row + gl.arange(0, variant.keys, gl.SliceLayout(1, LAYOUT))
    column = first_column + gl.arange(0, x.shape[1], gl.SliceLayout(0, LAYOUT))
    addresses = sums + line * padded * variant.head_dim + (row * variant.head_dim)[:, None] + column[None, :]
    if not variant.unseen or work.a_head > 0:  # whoever has had no iteration may be ahead of who clears the sums
        gl.atomic_add(addresses, fours_together(x, LAYOUT), sem="relaxed", scope="gpu")


# --- by TMA: PTX's reduce-add ---


@gluon.jit
def store_for_adder(d_query, arrays, tiles, iteration, work, padded, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Store a warpgroup's dQ where TMA reads it, and let the warp that adds see to the rest."""
    store_for_tma(d_query, tiles, False, warpgroup, variant)
    fence_async_shared()


@gluon.jit
def store_for_tma(d_query, tiles, waits: gl.constexpr, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Store a warpgroup's dQ where TMA reads it, once TMA has read the one before. A fence must follow.

    waits: for TMA, for which somebody else may have waited.
    """
    if waits:
        tma.store_wait(0)
    d_query = variant.adding.order(d_query, variant)
    slot = tiles.d_query.index(warpgroup)
    SHAPE: gl.constexpr = [variant.query_rows, variant.query_columns]
    if variant.adding.fours:
        slot.reinterpret(gl.float32, SHAPE, variant.shared_fours).store(d_query)
    else:
        slot.reshape(SHAPE).store(d_query)


@gluon.jit
def let_tma_add(arrays, tiles, iteration, work, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Ask TMA to add a warpgroup's dQ of an iteration, which the warpgroup has stored."""
    fence_async_shared()
    async_reduce_shared_to_global(
        arrays.sums, corner(iteration, work, warpgroup, variant), tiles.d_query.index(warpgroup)
    )


@gluon.jit
def add_by_tma(d_query, arrays, tiles, iteration, work, padded, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Store a warpgroup's dQ when TMA has read the last one, and ask it to add this one."""
    store_for_tma(d_query, tiles, True, warpgroup, variant)
    let_tma_add(arrays, tiles, iteration, work, warpgroup, variant)


@gluon.jit
def store_to_add_later(d_query, arrays, tiles, iteration, work, padded, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Store a warpgroup's dQ when TMA has read the last one. TMA adds it when the next scores are under way."""
    store_for_tma(d_query, tiles, True, warpgroup, variant)


@gluon.jit
def add_stored(arrays, tiles, iterations, work, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Ask TMA to add what was stored at the end of the iteration before."""
    if iterations > 1:
        let_tma_add(arrays, tiles, iterations - 2, work, warpgroup, variant)


@gluon.jit
def add_last(arrays, tiles, iterations, work, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Ask TMA to add dQ of the last iteration."""
    let_tma_add(arrays, tiles, iterations - 1, work, warpgroup, variant)


# --- where a block has all keys of its head ---


@gluon.jit
def store_complete(d_query, arrays, tiles, iteration, work, padded, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Store a warpgroup's dQ of an iteration, rounded, by TMA, which drops what is past the end of queries or columns.

    arrays.sums: dQ itself.
    """
    tma.store_wait(0)
    slot = tiles.d_query.index(warpgroup)
    slot.reshape([variant.query_rows, variant.query_columns]).store(d_query.to(slot.dtype))
    fence_async_shared()
    tma.async_store(arrays.sums, corner(iteration, work, warpgroup, variant), slot)


@gluon.jit
def collect(d_query, arrays, tiles, iteration, work, padded, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Add a warpgroup's dQ of an iteration to that of the block's tiles of keys before, and store what is complete."""
    _, i = position(work, iteration, variant)
    own = tiles.collected.index(i * variant.warpgroups + warpgroup)
    if work.key_row > 0:
        d_query += own.load(d_query.type.layout)
    if work.key_row + variant.tile.key < work.seq_len_kv:
        own.store(d_query)
    else:
        store_complete(d_query, arrays, tiles, iteration, work, padded, warpgroup, variant)


# --- in a fixed order ---


@gluon.jit
def count_of(aside, iteration, work, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Where it is counted how many blocks have added to this warpgroup's dQ of an iteration's tile."""
    head, i = position(work, iteration, variant)
    line = work.batch * work.heads + head
    tiles = work.first + work.a_head
    if variant.window:  # before the last tile of queries a block's may end
        tiles = aside.padded // variant.tile.query
    if variant.packed:
        tiles, i = aside.padded // variant.tile.query, scratch_row(i, work, variant) // variant.tile.query
    return aside.counts + ((line * tiles + i) * variant.warpgroups + warpgroup)


@gluon.jit
def blocks_before(iteration, work, variant: gl.constexpr):
    """How many blocks add to an iteration's tile before this one."""
    TILE_KEY: gl.constexpr = variant.tile.key
    j = work.key_row // TILE_KEY
    if variant.causal:
        _, i = position(work, iteration, variant)
        last = gl.minimum(gl.cdiv(work.seq_len_kv, TILE_KEY), gl.cdiv((i + 1) * variant.tile.query, TILE_KEY)) - 1
        return last - j
    else:
        return j


@gluon.jit
def pass_on(aside, iteration, work, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Count this block at an iteration's tile, to which it has added."""
    if variant.adding.by_tma:
        await_written(0)
    gl.barrier()  # one thread counts for all
    gl.atomic_add(count_of(aside, iteration, work, warpgroup, variant), 1, sem="release", scope="gpu")


@gluon.jit
def await_blocks_before(barriers, aside, iteration, work, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Wait until all blocks that add to an iteration's tile earlier have."""
    count = count_of(aside, iteration, work, warpgroup, variant)
    before = blocks_before(iteration, work, variant)
    gl.inline_asm_elementwise(AWAIT, "=r,l,r", [count, before], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def pass_on_and_await(barriers, aside, iteration, work, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Pass the tile before on, and wait for this one."""
    if iteration > 0:
        pass_on(aside, iteration - 1, work, warpgroup, variant)
    await_blocks_before(barriers, aside, iteration, work, warpgroup, variant)


# --- warps of their own, which add in order or pass tiles on ---


@gluon.jit
def await_adder(barriers, aside, iteration, work, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Wait until TMA has read this warpgroup's last dQ."""
    mbarrier.wait(barriers.sums_empty.index(warpgroup), iteration & 1 ^ 1)


@gluon.jit
def tell_adder(barriers, iteration, warpgroup: gl.constexpr, variant: gl.constexpr):
    """This warpgroup's dQ is in shared memory."""
    mbarrier.arrive(barriers.sums_full.index(iteration % variant.adders * variant.warpgroups + warpgroup), count=1)


@gluon.jit
def tell_who_passes_on(barriers, iteration, warpgroup: gl.constexpr, variant: gl.constexpr):
    """This warpgroup has added from registers."""
    mbarrier.wait(barriers.sums_empty.index(warpgroup), iteration & 1 ^ 1)
    gl.barrier()  # one thread tells for all
    mbarrier.arrive(barriers.sums_full.index(warpgroup), count=1)


@gluon.jit
def add_in_order(arrays, tiles, barriers, work, scale, padded, aside, first: gl.constexpr, variant: gl.constexpr):
    """An adder, a warp: adds what both warpgroups have stored, when it is this block's turn, and passes the tile on.

    It waits in place of the warps that compute: for the blocks before, and until TMA has written global memory. Of two
    adders each takes every other tile, from the ``first`` on, so that it waits while the other is at work.
    """
    WARPGROUPS: gl.constexpr = variant.warpgroups
    ADDERS: gl.constexpr = variant.adders
    variant.begin.wait()
    for iteration in range(first, variant.group_size * work.a_head, ADDERS):
        await_blocks_before(barriers, aside, iteration, work, 0, variant)
        for warpgroup in gl.static_range(WARPGROUPS):
            mbarrier.wait(barriers.sums_full.index(first * WARPGROUPS + warpgroup), iteration // ADDERS & 1)
            async_reduce_shared_to_global(
                arrays.sums, corner(iteration, work, warpgroup, variant), tiles.d_query.index(warpgroup)
            )
        tma.store_wait(0)
        for warpgroup in gl.static_range(WARPGROUPS):
            mbarrier.arrive(barriers.sums_empty.index(warpgroup), count=1)
        pass_on(aside, iteration, work, 0, variant)


@gluon.jit
def pass_tiles_on(arrays, tiles, barriers, work, scale, padded, aside, warpgroup: gl.constexpr, variant: gl.constexpr):
    """A warp beside a warpgroup that adds from registers: it passes a tile on when the warpgroup has added to it."""
    for iteration in range(variant.group_size * work.a_head):
        mbarrier.wait(barriers.sums_full.index(warpgroup), iteration & 1)
        mbarrier.arrive(barriers.sums_empty.index(warpgroup), count=1)
        pass_on(aside, iteration, work, warpgroup, variant)


# --- the pieces, by what they do ---

PAIRS = Adding(add_from_registers, in_pairs, nothing, nothing, by_tma=False, fours=False)
FOURS = Adding(add_from_registers, in_fours, nothing, nothing, by_tma=False, fours=True)
LINES = Adding(add_from_registers, in_lines, nothing, nothing, by_tma=False, fours=True)
BY_TMA = Adding(add_by_tma, in_pairs, nothing, nothing, by_tma=True, fours=False)
FOURS_BY_TMA = Adding(add_by_tma, in_fours, nothing, nothing, by_tma=True, fours=True)
FOURS_LATER = Adding(store_to_add_later, in_fours, add_stored, add_last, by_tma=True, fours=True)
COMPLETE = Adding(store_complete, in_pairs, nothing, nothing, by_tma=True, fours=True, complete=True)
COLLECTED = Adding(collect, in_pairs, nothing, nothing, by_tma=True, fours=True, complete=True)
ANY_ORDER = Sequence(nothing, nothing, nothing)
IN_ORDER = Sequence(pass_on_and_await, nothing, pass_on)
BY_ADDER = Sequence(await_adder, tell_adder, nothing)
PASSED_ON = Sequence(await_blocks_before, tell_who_passes_on, nothing)
ADDER = Helpers(add_in_order, None, nothing, nothing, (1,), hear=2)
TWO_ADDERS = Helpers(add_in_order, add_in_order, nothing, nothing, (1, 1), hear=4)
PASS_ON = Helpers(pass_tiles_on, pass_tiles_on, nothing, nothing, (1, 1), hear=2)
