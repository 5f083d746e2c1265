"""How tiles come to shared memory: a block keeps its K and V, and a producer warp fetches Q and dO, tile by tile.

The instructions are in the PTX ISA under "cp.async.bulk.tensor" and "mbarrier".
"""

from __future__ import annotations

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from steps.backward_hopper.instruction import await_kernels_before, let_next_begin
from steps.backward_hopper.spare import await_made


class Arrays(NamedTuple):
    """Arrays in global memory, as TMA knows them. numbers: log-sum-exps in base 2 [head, query], and D below them.

    sums: dQ in float32, rows padded to whole tiles: a pointer, or for TMA to add to, and to clear. d_key, d_value:
    where query heads have blocks of their own, pointers to the like for dK and dV.
    """

    query: object
    key: object
    value: object
    d_output: object
    numbers: object
    sums: object
    d_key: object
    d_value: object


class Tiles(NamedTuple):
    """Tiles in shared memory. key, value: the block's own; query, lse, d_output, row_sum: rings; d_scores: two places.

    d_query: every part's dQ of one tile, where TMA adds it.
    """

    key: object
    value: object
    query: object
    lse: object
    d_output: object
    row_sum: object
    d_scores: object
    d_query: object


class Barriers(NamedTuple):
    """mbarriers: complete when TMA has filled a place, and when all parts have used it.

    d_scores_ready, d_scores_free: between parts, when all that write dS have, and when all have multiplied it. Where
    places are freed together, d_output_free says the latter, too, of the turn before.
    done: when all parts have read K and V for the last time, and when all have written dK and dV.
    turns: a part's completes when it is its turn to compute weights.
    sums_ready, sums_free: a part's dQ is in shared memory for the warp that adds it, and TMA has read it. Of two such
    warps each has a sums_ready. Where parts add from registers: a part has added, and the warp that passes on knows.
    """

    keys_ready: object
    query_ready: object
    query_free: object
    d_output_ready: object
    d_output_free: object
    d_scores_ready: object
    d_scores_free: object
    done: object
    turns: object
    sums_ready: object
    sums_free: object


class Work(NamedTuple):
    """What a block computes: its tile of keys, and the turns it takes with tiles of queries, those of a head together.

    head: the kv head; where query heads have blocks of their own, the query head. first: the first tile of queries that
    sees the keys; a_head: tiles from there; cut: tiles below it need the mask.
    """

    key_row: object
    head: object
    kv_head: object
    batch: object
    heads: object
    batches: object
    seq_len_kv: object
    first: object
    a_head: object
    cut: object


@gluon.jit
def place_in_section(variant: gl.constexpr):
    """(tile of keys, head, batch) of this block, where blocks are numbered in sections.

    A GPU starts blocks in the order of their numbers. The heads of all batches are cut into sections. Of a section all
    blocks with the first keys begin: under a causal mask they are the longest. Those with the last keys end it. So two
    neighbouring blocks of a head do not begin one right after the other.
    """
    tiles, heads = gl.num_programs(0), gl.num_programs(1)
    number = gl.program_id(0) + tiles * (gl.program_id(1) + heads * gl.program_id(2))
    section = gl.maximum(1, variant.section // tiles)
    first = number // (tiles * section) * section
    width = gl.minimum(section, heads * gl.num_programs(2) - first)
    n = number - first * tiles
    line = first + n % width
    return n // width, line % heads, line // heads


@gluon.jit
def own_work(seq_len_q, seq_len_kv, heads, batches, variant: gl.constexpr):
    """The work of this block."""
    TILE_KEY: gl.constexpr = variant.tile.key
    TILE_QUERY: gl.constexpr = variant.tile.query
    j, head, batch = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    if variant.in_turn and variant.causal:  # the last keys begin: see in_turn.py
        j = gl.num_programs(0) - 1 - j
    if variant.section:
        j, head, batch = place_in_section(variant)
    tiles = gl.cdiv(seq_len_q, TILE_QUERY)
    first = 0
    cut = 0
    if variant.causal:
        first = gl.minimum(tiles, j * TILE_KEY // TILE_QUERY)
        cut = gl.minimum(tiles, gl.cdiv((j + 1) * TILE_KEY - 1, TILE_QUERY))
    if variant.ragged and (j + 1) * TILE_KEY > seq_len_kv:
        cut = tiles
    return Work(
        j * TILE_KEY, head, head // variant.sharing, batch, heads, batches, seq_len_kv, first, tiles - first, cut
    )


@gluon.jit
def position(work, turn, variant: gl.constexpr):
    """(head, index of the tile of queries) of a turn."""
    head = work.head
    n = turn
    if variant.group_size > 1:
        head = work.head * variant.group_size + turn // work.a_head
        n = turn % work.a_head
    return head, work.first + n


@gluon.jit
def barrier_ring(length: gl.constexpr, arrivals: gl.constexpr):
    """As many mbarriers, each complete after so many arrivals."""
    barriers = gl.allocate_shared_memory(gl.int64, [length, 1], mbarrier.MBarrierLayout())
    for n in gl.static_range(length):
        mbarrier.init(barriers.index(n), count=arrivals)
    return barriers


@gluon.jit
def await_tile(ready, turn, stages: gl.constexpr):
    """Wait until TMA has brought the turn-th tile of a ring."""
    mbarrier.wait(ready.index(turn % stages), turn // stages & 1)


@gluon.jit
def take_turn(barriers, turn, part: gl.constexpr, variant: gl.constexpr):
    """Wait until the other part has computed its dS. Part 0 begins."""
    if variant.alternate:
        FIRST: gl.constexpr = 1 if part == 0 else 0
        mbarrier.wait(barriers.turns.index(part), turn & 1 ^ FIRST)


@gluon.jit
def pass_turn(barriers, part: gl.constexpr, variant: gl.constexpr):
    """Let the other part compute weights."""
    if variant.alternate:
        mbarrier.arrive(barriers.turns.index(1 - part), count=1)


@gluon.jit
def fetch_rows(array, numbers, place, number_place, ready, head, batch, i, line, variant: gl.constexpr):
    """Ask TMA for the i-th tile of queries of Q or dO, and for its log-sum-exps or row sums."""
    ROWS: gl.constexpr = variant.tile.query
    mbarrier.expect(ready, ROWS * (variant.head_dim * place.dtype.primitive_bitwidth // 8 + 4))
    tma.async_load(array, [batch, head, i * ROWS, 0], ready, place)
    tma.async_load(numbers, [line, i * ROWS], ready, number_place)


@gluon.jit
def produce(arrays, tiles, barriers, work, padded, Turns, variant: gl.constexpr):
    """The producer: fetches the block's keys and values, and then tiles of queries, each when its place is free."""
    STAGES: gl.constexpr = variant.stages
    ready = barriers.keys_ready.index(0)
    mbarrier.expect(ready, 2 * variant.tile.key * variant.head_dim * tiles.key.dtype.primitive_bitwidth // 8)
    tma.async_load(arrays.key, [work.batch, work.kv_head, work.key_row, 0], ready, tiles.key)
    tma.async_load(arrays.value, [work.batch, work.kv_head, work.key_row, 0], ready, tiles.value)
    let_next_begin(variant)
    await_kernels_before(variant)  # now: no kernel of this call has written keys or values
    if variant.spare:
        await_made(Turns.counts, Turns.padded, variant.rows_prepared, work, variant)
    if variant.clears:
        await_made(Turns, padded, variant.query_rows, work, variant)
    for turn in range(variant.group_size * work.a_head):
        head, i = position(work, turn, variant)
        line = work.batch * work.heads + head
        stage = turn % STAGES
        used = turn // STAGES & 1 ^ 1
        mbarrier.wait(barriers.query_free.index(stage), used)
        ready = barriers.query_ready.index(stage)
        fetch_rows(
            arrays.query, arrays.numbers, tiles.query.index(stage), tiles.lse.index(stage), ready, head, work.batch, i,
            line, variant,
        )  # fmt: skip
        mbarrier.wait(barriers.d_output_free.index(stage), used)
        ready = barriers.d_output_ready.index(stage)
        fetch_rows(
            arrays.d_output, arrays.numbers, tiles.d_output.index(stage), tiles.row_sum.index(stage), ready, head,
            work.batch, i, work.batches * work.heads + line, variant,
        )  # fmt: skip
