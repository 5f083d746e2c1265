"""Persistent blocks, and whose next tile of queries begins before this one has ended.

As ``steps.hopper.overlapped``, where shared memory holds the next queries beside these: the first QK product for them
is issued behind the last PV product for these, and runs while the output is normalized and stored.
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
    own_head,
    pass_over_rest,
    query_of,
    query_tile_of,
    release,
    seen,
    sink_of,
)
from steps.hopper.loop import attend_overlapped
from steps.hopper.products import await_output, issue_scores, link, store_normalised


@gluon.jit
def consume(arrays, tiles, barriers, work, scale, LSE, warpgroup: gl.constexpr, variant: gl.constexpr):
    """A consumer warpgroup: its rows of every tile of queries that is this block's."""
    STAGES: gl.constexpr = variant.stages
    QUERY_STAGES: gl.constexpr = variant.query_stages
    output = tiles.output.index(warpgroup)
    iteration = 0  # tiles of keys so far
    query_iteration = 0
    n, last = variant.schedule.own(work, variant)
    n, task = first_task(n, work, variant)
    if not variant.packed or n < last:  # numbers may mean nothing, and then a block has nothing to do
        await_tile(barriers.query_full, 0, QUERY_STAGES)
        await_tile(barriers.key_full, 0, STAGES)
    issued = issue_scores(query_of(tiles.query, 0, warpgroup, variant), tiles.key, 0, variant)
    while n < last:
        query_tile, head, batch = query_tile_of(n, task, work, variant)
        head = own_head(head, warpgroup, variant)
        query = query_of(tiles.query, query_iteration, warpgroup, variant)
        query = variant.queries.take(query, variant)
        accumulator, row_sum, iteration, last_iteration = attend_overlapped(
            issued, query, tiles, barriers, seen(query_tile, variant), sink_of(head, work, variant), iteration,
            query_iteration, scale, warpgroup, variant,
        )  # fmt: skip
        n, task = next_task(n, last, query_iteration, work, variant)
        variant.free.softmax(barriers, query_iteration, variant)
        if variant.most_over > 1:
            accumulator = await_output(accumulator, 0, variant)
            release(barriers.value_empty, last_iteration, STAGES)
            iteration = pass_over_rest(barriers, query_tile, iteration, query_iteration, warpgroup, variant)
        issued, accumulator = link(
            accumulator, tiles, barriers, iteration, last_iteration, query_iteration, n < last, warpgroup, variant
        )
        variant.ends.pass_value(barriers, last_iteration, iteration, variant)
        iteration += 1

        store_normalised(
            accumulator, row_sum, output, LSE, arrays, work, query_tile, head, batch, query_iteration, warpgroup,
            variant,
        )  # fmt: skip
        variant.free.store(barriers, query_iteration, variant)
        query_iteration += 1
    issued = warpgroup_mma_wait(0, deps=[issued])
    tma.store_wait(0)
