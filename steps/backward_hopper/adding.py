"""How a tile of dQ is added to what other blocks have added, from registers or by TMA; and one of dK or dV."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from steps.backward_hopper.in_turn import await_own_turn, await_turn, pass_on
from steps.backward_hopper.instruction import async_reduce_shared_to_global, await_kernels_before
from steps.backward_hopper.pipeline import position


@gluon.jit
def add_to_query(
    d_query, arrays, tiles, barriers, turn, work, padded, Turns, part: gl.constexpr, variant: gl.constexpr
):  # fmt: skip
    """Add a part's dQ [query, head_dim] of a turn's tile of queries to the sums; in turn, if blocks add so."""
    ROWS: gl.constexpr = variant.query_rows
    COLUMNS: gl.constexpr = variant.query_columns
    if variant.adders > 0 and variant.by_tma:
        mbarrier.wait(barriers.sums_free.index(part), turn & 1 ^ 1)
        store_for_tma(d_query, tiles, part, variant)
        fence_async_shared()
        mbarrier.arrive(barriers.sums_ready.index(turn % variant.adders * variant.parts + part), count=1)
    else:
        if variant.adders > 0:
            await_turn(Turns, turn, work, part, variant)
        elif variant.in_turn:
            await_own_turn(Turns, turn, work, part, variant)
        if variant.by_tma:
            tma.store_wait(0)
            store_for_tma(d_query, tiles, part, variant)
            if not variant.added_later:
                let_tma_add(arrays, tiles, turn, work, part, variant)
        else:
            if variant.in_fours:
                FOURS: gl.constexpr = variant.query_fours
                LAYOUT: gl.constexpr = variant.query_lines if variant.whole_lines else FOURS
                d_query = gl.convert_layout(fours_together(d_query, FOURS), LAYOUT)
            else:  # as wgmma leaves it, a lane has pairs of neighbouring columns
                LAYOUT: gl.constexpr = variant.query_sums
            D: gl.constexpr = variant.head_dim
            batch, head, first_row, first_column = corner(turn, work, part, variant)
            start = ((batch.to(gl.int64) * work.heads + head) * padded + first_row) * D + first_column
            row = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
            column = gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT))
            place = arrays.sums + (start + row * D)[:, None] + column[None, :]
            gl.atomic_add(place, d_query, sem="relaxed", scope="gpu")
        if variant.adders > 0:
            mbarrier.wait(barriers.sums_free.index(part), turn & 1 ^ 1)
            gl.barrier()  # one thread tells for all
            mbarrier.arrive(barriers.sums_ready.index(part), count=1)


@gluon.jit
def corner(turn, work, part: gl.constexpr, variant: gl.constexpr):
    """Where a part's dQ of a turn's tile of queries begins: [batch, head, row, column]."""
    head, i = position(work, turn, variant)
    first_row = i * variant.tile.query + (part * variant.query_rows if variant.rows_apart else 0)
    first_column = 0 if variant.rows_apart else part * variant.query_columns
    return [work.batch, head, first_row, first_column]


@gluon.jit
def store_for_tma(d_query, tiles, part: gl.constexpr, variant: gl.constexpr):
    """Store a part's dQ where TMA reads it. A fence must follow."""
    ROWS: gl.constexpr = variant.query_rows
    COLUMNS: gl.constexpr = variant.query_columns
    place = tiles.d_query.index(part)
    if variant.in_fours:
        place_of_fours = place.reinterpret(gl.float32, [ROWS, COLUMNS], variant.shared_fours)
        LAYOUT: gl.constexpr = variant.query_fours
        place_of_fours.store(fours_together(d_query, LAYOUT))
    else:
        place.reshape([ROWS, COLUMNS]).store(d_query)


@gluon.jit
def let_tma_add(arrays, tiles, turn, work, part: gl.constexpr, variant: gl.constexpr):
    """Ask TMA to add a part's dQ of a turn, which the part has stored."""
    fence_async_shared()
    async_reduce_shared_to_global(arrays.sums, corner(turn, work, part, variant), tiles.d_query.index(part))


@gluon.jit
def add_in_turn(arrays, tiles, barriers, work, Turns, first: gl.constexpr, variant: gl.constexpr):
    """An adder, a warp: adds what both parts have stored, when it is this block's turn, and passes the tile on.

    It waits in place of the warps that compute: for the blocks before, and until TMA has written global memory. Of two
    adders each takes every other tile, from the ``first`` on, so that it waits while the other is at work.
    """
    PARTS: gl.constexpr = variant.parts
    ADDERS: gl.constexpr = variant.adders
    await_kernels_before(variant)
    for turn in range(first, variant.group_size * work.a_head, ADDERS):
        await_turn(Turns, turn, work, 0, variant)
        for part in gl.static_range(PARTS):
            mbarrier.wait(barriers.sums_ready.index(first * PARTS + part), turn // ADDERS & 1)
            async_reduce_shared_to_global(arrays.sums, corner(turn, work, part, variant), tiles.d_query.index(part))
        tma.store_wait(0)
        for part in gl.static_range(PARTS):
            mbarrier.arrive(barriers.sums_free.index(part), count=1)
        pass_on(Turns, turn, work, 0, variant)


@gluon.jit
def pass_turns_on(barriers, work, Turns, part: gl.constexpr, variant: gl.constexpr):
    """A warp for a part that adds from registers: it passes a tile on when the part has added to it."""
    for turn in range(variant.group_size * work.a_head):
        mbarrier.wait(barriers.sums_ready.index(part), turn & 1)
        mbarrier.arrive(barriers.sums_free.index(part), count=1)
        pass_on(Turns, turn, work, part, variant)


@gluon.jit
def fours_together(x, layout: gl.constexpr):
    """A tile with other columns side by side: of 16, a lane has two, and two that lie 8 further. No number moves."""
    ROWS: gl.constexpr = x.shape[0]
    COLUMNS: gl.constexpr = x.shape[1]
    x = x.reshape([ROWS, COLUMNS // 16, 2, 4, 2]).permute((0, 1, 3, 2, 4)).reshape([ROWS, COLUMNS])
    return gl.convert_layout(x, layout, assert_trivial=True)


@gluon.jit
def add_to_keys(x, sums, work, part: gl.constexpr, variant: gl.constexpr):
    """Add a part's dK or dV of one query head to what the others of the group add: fours, as for dQ."""
    LAYOUT: gl.constexpr = variant.key_fours
    padded = gl.num_programs(0) * variant.tile.key
    line = work.batch.to(gl.int64) * (work.heads // variant.sharing) + work.kv_head
    row = work.key_row + part * variant.keys + gl.arange(0, variant.keys, gl.SliceLayout(1, LAYOUT))
    column = gl.arange(0, variant.head_dim, gl.SliceLayout(0, LAYOUT))
    place = sums + line * padded * variant.head_dim + (row * variant.head_dim)[:, None] + column[None, :]
    gl.atomic_add(place, fours_together(x, LAYOUT), sem="relaxed", scope="gpu")
