"""The kernel of the warps with roles: a producer warp fetches, and warpgroups compute.

How these compute is ``variant.consume``: a generation, each in a module of its own (``steps.hopper.producer``,
``overlapped``, ``epilogue_overlap`` and ``ahead``). A block computes one tile of queries, or stays and computes one
after the other, as its schedule says. If it stays, the producer fetches for the next tile of queries while the last is
still computed.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from steps.gluon import names  # noqa: F401
from steps.gluon.softmax import tiles_to_visit
from steps.hopper.lib import (
    Arrays,
    Work,
    all_see_barriers,
    fetch_all,
    fetch_queries,
    keys_before,
    position,
    rings,
    room_for_number,
    rooms,
    take_number,
    take_task,
)
from steps.hopper.packed import Packed, keys_of


@gluon.jit
def produce(arrays, tiles, barriers, work, variant: gl.constexpr):
    """The producer: fetches the tiles of this block, each as soon as its slot is empty."""
    iteration = 0  # tiles of keys so far: tells the slot in the ring, and how often it was filled
    query_iteration = 0
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
            end = gl.maximum(end, 1)  # lengths that nobody checked may leave no key: the warpgroups wait for one tile
            following = take_number(last, work)  # which takes long, and is not needed before the keys are asked for
        empty = barriers.query_empty.index(query_iteration % variant.query_stages)
        mbarrier.wait(empty, query_iteration // variant.query_stages & 1 ^ 1)
        fetch_queries(arrays, tiles, barriers, head, batch, row, query_iteration, variant)
        kv_head = head // variant.group_size
        iteration = fetch_all(arrays, tiles, barriers, kv_head, batch, before, end, iteration, variant)
        if variant.packed:
            n, task = take_task(following, last, query_iteration + 1, work, variant)
        else:
            n = variant.schedule.take(n, last, query_iteration, work, variant)
        query_iteration += 1


@gluon.jit(do_not_specialize=["seq_len_kv", "heads", "tiles_a_head", "sequences"])
def fmha(
    Q, K, V, Out, order, starts, scale, seq_len_kv, heads, tiles_a_head, variant: gl.constexpr, LSE=None, begins_q=None,
    begins_k=None, sequences=None, Sinks=None,
):  # fmt: skip
    arrays = Arrays(Q, K, V, Out)
    tiles = rooms(Q.dtype, variant)
    barriers = rings(variant)
    taken = room_for_number(variant) if variant.schedule.tells else None
    packed = Packed(begins_q, begins_k, sequences) if variant.packed else None
    lines = Q.shape[0] * heads if variant.schedule.lines else None
    work = Work(order, starts, heads, tiles_a_head, seq_len_kv, taken, packed, lines, Sinks)
    all_see_barriers(variant)
    variant.hold.begin()

    # --- who does what; the first warpgroup's warps are those that the block began with ---
    WORKERS: gl.constexpr = variant.workers
    BUDGETS: gl.constexpr = variant.budgets
    if variant.warpgroups == 2:
        gl.warp_specialize(
            [
                (variant.consume, (arrays, tiles, barriers, work, scale, LSE, 0, variant)),
                (variant.consume, (arrays, tiles, barriers, work, scale, LSE, 1, variant)),
                (produce, (arrays, tiles, barriers, work, variant)),
            ],
            WORKERS,
            BUDGETS,
        )
    else:
        gl.warp_specialize(
            [
                (variant.consume, (arrays, tiles, barriers, work, scale, LSE, 0, variant)),
                (variant.consume, (arrays, tiles, barriers, work, scale, LSE, 1, variant)),
                (variant.consume, (arrays, tiles, barriers, work, scale, LSE, 2, variant)),
                (produce, (arrays, tiles, barriers, work, variant)),
            ],
            WORKERS,
            BUDGETS,
        )
