"""Warpgroups that begin two products together: the softmax of a tile runs under the PV product before it.

The loop over the tiles of keys is in ``steps.hopper.loop``.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from steps.gluon import names  # noqa: F401
from steps.hopper.lib import (
    await_tile,
    first_task,
    next_task,
    part_of,
    pass_over_rest,
    place_of,
    release,
    seen,
)
from steps.hopper.loop import attend_overlapped
from steps.hopper.products import await_output, store_normalised


@gluon.jit
def consume(arrays, tiles, barriers, work, scale, LSE, part: gl.constexpr, variant: gl.constexpr):
    """Warps that compute: a part of every tile of queries that is this block's."""
    STAGES: gl.constexpr = variant.stages
    QUERY_STAGES: gl.constexpr = variant.query_stages
    output = tiles.output.index(part)
    turn = 0  # tiles of keys so far
    query_turn = 0
    n, last = variant.schedule.own(work, variant)
    n, task = first_task(n, work, variant)
    while n < last:
        place, head, batch = place_of(n, task, work, variant)
        query = part_of(tiles.query, query_turn, part, variant)
        await_tile(barriers.query_full, query_turn, QUERY_STAGES)
        query = variant.queries.take(query, variant)
        turn = variant.ends.pass_first(barriers, place, turn, part, variant)
        await_tile(barriers.key_full, turn, STAGES)
        scores = variant.queries.multiply(query, tiles.key, turn, variant)
        accumulator, row_sum, turn, last_turn = attend_overlapped(
            scores, query, tiles, barriers, seen(place, variant), turn, query_turn, scale, part, variant
        )
        n, task = next_task(n, last, query_turn, work, variant)
        variant.free.softmax(barriers, query_turn, variant)
        if variant.most_over > 1:
            accumulator = await_output(accumulator, 0, variant)
            release(barriers.value_empty, last_turn, STAGES)
            turn = pass_over_rest(barriers, place, turn, query_turn, part, variant)
        else:
            accumulator = await_output(accumulator, 0, variant)
            release(barriers.value_empty, last_turn, STAGES)
        variant.ends.pass_value(barriers, last_turn, turn, variant)
        turn += 1

        store_normalised(accumulator, row_sum, output, LSE, arrays, work, place, head, batch, query_turn, part, variant)
        variant.free.store(barriers, query_turn, variant)
        query_turn += 1
    tma.store_wait(0)
