"""Pieces of the Hopper kernels: shared memory, mbarriers, loads by TMA, and which tile of queries comes next.

No piece knows of a step. The instructions are in the PTX ISA under "cp.async.bulk.tensor" and "mbarrier". What goes on
in registers is in ``steps.hopper.products`` and ``steps.hopper.softmax``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from steps.core.fused import Pieces
from steps.gluon.softmax import LOG2E, tiles_to_visit
from steps.hopper.packed import corner, corner_kv, find, hear_task, room_for_task, tell_task
from steps.hopper.pairs import fetch_as_pair, meet
from steps.hopper.panels import fetch_panels, panels_in, room_of_panels
from tutorial_lib import meetings

NO_MEETINGS = gl.constexpr(f"{meetings.MARK}\n mov.b32 $0, 0;")


class Arrays(NamedTuple):
    """Q, K, V and the output in global memory, as TMA knows them: described by shape, strides and box."""

    query: object
    key: object
    value: object
    output: object


class Tiles(NamedTuple):
    """Tiles in shared memory. query, output: slots for each warpgroup; key, value: rings."""

    query: object
    key: object
    value: object
    output: object


class Barriers(NamedTuple):
    """mbarriers of a slot. full: TMA has filled it. empty, if any: all warpgroups have read it."""

    query_full: object
    query_empty: object
    key_full: object
    key_empty: object
    value_full: object
    value_empty: object
    turns: object  # whose turn it is to issue products
    there: object  # in a pair, complete when the other block's slot is empty, too
    nobody: object  # there nobody arrives, so a wait for parity 1 passes, and the compiler moves nothing over it


class Taken(NamedTuple):
    """Where the role that takes tiles of queries tells the others which is next, and mbarriers.

    number: of the tile, or several numbers (``steps.hopper.packed.Task``).
    """

    number: object
    full: object
    empty: object


class Work(NamedTuple):
    """What is to be computed. order, starts: the tiles of block b are order[starts[b] : starts[b + 1]].

    taken: how it is told which tile is next. packed: of packed sequences, where they begin. lines: heads of all
    batches, where blocks compute their tiles. sinks: of query heads, where they have some.
    """

    order: object
    starts: object
    heads: object
    tiles_a_head: object
    seq_len_kv: object
    taken: object = None
    packed: object = None
    lines: object = None
    sinks: object = None


class QueryTile(NamedTuple):
    """A tile of queries. row: of its first query. kv_head, batch: of its keys. seq_len_kv: how many keys there are."""

    row: object
    kv_head: object
    batch: object
    seq_len_kv: object


@gluon.jit
def keys_before(row, variant: gl.constexpr):
    """How many keys stand in tiles that no query of a tile sees, as its sliding window begins behind them."""
    return gl.maximum(row + 1 - variant.window, 0) // variant.tile.key * variant.tile.key


@gluon.jit
def seen(query_tile, variant: gl.constexpr):
    """A tile as if the keys before its window were not there: queries and keys are counted from the first tile seen.

    What a mask asks for, differences of their numbers, stays the same.
    """
    if variant.window:
        before = keys_before(query_tile.row, variant)
        return QueryTile(query_tile.row - before, query_tile.kv_head, query_tile.batch, query_tile.seq_len_kv - before)
    else:
        return query_tile


# --- shared memory and mbarriers ---


@gluon.jit
def barrier_ring(length: gl.constexpr, arrivals: gl.constexpr):
    """A ring of mbarriers; each completes after the given number of arrivals."""
    barriers = gl.allocate_shared_memory(gl.int64, [length, 1], mbarrier.MBarrierLayout())
    for n in gl.static_range(length):
        mbarrier.init(barriers.index(n), count=arrivals)
    return barriers


@gluon.jit
def rooms(dtype: gl.constexpr, variant: gl.constexpr):
    """Slots in shared memory for tiles of queries, keys, values and the output."""
    WARPGROUPS: gl.constexpr = variant.warpgroups
    if variant.in_panels:
        queries = room_of_panels(dtype, variant.query_stages * WARPGROUPS, variant.rows, variant)
        keys = room_of_panels(dtype, variant.stages, variant.tile.key, variant)
    else:
        QUERIES: gl.constexpr = [variant.query_stages * WARPGROUPS] + variant.outer + [variant.rows, variant.head_dim]  # noqa: RUF005
        KEYS: gl.constexpr = [variant.stages] + variant.outer + [variant.tile.key, variant.head_dim]  # noqa: RUF005
        queries = gl.allocate_shared_memory(dtype, QUERIES, variant.shared)
        keys = gl.allocate_shared_memory(dtype, KEYS, variant.shared)
    VALUES: gl.constexpr = [variant.stages] + variant.outer + [variant.tile.key, variant.value_dim]  # noqa: RUF005
    values = gl.allocate_shared_memory(dtype, VALUES, variant.shared)
    outputs = variant.output_to.room(queries, variant)
    return Tiles(queries, keys, values, outputs)


@gluon.jit
def in_place_of_queries(queries, variant: gl.constexpr):
    """The output leaves from where the queries were."""
    return queries


@gluon.jit
def room_of_its_own(queries, variant: gl.constexpr):
    """The output leaves from shared memory of its own, while the next queries arrive."""
    OUTPUTS: gl.constexpr = [variant.warpgroups] + variant.outer + [variant.rows, variant.output_columns]  # noqa: RUF005
    return gl.allocate_shared_memory(queries.dtype, OUTPUTS, variant.shared)


@gluon.jit
def rings(variant: gl.constexpr):
    """mbarriers for roles: a slot is full when TMA has filled it, and empty when all warpgroups have read it.

    A barrier without use is not made: the compiler would give its shared memory to something else, too.
    """
    WARPGROUPS: gl.constexpr = variant.warpgroups
    STAGES: gl.constexpr = variant.stages
    QUERY_STAGES: gl.constexpr = variant.query_stages
    query_full, query_empty = barrier_ring(QUERY_STAGES, 1), barrier_ring(QUERY_STAGES, WARPGROUPS)
    key_full, key_empty = barrier_ring(STAGES, 1), barrier_ring(STAGES, WARPGROUPS)
    value_full, value_empty = barrier_ring(STAGES, 1), barrier_ring(STAGES, WARPGROUPS)
    turns = barrier_ring(WARPGROUPS, 1) if variant.turns.barriers else None
    there = barrier_ring(STAGES, 1) if variant.neighbours > 1 else None
    nobody = barrier_ring(1, 1) if variant.hold.barriers else None
    return Barriers(query_full, query_empty, key_full, key_empty, value_full, value_empty, turns, there, nobody)


@gluon.jit
def all_see_barriers(variant: gl.constexpr):
    """All that use barriers see them."""
    fence_async_shared()
    if variant.neighbours > 1:
        meet()


@gluon.jit
def await_tile(full, awaited, stages: gl.constexpr):
    """Wait until TMA has filled the slot of this tile of a ring."""
    mbarrier.wait(full.index(awaited % stages), awaited // stages & 1)


@gluon.jit
def release(empty, iteration, stages: gl.constexpr):
    """This warpgroup has read this tile of a ring."""
    mbarrier.arrive(empty.index(iteration % stages), count=1)


# --- when the slot of a tile of queries is free ---


@dataclass(frozen=True)
class Free(Pieces):
    """Where a warpgroup says that the slot of its queries is free: one of three functions does so.

    product(barriers, query_iteration, last, variant): behind a QK product, which was the last where ``last``.
    softmax(barriers, query_iteration, variant): behind the last softmax. store(...): behind the store of the output.
    """

    product: Callable
    softmax: Callable
    store: Callable


@gluon.jit
def say_free(barriers, query_iteration, variant: gl.constexpr):
    """This warpgroup no longer needs the slot of its queries."""
    release(barriers.query_empty, query_iteration, variant.query_stages)


@gluon.jit
def say_free_once_stored(barriers, query_iteration, variant: gl.constexpr):
    """This warpgroup no longer needs the slot of its queries, once TMA has read the output from there."""
    tma.store_wait(0)
    release(barriers.query_empty, query_iteration, variant.query_stages)


@gluon.jit
def all_scores_read(barriers, query_iteration, last, variant: gl.constexpr):
    """If this product was the last that reads this warpgroup's Q, say so: its slot is free."""
    mbarrier.arrive(barriers.query_empty.index(query_iteration % variant.query_stages), count=1, pred=last)


@gluon.jit
def not_behind_product(barriers, query_iteration, last, variant: gl.constexpr):
    """The slot of the queries is needed longer than for products."""


@gluon.jit
def not_here(barriers, query_iteration, variant: gl.constexpr):
    """The slot of the queries is given back elsewhere."""


# --- turns: whose products are issued next ---


@dataclass(frozen=True)
class Turns(Pieces):
    """In which order the warpgroups issue products. take(barriers, n, warpgroup, variant): wait for the n-th turn of
    this warpgroup.

    give(barriers, warpgroup, variant): it is the next warpgroup's turn. barriers: whether they need mbarriers.
    """

    take: Callable
    give: Callable
    barriers: bool


@gluon.jit
def take_turn(barriers, n, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Wait until it is this warpgroup's turn, for the n-th time. Warpgroup 0 has the first turn."""
    FIRST: gl.constexpr = 1 if warpgroup == 0 else 0
    mbarrier.wait(barriers.turns.index(warpgroup), n & 1 ^ FIRST)


@gluon.jit
def pass_turn(barriers, warpgroup: gl.constexpr, variant: gl.constexpr):
    """It is the next warpgroup's turn."""
    mbarrier.arrive(barriers.turns.index((warpgroup + 1) % variant.warpgroups), count=1)


@gluon.jit
def take_no_turn(barriers, n, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Warpgroups issue products whenever they are ready."""


@gluon.jit
def pass_no_turn(barriers, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Nobody waits for a turn."""


# --- meetings of a group's warps, and what holds the order of instructions ---


@dataclass(frozen=True)
class Hold(Pieces):
    """begin(): what is said of meetings when the kernel begins. wait(barriers, iteration, variant): what holds the
    order.

    barriers: whether it needs an mbarrier where nobody arrives.
    """

    begin: Callable
    wait: Callable
    barriers: bool


@gluon.jit
def drop_meetings():
    """Ask the hook that rewrites PTX to drop barriers of warps that nothing needs. Without it this does nothing.

    See ``tutorial_lib.meetings``.
    """
    gl.inline_asm_elementwise(NO_MEETINGS, "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def keep_meetings():
    """Triton decides where the warps of a group meet."""


@gluon.jit
def hold_by_values(barriers, iteration, variant: gl.constexpr):
    """Keep what follows behind what is in front: a wait for an mbarrier that is over at once.

    ptxas orders the instructions of straight code as it likes. Over this, which is a loop, it moves nothing. The wait
    is a second one for a tile of values, which has long arrived.
    """
    await_tile(barriers.value_full, iteration, variant.stages)


@gluon.jit
def hold_by_nobody(barriers, iteration, variant: gl.constexpr):
    """Keep what follows behind what is in front: a wait for an mbarrier where nobody arrives.

    Where warps do not meet, one of them may give back the slot of a tile of values before another waits for that tile
    a second time, and that one would wait for good. Here parity 1 names the phase before the first, which always counts
    as complete.
    """
    mbarrier.wait(barriers.nobody.index(0), 1)


# --- which tile of queries comes next ---


@dataclass(frozen=True)
class Schedule(Pieces):
    """How a persistent block learns which tiles of queries are its own (``steps.core.order``).

    own(work, variant): the part [first, last) of the order that is this block's. number(work, n, variant): of the n-th
    tile in the order. take(n, last, query_iteration, work, variant): for the producer, which tile comes behind this
    one; hear: as much, for a warpgroup. tells: whether the producer tells the warpgroups. lines: whether it needs the
    number of all heads.
    """

    own: Callable
    number: Callable
    take: Callable
    hear: Callable
    tells: bool = False
    lines: bool = False


@gluon.jit
def position(number, work):
    """(head, batch) and index of a tile of queries in its head, from the tile's number."""
    head = number // work.tiles_a_head
    return head % work.heads, head // work.heads, number % work.tiles_a_head


@gluon.jit
def block_number(variant: gl.constexpr):
    """Which block, or which pair of blocks, this is."""
    number = gl.program_id(0)
    if variant.neighbours > 1:
        number = number // variant.neighbours
    return number


@gluon.jit
def one_tile(work, variant: gl.constexpr):
    """As ``own_tiles``, where every block computes the tile of its number, and ends."""
    first = block_number(variant)
    last = first + 1
    return first, last


@gluon.jit
def as_counted(work, n, variant: gl.constexpr):
    """The number of the n-th tile of queries, where the order is that of the numbers."""
    return n


@gluon.jit
def own_tiles(work, variant: gl.constexpr):
    """The part [first, last) of the order that was dealt to this block."""
    first = block_number(variant)
    last = gl.load(work.starts + first + 1)
    first = gl.load(work.starts + first)
    return first, last


@gluon.jit
def listed(work, n, variant: gl.constexpr):
    """The number of the n-th tile of queries in the order, from the list."""
    return gl.load(work.order + n)


@gluon.jit
def next_in_list(n, last, query_iteration, work, variant: gl.constexpr):
    """Where in the order the next tile of queries stands."""
    return n + 1


@gluon.jit
def computed_tiles(work, variant: gl.constexpr):
    """As ``own_tiles``, where a block computes which tiles are its own: every so many-th of all."""
    return block_number(variant), work.lines * work.tiles_a_head


@gluon.jit
def computed(work, n, variant: gl.constexpr):
    """The number of the n-th tile of queries in the order, without a list."""
    if variant.causal:  # a head's tiles change places from round to round: a block gets long and short ones
        tile = n % work.tiles_a_head
        n -= tile
        n += (tile + n // gl.num_programs(0)) % work.tiles_a_head
    return n


@gluon.jit
def next_computed(n, last, query_iteration, work, variant: gl.constexpr):
    """Where in the order the next tile of queries stands: there are as many between as there are blocks."""
    return n + gl.num_programs(0)


@gluon.jit
def tiles_to_take(work, variant: gl.constexpr):
    """As ``own_tiles``, where blocks take the next tile that no other has: the first, and the end of all."""
    return block_number(variant), gl.load(work.starts + 1)


@gluon.jit
def take_number(last, work):
    """The number of the next tile of queries that no block has.

    A counter in global memory says how many tiles were taken beyond the first of every block. Each block takes one
    that is not there, and ends; the last to do so sets the counter back, for the next launch.
    """
    count = gl.atomic_add(work.starts, 1, sem="relaxed", scope="gpu")
    if count == last - 1:
        gl.store(work.starts, 0)
    return gl.num_programs(0) + count


@gluon.jit
def take_next(n, last, query_iteration, work, variant: gl.constexpr):
    """Behind a tile of queries, take the next, and tell the other roles."""
    n = take_number(last, work)
    ONE: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    mbarrier.wait(work.taken.empty.index(0), query_iteration & 1 ^ 1)
    work.taken.number.store(gl.full([1], n, gl.int32, ONE))
    mbarrier.arrive(work.taken.full.index(0), count=1)
    return n


@gluon.jit
def hear_next(n, last, query_iteration, work, variant: gl.constexpr):
    """Which tile of queries comes behind this one: what the producer tells."""
    ONE: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    mbarrier.wait(work.taken.full.index(0), query_iteration & 1)
    n = gl.max(work.taken.number.load(ONE), 0)
    mbarrier.arrive(work.taken.empty.index(0), count=1)
    return n


@gluon.jit
def room_for_number(variant: gl.constexpr):
    """What the role that takes tiles tells the others by which is next."""
    LISTENERS: gl.constexpr = variant.listeners
    if variant.packed:
        slot = room_for_task()
    else:
        slot = gl.allocate_shared_memory(gl.int32, [1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    return Taken(slot, barrier_ring(1, 1), barrier_ring(1, LISTENERS))


@gluon.jit
def take_task(n, last, query_iteration, work, variant: gl.constexpr):
    """Of packed sequences: (n, task) of the first number from n on that means queries, which the other roles hear."""
    task = find(n, work, variant)
    while (n < last) & (task.row < 0):
        n = take_number(last, work)
        task = find(n, work, variant)
    tell_task(n, task, query_iteration, work)
    return n, task


@gluon.jit
def first_task(n, work, variant: gl.constexpr):
    """Which tile of queries comes first: (n, task).

    n: its place in the order. task: of packed sequences, what the producer tells; else nothing.
    """
    if variant.packed:
        return hear_task(0, work)
    else:
        return n, None


@gluon.jit
def next_task(n, last, query_iteration, work, variant: gl.constexpr):
    """Which tile of queries comes behind this one.

    Returns as ``first_task``.
    """
    if variant.packed:
        return hear_task(query_iteration + 1, work)
    else:
        n = variant.schedule.hear(n, last, query_iteration, work, variant)
        return n, None


@gluon.jit
def query_tile_of(n, task, work, variant: gl.constexpr):
    """Which queries, and keys, belong to the n-th tile of the order.

    task: of ``first_task``. Returns (its ``QueryTile``, head, batch).
    """
    if variant.packed:
        head, row, batch = task
        return QueryTile(row, head // variant.group_size, batch, batch.length_kv), head, batch
    else:
        head, batch, i = position(variant.schedule.number(work, n, variant), work)
        return QueryTile(i * variant.tile.query, head // variant.group_size, batch, work.seq_len_kv), head, batch


@gluon.jit
def sink_of(head, work, variant: gl.constexpr):
    """The sink of a query head in base 2, as the softmax scales its scores; None where heads have none."""
    if variant.sinks:
        return gl.load(work.sinks + head) * LOG2E
    else:
        return None


# --- loads ---


@gluon.jit
def own_row(row, query_iteration, warpgroup: gl.constexpr, variant: gl.constexpr):
    """The first row of a warpgroup's queries, in the tile of queries that begins at ``row``.

    In a pair each block has a half. Under a causal mask the upper half sees fewer keys, and blocks have it in turn.
    """
    if variant.together > 1:
        return row
    if variant.neighbours > 1:
        half = gl.program_id(0) % variant.neighbours
        if variant.causal:
            half = (half + query_iteration) % variant.neighbours
        row = row + half * (variant.warpgroups * variant.rows)
    return row + warpgroup * variant.rows


@gluon.jit
def own_head(head, warpgroup: gl.constexpr, variant: gl.constexpr):
    """The query head of a warpgroup, in a block of ``head``: where a block has several of a group, each has another."""
    if variant.together > 1:
        return head * variant.together + warpgroup
    else:
        return head


@gluon.jit
def fetch_queries(arrays, tiles, barriers, head, batch, row, query_iteration, variant: gl.constexpr):
    """Ask TMA for a tile of queries, a copy for each warpgroup; the barrier completes when all of it is there."""
    WARPGROUPS: gl.constexpr = variant.warpgroups
    query_stage = query_iteration % variant.query_stages
    full = barriers.query_full.index(query_stage)
    mbarrier.expect(full, WARPGROUPS * variant.panels * arrays.query.nbytes_per_cta)
    for warpgroup in gl.static_range(WARPGROUPS):
        own = own_head(head, warpgroup, variant)
        at = corner(batch, own, own_row(row, query_iteration, warpgroup, variant), 0, variant)
        if variant.in_panels:
            fetch_panels(arrays.query, tiles.query, full, at, query_stage * WARPGROUPS + warpgroup, variant)
        else:
            tma.async_load(arrays.query, at, full, tiles.query.index(query_stage * WARPGROUPS + warpgroup))


@gluon.jit
def fetch(array, ring, full, head, batch, row, stage, variant: gl.constexpr):
    """Ask TMA for a tile of keys or values, which begins at this row, into a slot of their ring."""
    mbarrier.expect(full.index(stage), array.nbytes_per_cta)
    tma.async_load(array, corner_kv(batch, head, row, variant), full.index(stage), ring.index(stage))


@gluon.jit
def fetch_key_and_value(arrays, tiles, barriers, kv_head, batch, row, iteration, variant: gl.constexpr):
    """Ask TMA for tile ``iteration`` of the keys and of the values, each as soon as its slot is empty.

    row: their first key.
    """
    stage = iteration % variant.stages
    used = iteration // variant.stages & 1 ^ 1
    mbarrier.wait(barriers.key_empty.index(stage), used)
    if variant.in_panels:
        full = barriers.key_full.index(stage)
        mbarrier.expect(full, variant.panels * arrays.key.nbytes_per_cta)
        fetch_panels(arrays.key, tiles.key, full, [batch, kv_head, row, 0], stage, variant)
    else:
        fetch(arrays.key, tiles.key, barriers.key_full, kv_head, batch, row, stage, variant)
    mbarrier.wait(barriers.value_empty.index(stage), used)
    fetch(arrays.value, tiles.value, barriers.value_full, kv_head, batch, row, stage, variant)


@gluon.jit
def fetch_all(arrays, tiles, barriers, kv_head, batch, before, end, iteration, variant: gl.constexpr):
    """Ask TMA for so many tiles of keys and values as ``end`` says. Returns the iteration behind them.

    before: under a sliding window, how many keys stand in front of the first tile.
    """
    for j in range(end):
        if variant.window:
            key = before + variant.walk.nth(j, end) * variant.tile.key
        else:
            key = variant.walk.nth(j, end) * variant.tile.key
        if variant.neighbours > 1:
            fetch_as_pair(arrays, tiles, barriers, [batch, kv_head, key, 0], iteration, variant)
        else:
            fetch_key_and_value(arrays, tiles, barriers, kv_head, batch, key, iteration, variant)
        iteration += 1
    return iteration


@gluon.jit
def query_of(queries, query_iteration, warpgroup: gl.constexpr, variant: gl.constexpr):
    """A warpgroup's queries [query, head_dim] of tile ``query_iteration`` of the queries."""
    index = query_iteration % variant.query_stages * variant.warpgroups + warpgroup
    if variant.in_panels:
        return panels_in(queries, index, variant.rows, variant)
    else:
        return queries.index(index).reshape([variant.rows, variant.head_dim])


# --- where a warpgroup stops under a causal mask ---


@dataclass(frozen=True)
class Ends(Pieces):
    """tiles(first_query, seq_len_kv, whole, end, variant): (whole, end) of a warpgroup, from those of its block.

    A warpgroup that stops before its block does passes over the tiles of keys that only later warpgroups see. A slot
    may be given back only once it was filled: two arrivals of one warpgroup must not count as those of two.
    pass_first(barriers, query_tile, iteration, warpgroup, variant): in front of the first tile; returns the iteration
    of that. pass_key(barriers, iteration, query_iteration, end, block_end, warpgroup, variant): behind the last tile,
    its keys; pass_value(barriers, last_iteration, iteration, variant): and its values.
    """

    tiles: Callable
    pass_first: Callable
    pass_key: Callable
    pass_value: Callable
    own: bool


@gluon.jit
def blocks_tiles_to_visit(first_query, seq_len_kv, whole, block_end, variant: gl.constexpr):
    """(whole, end): a warpgroup goes through all tiles of keys that its block sees."""
    return whole, block_end


@gluon.jit
def own_tiles_to_visit(first_query, seq_len_kv, block_end, variant: gl.constexpr):
    """(whole, end) of the tiles of keys that the warpgroup with these queries sees, of those that its block visits."""
    whole = gl.minimum(first_query, seq_len_kv) // variant.tile.key
    end = gl.minimum(block_end, gl.cdiv(first_query + variant.rows, variant.tile.key))
    return whole, end


@gluon.jit
def warpgroups_tiles_to_visit(first_query, seq_len_kv, whole, block_end, variant: gl.constexpr):
    """(whole, end): a warpgroup goes through the tiles of keys that it sees itself."""
    return own_tiles_to_visit(first_query, seq_len_kv, block_end, variant)


@gluon.jit
def pass_over(barriers, query_tile, iteration, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Pass over the first tile of keys, where only a later warpgroup sees it. Returns the iteration of the next."""
    _, block_end = tiles_to_visit(query_tile.row, query_tile.seq_len_kv, variant)
    _, end = own_tiles_to_visit(query_tile.row + warpgroup * variant.rows, query_tile.seq_len_kv, block_end, variant)
    if end < block_end:
        await_tile(barriers.key_full, iteration, variant.stages)
        release(barriers.key_empty, iteration, variant.stages)
        await_tile(barriers.value_full, iteration, variant.stages)
        release(barriers.value_empty, iteration, variant.stages)
        iteration += 1
    return iteration


@gluon.jit
def begins_with_its_block(barriers, query_tile, iteration, warpgroup: gl.constexpr, variant: gl.constexpr):
    """The first tile of keys is for all warpgroups."""
    return iteration


@gluon.jit
def pass_over_key(barriers, iteration, query_iteration, end, block_end, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Pass over the keys of a last tile that only later warpgroups see, if there is one. Returns its iteration."""
    if variant.most_over <= 1:  # noqa: SIM102 - a question for the compiler, and one for the GPU
        if end < block_end:
            variant.turns.take(barriers, iteration - query_iteration, warpgroup, variant)
            variant.turns.give(barriers, warpgroup, variant)
            iteration += 1
            await_tile(barriers.key_full, iteration, variant.stages)
            release(barriers.key_empty, iteration, variant.stages)
    return iteration


@gluon.jit
def ends_with_its_block(
    barriers, iteration, query_iteration, end, block_end, warpgroup: gl.constexpr, variant: gl.constexpr
):
    """The last tile of keys is for all warpgroups."""
    return iteration


@gluon.jit
def pass_over_value(barriers, last_iteration, iteration, variant: gl.constexpr):
    """Pass over the values of a last tile that only later warpgroups see."""
    if variant.most_over <= 1:  # noqa: SIM102
        if last_iteration < iteration:
            await_tile(barriers.value_full, iteration, variant.stages)
            release(barriers.value_empty, iteration, variant.stages)


@gluon.jit
def no_value_over(barriers, last_iteration, iteration, variant: gl.constexpr):
    """The last tile of values is for all warpgroups."""


@gluon.jit
def pass_over_rest(barriers, query_tile, iteration, query_iteration, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Pass over all tiles of keys and values that only later warpgroups see. Returns the iteration of the last.

    For a warpgroup that needs no tile any more: a slot of values would else have to wait for one that is in use.
    """
    _, block_end = tiles_to_visit(query_tile.row, query_tile.seq_len_kv, variant)
    first_query = own_row(query_tile.row, query_iteration, warpgroup, variant)
    _, end = own_tiles_to_visit(first_query, query_tile.seq_len_kv, block_end, variant)
    for _ in range(end, block_end):
        variant.turns.take(barriers, iteration - query_iteration, warpgroup, variant)
        variant.turns.give(barriers, warpgroup, variant)
        iteration += 1
        await_tile(barriers.key_full, iteration, variant.stages)
        release(barriers.key_empty, iteration, variant.stages)
        await_tile(barriers.value_full, iteration, variant.stages)
        release(barriers.value_empty, iteration, variant.stages)
    return iteration


# --- the pieces, by what they do ---

BEHIND_PRODUCT = Free(all_scores_read, not_here, not_here)
BEHIND_SOFTMAX = Free(not_behind_product, say_free, not_here)
BEHIND_STORE = Free(not_behind_product, not_here, say_free_once_stored)
NO_TURNS = Turns(take_no_turn, pass_no_turn, barriers=False)
IN_TURN = Turns(take_turn, pass_turn, barriers=True)
WITH_MEETINGS = Hold(keep_meetings, hold_by_values, barriers=False)
WITHOUT_MEETINGS = Hold(drop_meetings, hold_by_nobody, barriers=True)
ONE_TILE = Schedule(one_tile, as_counted, next_in_list, next_in_list)
LISTS = Schedule(own_tiles, listed, next_in_list, next_in_list)
COMPUTED = Schedule(computed_tiles, computed, next_computed, next_computed, lines=True)
TAKEN = Schedule(tiles_to_take, listed, take_next, hear_next, tells=True)
BLOCKS_END = Ends(blocks_tiles_to_visit, begins_with_its_block, ends_with_its_block, no_value_over, own=False)
OWN_END = Ends(warpgroups_tiles_to_visit, begins_with_its_block, pass_over_key, pass_over_value, own=True)
OWN_BEGINNING = Ends(warpgroups_tiles_to_visit, pass_over, ends_with_its_block, no_value_over, own=True)
