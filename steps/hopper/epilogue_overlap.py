"""Persistent blocks, and whose next tile of queries begins before this one has ended.

As ``steps.hopper.overlapped``, where shared memory holds the next queries beside these: the first QK product for them
is issued behind the last PV product for these, and runs while the output is normalised and stored.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma, warpgroup_mma_wait

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
from steps.hopper.products import await_output, issue_scores, link, store_normalised


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
    if not variant.packed or n < last:  # numbers may mean nothing, and then a block has nothing to do
        await_tile(barriers.query_full, 0, QUERY_STAGES)
        await_tile(barriers.key_full, 0, STAGES)
    scores = issue_scores(part_of(tiles.query, 0, part, variant), tiles.key, 0, variant)
    while n < last:
        place, head, batch = place_of(n, task, work, variant)
        query = part_of(tiles.query, query_turn, part, variant)
        query = variant.queries.take(query, variant)
        accumulator, row_sum, turn, last_turn = attend_overlapped(
            scores, query, tiles, barriers, seen(place, variant), turn, query_turn, scale, part, variant
        )
        n, task = next_task(n, last, query_turn, work, variant)
        variant.free.softmax(barriers, query_turn, variant)
        if variant.most_over > 1:
            accumulator = await_output(accumulator, 0, variant)
            release(barriers.value_empty, last_turn, STAGES)
            turn = pass_over_rest(barriers, place, turn, query_turn, part, variant)
        scores, accumulator = link(accumulator, tiles, barriers, turn, last_turn, query_turn, n < last, part, variant)
        variant.ends.pass_value(barriers, last_turn, turn, variant)
        turn += 1

        store_normalised(accumulator, row_sum, output, LSE, arrays, work, place, head, batch, query_turn, part, variant)
        variant.free.store(barriers, query_turn, variant)
        query_turn += 1
    scores = warpgroup_mma_wait(0, deps=[scores])
    tma.store_wait(0)
