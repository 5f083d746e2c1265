"""Which tiles of queries a block computes: one, those of a list, or those of blocks that have not begun."""

from __future__ import annotations

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import clc
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from steps.hopper.lib import barrier_ring


class Taken(NamedTuple):
    """Where the hardware answers which block was taken, and mbarriers: the answer is there; all others have read it."""

    answer: object
    full: object
    empty: object


@gluon.jit
def room_for_answer(variant: gl.constexpr):
    """What the role that takes tiles shares with the others."""
    LISTENERS: gl.constexpr = variant.listeners
    answer = gl.allocate_shared_memory(gl.int64, [2], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    return Taken(answer, barrier_ring(1, 1), barrier_ring(1, LISTENERS))


@gluon.jit
def numbered(work, n, variant: gl.constexpr):
    """The number of the n-th tile of queries in the order."""
    if variant.persistent:
        n = gl.load(work.order + n)
    return n


@gluon.jit
def own_tiles(work, variant: gl.constexpr):
    """The part [first, last) of the order that is this block's; where tiles are taken, its first, and their end."""
    first = gl.program_id(0)
    last = first + 1
    if variant.taken:
        last = gl.load(work.starts + gl.num_programs(0))  # as many as blocks; but with that number roles spill more
    elif variant.persistent:
        last = gl.load(work.starts + first + 1)
        first = gl.load(work.starts + first)
    return first, last


@gluon.jit
def told(last, query_iteration, work):
    """Which tile of queries comes behind this one: a block has the tile of its number. last: there is none."""
    mbarrier.wait(work.taken.full.index(0), query_iteration & 1)
    found = clc.load_result(work.taken.answer)
    n = last
    if found.is_canceled():
        n = found.program_id(0)
    return n


@gluon.jit
def take_next(n, last, query_iteration, work, variant: gl.constexpr):
    """Behind a tile of queries, take that of a block that has not begun. The other roles read the answer."""
    if variant.taken:
        mbarrier.wait(work.taken.empty.index(0), query_iteration & 1 ^ 1)
        mbarrier.expect(work.taken.full.index(0), 16)
        clc.try_cancel(work.taken.answer, work.taken.full.index(0))
        return told(last, query_iteration, work)
    else:
        return n + 1


@gluon.jit
def hear_next(n, last, query_iteration, work, variant: gl.constexpr):
    """Which tile of queries comes behind this one, in the order."""
    if variant.taken:
        following = told(last, query_iteration, work)
        mbarrier.arrive(work.taken.empty.index(0), count=1)
        return following
    else:
        return n + 1
