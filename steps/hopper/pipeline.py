"""How tiles come to shared memory: TMA, the mbarriers that tell when a tile is ready or free, and the producer warp.

The instructions are in the PTX ISA under "cp.async.bulk.tensor" and "mbarrier".
"""

from __future__ import annotations

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from steps.gluon.softmax import tiles_to_visit
from steps.hopper.packed import corner, corner_kv, find, keys_of, room_for_task, tell_task
from steps.hopper.pairs import fetch_as_pair
from tutorial_lib import meetings

NO_MEETINGS = gl.constexpr(f"{meetings.MARK}\n mov.b32 $0, 0;")


class Arrays(NamedTuple):
    """Q, K, V and the output in global memory, as TMA knows them: described by shape, strides and box."""

    query: object
    key: object
    value: object
    output: object


class Tiles(NamedTuple):
    """Tiles in shared memory. query: the parts of one tile or two; output: the parts of one; key, value: rings."""

    query: object
    key: object
    value: object
    output: object


class Barriers(NamedTuple):
    """mbarriers, one for every place of a tile: complete when TMA has filled it, and when all parts have used it."""

    query_ready: object
    query_free: object
    key_ready: object
    key_free: object
    value_ready: object
    value_free: object
    turns: object  # whose turn it is to issue products
    there: object  # in a pair, complete when the other block's place is free, too
    nobody: object  # where nobody arrives (``steps.hopper.consumer.hold``)


class Taken(NamedTuple):
    """Where the role that takes tiles of queries tells the others which is next, and mbarriers.

    number: of the tile, or several numbers (``steps.hopper.packed.Task``).
    """

    number: object
    ready: object
    free: object


class Work(NamedTuple):
    """What is to be computed. order, starts: see ``steps.core.order``. taken: how it is told which tile is next.

    packed: of packed sequences, where they begin. lines: heads of all batches, where blocks compute their tiles.
    """

    order: object
    starts: object
    heads: object
    tiles_a_head: object
    seq_len_kv: object
    taken: object = None
    packed: object = None
    lines: object = None


class Place(NamedTuple):
    """Which queries: first row of the tile of queries, head of K and V, batch; and how many keys there are."""

    row: object
    kv_head: object
    batch: object
    seq_len_kv: object


@gluon.jit
def keys_before(row, variant: gl.constexpr):
    """How many keys stand in tiles that no query of a tile sees, as its sliding window begins behind them."""
    return gl.maximum(row + 1 - variant.window, 0) // variant.tile.key * variant.tile.key


@gluon.jit
def seen(place, variant: gl.constexpr):
    """A place as if the keys before its window were not there: queries and keys are counted from the first tile seen.

    What a mask asks for, differences of their numbers, stays the same.
    """
    if variant.window:
        before = keys_before(place.row, variant)
        return Place(place.row - before, place.kv_head, place.batch, place.seq_len_kv - before)
    else:
        return place


@gluon.jit
def barrier_ring(length: gl.constexpr, arrivals: gl.constexpr):
    """As many mbarriers, each complete after so many arrivals."""
    barriers = gl.allocate_shared_memory(gl.int64, [length, 1], mbarrier.MBarrierLayout())
    for n in gl.static_range(length):
        mbarrier.init(barriers.index(n), count=arrivals)
    return barriers


@gluon.jit
def drop_meetings():
    """The warps of a group do not meet where nothing needs it (``tutorial_lib.meetings``)."""
    gl.inline_asm_elementwise(NO_MEETINGS, "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def position(number, work):
    """(head, batch) and index of a tile of queries in its head, from the tile's number."""
    head = number // work.tiles_a_head
    return head % work.heads, head // work.heads, number % work.tiles_a_head


@gluon.jit
def own_tiles(work, variant: gl.constexpr):
    """The part [first, last) of the order that is this block's; where tiles are taken, its first, and their end."""
    first = gl.program_id(0)
    if variant.neighbours > 1:
        first = first // variant.neighbours
    last = first + 1
    if variant.taken:
        last = gl.load(work.starts + 1)
    elif variant.computed:
        last = work.lines * work.tiles_a_head
    elif variant.persistent:
        last = gl.load(work.starts + first + 1)
        first = gl.load(work.starts + first)
    return first, last


@gluon.jit
def numbered(work, n, variant: gl.constexpr):
    """The number of the n-th tile of queries in the order."""
    if variant.computed:
        if variant.causal:  # a head's tiles change places from turn to turn: a block gets long and short ones
            tile = n % work.tiles_a_head
            n -= tile
            n += (tile + n // gl.num_programs(0)) % work.tiles_a_head
    elif variant.persistent:
        n = gl.load(work.order + n)
    return n


@gluon.jit
def behind(n, variant: gl.constexpr):
    """Where in the order a block's next tile of queries stands."""
    if variant.computed:
        return n + gl.num_programs(0)
    else:
        return n + 1


@gluon.jit
def room_for_number(variant: gl.constexpr):
    """What the role that takes tiles tells the others by which is next."""
    LISTENERS: gl.constexpr = variant.listeners
    if variant.packed:
        place = room_for_task()
    else:
        place = gl.allocate_shared_memory(gl.int32, [1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    return Taken(place, barrier_ring(1, 1), barrier_ring(1, LISTENERS))


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
def take_next(n, last, turn, work, variant: gl.constexpr):
    """Behind the turn-th tile of queries, take the next, and tell the other roles."""
    if variant.taken:
        n = take_number(last, work)
        ONE: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
        mbarrier.wait(work.taken.free.index(0), turn & 1 ^ 1)
        work.taken.number.store(gl.full([1], n, gl.int32, ONE))
        mbarrier.arrive(work.taken.ready.index(0), count=1)
        return n
    else:
        return behind(n, variant)


@gluon.jit
def hear_next(n, turn, work, variant: gl.constexpr):
    """Which tile of queries comes behind the turn-th, in the order."""
    if variant.taken:
        ONE: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
        mbarrier.wait(work.taken.ready.index(0), turn & 1)
        n = gl.max(work.taken.number.load(ONE), 0)
        mbarrier.arrive(work.taken.free.index(0), count=1)
        return n
    else:
        return behind(n, variant)


@gluon.jit
def take_task(n, last, turn, work, variant: gl.constexpr):
    """Of packed sequences: (n, task) of the first number from n on that means queries, which the other roles hear."""
    task = find(n, work, variant)
    while (n < last) & (task.row < 0):
        n = take_number(last, work)
        task = find(n, work, variant)
    tell_task(n, task, turn, work)
    return n, task


@gluon.jit
def await_tile(ready, turn, stages: gl.constexpr):
    """Wait until TMA has brought the turn-th tile of a ring."""
    mbarrier.wait(ready.index(turn % stages), turn // stages & 1)


@gluon.jit
def release(free, turn, stages: gl.constexpr):
    """This part has read the turn-th tile of a ring."""
    mbarrier.arrive(free.index(turn % stages), count=1)


@gluon.jit
def take_turn(barriers, n, part: gl.constexpr, variant: gl.constexpr):
    """Wait until it is this part's turn to issue products, for the n-th time. Part 0 has the first turn."""
    if variant.in_turn:
        FIRST: gl.constexpr = 1 if part == 0 else 0
        mbarrier.wait(barriers.turns.index(part), n & 1 ^ FIRST)


@gluon.jit
def pass_turn(barriers, part: gl.constexpr, variant: gl.constexpr):
    """It is the next part's turn to issue products."""
    if variant.in_turn:
        mbarrier.arrive(barriers.turns.index((part + 1) % variant.parts), count=1)


@gluon.jit
def own_row(row, query_turn, part: gl.constexpr, variant: gl.constexpr):
    """The first row of a part's queries, in the tile of queries that begins at ``row``.

    In a pair each block has a half. Under a causal mask the upper half sees fewer keys, and blocks have it in turn.
    """
    if variant.neighbours > 1:
        half = gl.program_id(0) % variant.neighbours
        if variant.causal:
            half = (half + query_turn) % variant.neighbours
        row = row + half * (variant.parts * variant.rows)
    return row + part * variant.rows


@gluon.jit
def fetch_queries(arrays, tiles, barriers, head, batch, row, turn, variant: gl.constexpr):
    """Ask TMA for a tile of queries, part by part; the barrier completes when all of it is there."""
    PARTS: gl.constexpr = variant.parts
    stage = turn % variant.query_stages
    ready = barriers.query_ready.index(stage)
    QUERIES: gl.constexpr = variant.tile.query if variant.neighbours == 1 else PARTS * variant.rows
    mbarrier.expect(ready, QUERIES * variant.head_dim * tiles.query.dtype.primitive_bitwidth // 8)
    for part in gl.static_range(PARTS):
        at = corner(batch, head, own_row(row, turn, part, variant), 0, variant)
        tma.async_load(arrays.query, at, ready, tiles.query.index(stage * PARTS + part))


@gluon.jit
def fetch(array, ring, ready, head, batch, row, stage, variant: gl.constexpr):
    """Ask TMA for rows [row, row + tile.key) of keys or values, into a place of their ring."""
    mbarrier.expect(ready.index(stage), variant.tile.key * variant.head_dim * ring.dtype.primitive_bitwidth // 8)
    tma.async_load(array, corner_kv(batch, head, row, variant), ready.index(stage), ring.index(stage))


@gluon.jit
def fetch_both(arrays, tiles, barriers, place, j, stage, variant: gl.constexpr):
    """Without a producer: ask for the j-th tile of keys and of values."""
    row = j * variant.tile.key
    fetch(arrays.key, tiles.key, barriers.key_ready, place.kv_head, place.batch, row, stage, variant)
    fetch(arrays.value, tiles.value, barriers.value_ready, place.kv_head, place.batch, row, stage, variant)


@gluon.jit
def produce(arrays, tiles, barriers, work, variant: gl.constexpr):
    """The producer: fetches the tiles of this block, each as soon as its place is free."""
    TILE_KEY: gl.constexpr = variant.tile.key
    turn = 0  # tiles of keys so far: tells the place in the ring, and how often it was filled
    query_turn = 0
    n, last = own_tiles(work, variant)
    if variant.packed:
        n, task = take_task(n, last, 0, work, variant)
    while n < last:
        if variant.packed:
            head, row, batch = task
        else:
            head, batch, i = position(numbered(work, n, variant), work)
            row = i * variant.tile.query
        if variant.window:
            before = keys_before(row, variant)
            _, end = tiles_to_visit(row - before, keys_of(batch, work, variant) - before, variant)
        else:
            _, end = tiles_to_visit(row, keys_of(batch, work, variant), variant)
        if variant.packed:
            end = gl.maximum(end, 1)  # lengths that nobody checked may leave no key, and the parts wait for one tile
            following = take_number(last, work)  # which takes long, and is not needed before the keys are asked for
        free = barriers.query_free.index(query_turn % variant.query_stages)
        mbarrier.wait(free, query_turn // variant.query_stages & 1 ^ 1)
        fetch_queries(arrays, tiles, barriers, head, batch, row, query_turn, variant)
        kv_head = head // variant.group_size
        for j in range(end):
            key = (end - 1 - j if variant.diagonal_first else j) * TILE_KEY
            if variant.window:
                key += before
            if variant.neighbours > 1:
                fetch_as_pair(arrays, tiles, barriers, [batch, kv_head, key, 0], turn, variant)
            else:
                stage = turn % variant.stages
                used = turn // variant.stages & 1 ^ 1
                mbarrier.wait(barriers.key_free.index(stage), used)
                fetch(arrays.key, tiles.key, barriers.key_ready, kv_head, batch, key, stage, variant)
                mbarrier.wait(barriers.value_free.index(stage), used)
                fetch(arrays.value, tiles.value, barriers.value_ready, kv_head, batch, key, stage, variant)
            turn += 1
        if variant.packed:
            n, task = take_task(following, last, query_turn + 1, work, variant)
        else:
            n = take_next(n, last, query_turn, work, variant)
        query_turn += 1


@gluon.jit
def begin(arrays, tiles, barriers, work, variant: gl.constexpr):
    """Without a producer: ask for the queries and the first tiles of keys and values."""
    STAGES: gl.constexpr = variant.stages
    head, batch, i = position(gl.program_id(0), work)
    place = Place(i * variant.tile.query, head // variant.group_size, batch, work.seq_len_kv)
    _, end = tiles_to_visit(place.row, place.seq_len_kv, variant)
    fetch_queries(arrays, tiles, barriers, head, batch, place.row, 0, variant)
    for j in gl.static_range(STAGES):
        if j < end:
            fetch_both(arrays, tiles, barriers, place, j, j, variant)
