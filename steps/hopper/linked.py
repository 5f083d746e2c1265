"""Blocks that stay, and whose next tile of queries begins before this one has ended.

As ``steps.hopper.overlapped``, where shared memory holds the next queries beside these: the first QK product for them
is issued behind the last PV product for these, and runs while the output is normalised and stored.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma, warpgroup_mma_wait

from steps.gluon import names  # noqa: F401
from steps.hopper.lib import (
    Arrays,
    Place,
    Work,
    all_see_barriers,
    await_tile,
    own_row,
    part_of,
    pass_over_rest,
    position,
    release,
    rings,
    room_for_number,
    rooms,
    seen,
)
from steps.hopper.loop import attend_overlapped
from steps.hopper.overlapped import produce
from steps.hopper.packed import Packed, hear_task
from steps.hopper.products import await_output, issue_scores, link, normalised, store_lse_of


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
    if not variant.packed or n < last:  # numbers may mean nothing, and then a block has nothing to do
        await_tile(barriers.query_ready, 0, QUERY_STAGES)
        await_tile(barriers.key_ready, 0, STAGES)
    scores = issue_scores(part_of(tiles.query, 0, part, variant), tiles.key, 0, variant)
    while n < last:
        if variant.packed:
            head, row, batch = task
            place = Place(row, head // variant.group_size, batch, batch.length_kv)
        else:
            head, batch, i = position(variant.schedule.number(work, n, variant), work)
            place = Place(i * variant.tile.query, head // variant.group_size, batch, work.seq_len_kv)
        query = part_of(tiles.query, query_turn, part, variant)
        query = variant.queries.take(query, variant)
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
        scores, accumulator = link(accumulator, tiles, barriers, turn, last_turn, query_turn, n < last, part, variant)
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
    scores = warpgroup_mma_wait(0, deps=[scores])
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
