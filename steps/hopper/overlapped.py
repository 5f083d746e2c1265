"""Warps with roles, and two products begun together: the softmax of a tile runs under the PV product before it.

A block computes one tile of queries, or stays and computes one after the other, as its schedule says. If it stays, the
producer fetches for the next tile of queries while the last is still computed. The loop over the tiles of keys is in
``steps.hopper.loop``.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from steps.gluon import names  # noqa: F401
from steps.gluon.softmax import tiles_to_visit
from steps.hopper.lib import (
    Arrays,
    Place,
    Work,
    all_see_barriers,
    await_tile,
    fetch_all,
    fetch_queries,
    keys_before,
    own_row,
    part_of,
    pass_over_rest,
    position,
    release,
    rings,
    room_for_number,
    rooms,
    seen,
    take_number,
    take_task,
)
from steps.hopper.loop import attend_overlapped
from steps.hopper.packed import Packed, hear_task, keys_of
from steps.hopper.products import await_output, normalised, store_lse_of


@gluon.jit
def produce(arrays, tiles, barriers, work, variant: gl.constexpr):
    """The producer: fetches the tiles of this block, each as soon as its place is free."""
    turn = 0  # tiles of keys so far: tells the place in the ring, and how often it was filled
    query_turn = 0
    n, last = variant.schedule.own(work, variant)
    if variant.packed:
        n, task = take_task(n, last, 0, work, variant)
    while n < last:
        if variant.packed:
            head, row, batch = task
        else:
            head, batch, i = position(variant.schedule.number(work, n, variant), work)
            row = i * variant.tile.query
        if variant.window:
            before = keys_before(row, variant)
            _, end = tiles_to_visit(row - before, keys_of(batch, work, variant) - before, variant)
        else:
            before = 0
            _, end = tiles_to_visit(row, keys_of(batch, work, variant), variant)
        if variant.packed:
            end = gl.maximum(end, 1)  # lengths that nobody checked may leave no key, and the parts wait for one tile
            following = take_number(last, work)  # which takes long, and is not needed before the keys are asked for
        free = barriers.query_free.index(query_turn % variant.query_stages)
        mbarrier.wait(free, query_turn // variant.query_stages & 1 ^ 1)
        fetch_queries(arrays, tiles, barriers, head, batch, row, query_turn, variant)
        kv_head = head // variant.group_size
        turn = fetch_all(arrays, tiles, barriers, kv_head, batch, before, end, turn, variant)
        if variant.packed:
            n, task = take_task(following, last, query_turn + 1, work, variant)
        else:
            n = variant.schedule.take(n, last, query_turn, work, variant)
        query_turn += 1


@gluon.jit
def consume(arrays, tiles, barriers, work, scale, LSE, part: gl.constexpr, variant: gl.constexpr):
    """Warps that compute: a part of every tile of queries that is this block's."""
    STAGES: gl.constexpr = variant.stages
    QUERY_STAGES: gl.constexpr = variant.query_stages
    output = tiles.output.index(part)
    turn = 0  # tiles of keys so far
    query_turn = 0
    n, last = variant.schedule.own(work, variant)
    if variant.packed:
        n, task = hear_task(0, work)
    while n < last:
        if variant.packed:
            head, row, batch = task
            place = Place(row, head // variant.group_size, batch, batch.length_kv)
        else:
            head, batch, i = position(variant.schedule.number(work, n, variant), work)
            place = Place(i * variant.tile.query, head // variant.group_size, batch, work.seq_len_kv)
        query = part_of(tiles.query, query_turn, part, variant)
        await_tile(barriers.query_ready, query_turn, QUERY_STAGES)
        query = variant.queries.take(query, variant)
        turn = variant.ends.pass_first(barriers, place, turn, part, variant)
        await_tile(barriers.key_ready, turn, STAGES)
        scores = variant.queries.multiply(query, tiles.key, turn, variant)
        accumulator, row_sum, turn, last_turn = attend_overlapped(
            scores, query, tiles, barriers, seen(place, variant), turn, query_turn, scale, part, variant
        )
        if variant.packed:
            n, task = hear_task(query_turn + 1, work)
        else:
            n = variant.schedule.hear(n, last, query_turn, work, variant)
        variant.free.softmax(barriers, query_turn, variant)
        if variant.most_over > 1:
            accumulator = await_output(accumulator, 0, variant)
            release(barriers.value_free, last_turn, STAGES)
            turn = pass_over_rest(barriers, place, turn, query_turn, part, variant)
        else:
            accumulator = await_output(accumulator, 0, variant)
            release(barriers.value_free, last_turn, STAGES)
        variant.ends.pass_value(barriers, last_turn, turn, variant)
        turn += 1

        # --- normalise and store; TMA drops rows past the end ---
        if variant.lse:
            row_sum, row_max = row_sum
        row_sum = variant.sums.end(row_sum, variant)
        o = normalised(accumulator, row_sum, tiles.query.dtype, variant)
        row = own_row(place.row, query_turn, part, variant)
        if variant.lse:
            store_lse_of(LSE, row_max, row_sum, arrays, work, head, batch, row, variant)
        variant.output_to.store(o, arrays.output, output, batch, head, row, variant)
        variant.free.store(barriers, query_turn, variant)
        query_turn += 1
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["seq_len_kv", "heads", "tiles_a_head", "sequences"])
def fmha(
    Q,
    K,
    V,
    Out,
    order,
    starts,
    scale,
    seq_len_kv,
    heads,
    tiles_a_head,
    variant: gl.constexpr,
    LSE=None,
    begins_q=None,
    begins_k=None,
    sequences=None,
):
    arrays = Arrays(Q, K, V, Out)
    tiles = rooms(Q.dtype, variant)
    barriers = rings(variant)
    taken = room_for_number(variant) if variant.schedule.tells else None
    packed = Packed(begins_q, begins_k, sequences) if variant.packed else None
    lines = Q.shape[0] * heads if variant.schedule.lines else None
    work = Work(order, starts, heads, tiles_a_head, seq_len_kv, taken, packed, lines)
    all_see_barriers(variant)
    variant.hold.begin()

    # --- who does what; the first part's warps are those that the block began with ---
    WORKERS: gl.constexpr = variant.workers
    BUDGETS: gl.constexpr = variant.budgets
    if variant.parts == 2:
        gl.warp_specialize(
            [
                (consume, (arrays, tiles, barriers, work, scale, LSE, 0, variant)),
                (consume, (arrays, tiles, barriers, work, scale, LSE, 1, variant)),
                (produce, (arrays, tiles, barriers, work, variant)),
            ],
            WORKERS,
            BUDGETS,
        )
    else:
        gl.warp_specialize(
            [
                (consume, (arrays, tiles, barriers, work, scale, LSE, 0, variant)),
                (consume, (arrays, tiles, barriers, work, scale, LSE, 1, variant)),
                (consume, (arrays, tiles, barriers, work, scale, LSE, 2, variant)),
                (produce, (arrays, tiles, barriers, work, variant)),
            ],
            WORKERS,
            BUDGETS,
        )
