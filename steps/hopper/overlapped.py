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
    pass_over_rest,
    query_of,
    query_tile_of,
    release,
    seen,
    sink_of,
)
from steps.hopper.loop import attend_overlapped
from steps.hopper.products import await_output, store_normalised


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
    while n < last:
        query_tile, head, batch = query_tile_of(n, task, work, variant)
        query = query_of(tiles.query, query_iteration, warpgroup, variant)
        await_tile(barriers.query_full, query_iteration, QUERY_STAGES)
        query = variant.queries.take(query, variant)
        iteration = variant.ends.pass_first(barriers, query_tile, iteration, warpgroup, variant)
        await_tile(barriers.key_full, iteration, STAGES)
        issued = variant.queries.multiply(query, tiles.key, iteration, variant)
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
        else:
            accumulator = await_output(accumulator, 0, variant)
            release(barriers.value_empty, last_iteration, STAGES)
        variant.ends.pass_value(barriers, last_iteration, iteration, variant)
        iteration += 1

        store_normalised(
            accumulator, row_sum, output, LSE, arrays, work, query_tile, head, batch, query_iteration, warpgroup,
            variant,
        )  # fmt: skip
        variant.free.store(barriers, query_iteration, variant)
        query_iteration += 1
    tma.store_wait(0)
