"""Which tiles of queries a block computes: one, those of a list, or those of blocks that have not begun."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import clc
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from steps.core.fused import Pieces, grid
from steps.core.order import DEALT, NATURAL, SECTION_BYTES, Order
from steps.core.tiles import Tile
from steps.hopper.lib import as_counted, barrier_ring, listed, next_in_list, one_tile, own_tiles
from tutorial_lib.problem import Problem


class Launched(Order):
    """A block for every tile, in their order: one that stays takes the tiles of blocks that have not begun."""

    def __str__(self) -> str:
        return "taken by persistent blocks"

    def places(self, problem: Problem, tile: Tile, places: int) -> int:
        return math.prod(grid(problem, tile))


@dataclass(frozen=True)
class Schedule(Pieces):
    """Which tiles of queries a block computes. order: what a launch makes ready for that.

    own, number, take, hear: as ``steps.hopper.lib.Schedule``; take is for the role that asks for tiles.
    room(variant): what roles share to agree on the next tile. empty(variant): mbarriers that tell where queries may be
    overwritten; await_empty(barriers, query_iteration, warpgroup), say_empty(barriers, warpgroup).
    """

    order: Order
    own: Callable
    number: Callable
    take: Callable
    hear: Callable
    room: Callable
    empty: Callable
    await_empty: Callable
    say_empty: Callable


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
def launched_tiles(work, variant: gl.constexpr):
    """The block's first tile in the order, and the end of all: it takes those of blocks that have not begun."""
    first = gl.program_id(0)
    last = gl.load(work.starts + gl.num_programs(0))  # as many as blocks; but with that number roles spill more
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
    mbarrier.wait(work.taken.empty.index(0), query_iteration & 1 ^ 1)
    mbarrier.expect(work.taken.full.index(0), 16)
    clc.try_cancel(work.taken.answer, work.taken.full.index(0))
    return told(last, query_iteration, work)


@gluon.jit
def hear_next(n, last, query_iteration, work, variant: gl.constexpr):
    """Which tile of queries comes behind this one, in the order."""
    following = told(last, query_iteration, work)
    mbarrier.arrive(work.taken.empty.index(0), count=1)
    return following


# --- who tells that the queries of a warpgroup may be overwritten, as the output has left from there ---


@gluon.jit
def rings_of_queries(variant: gl.constexpr):
    """An mbarrier for each warpgroup."""
    WARPGROUPS: gl.constexpr = variant.warpgroups
    return barrier_ring(WARPGROUPS, 1)


@gluon.jit
def await_empty(barriers, query_iteration, warpgroup: gl.constexpr):
    """Wait until the output of the tile before has left."""
    mbarrier.wait(barriers.query_empty.index(warpgroup), query_iteration & 1 ^ 1)


@gluon.jit
def say_empty(barriers, warpgroup: gl.constexpr):
    """The output has left."""
    mbarrier.arrive(barriers.query_empty.index(warpgroup), count=1)


@gluon.jit
def nothing(variant: gl.constexpr):
    """Nothing is shared: the compiler would give what nobody uses to something else, too."""
    return None


@gluon.jit
def no_wait(barriers, query_iteration, warpgroup: gl.constexpr):
    """There is no tile before."""


@gluon.jit
def say_nothing(barriers, warpgroup: gl.constexpr):
    """No tile comes behind."""


ONE_TILE = Schedule(NATURAL, one_tile, as_counted, next_in_list, next_in_list, nothing, nothing, no_wait, say_nothing)
LISTS = Schedule(
    DEALT, own_tiles, listed, next_in_list, next_in_list, nothing, rings_of_queries, await_empty, say_empty
)
LAUNCHED = Schedule(
    Launched(persistent=True, section_bytes=SECTION_BYTES),
    launched_tiles,
    listed,
    take_next,
    hear_next,
    room_for_answer,
    rings_of_queries,
    await_empty,
    say_empty,
)
