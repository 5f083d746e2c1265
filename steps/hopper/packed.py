"""Packed sequences: blocks find the sequence of a tile on the GPU, and TMA sees one sequence as if it were alone.

The host does not know where sequences begin: that may change from call to call, and a kernel reads it. So no list can
be dealt. Blocks take numbers from a counter (``steps.hopper.lib``), and the producer finds what a number means and
tells the warps that compute.
"""

from __future__ import annotations

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

AXES = 5  # of a tensor of packed sequences, as TMA knows it
MOST_ROWS = gl.constexpr(2**30)  # of every sequence, as TMA knows it: more than there are tokens
TOLD = gl.constexpr(6)  # numbers that the producer tells


class Packed(NamedTuple):
    """Where sequences begin among the queries and among the keys, and how many there are."""

    queries: object
    keys: object
    count: object


class Sequence(NamedTuple):
    """Where a sequence stands among all queries, and among all keys. It takes the place of the number of a batch."""

    begin: object
    length: object
    begin_kv: object
    length_kv: object


class Task(NamedTuple):
    """A tile of queries: head, first row in its sequence, and the sequence."""

    head: object
    row: object
    batch: object


def described(x, rows: int, columns: int, layout):
    """``[1, heads, tokens, head_dim]`` for TMA such that it brings zeros, and drops what it stores, behind a sequence.

    TMA leaves out what lies outside of a tensor, and most sequences end inside of theirs. So TMA is told that the
    tensor has ``MOST_ROWS`` rows, of which a sequence has the last (``corner``): what is behind it is outside. The rows
    that are not there are taken back by two more axes, as addresses are counted modulo 2^64. The idea is that of
    ``triton.tools.ragged_tma``.
    """
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    (_, heads, tokens, head_dim), (_, a_head, a_row, _) = x.shape, x.stride()
    # A stride along an axis of length 1 is never used, and may be anything but what TMA takes.
    a_head, a_row = (stride if n > 1 else head_dim for stride, n in ((a_head, heads), (a_row, tokens)))
    shape = [MOST_ROWS.value + 1, tokens + 1, heads, MOST_ROWS.value, head_dim]
    # Of the first axis, index MOST_ROWS is meant: 2^30 * 2^34 elements of two bytes are 0 modulo 2^64, and so what is
    # left of its stride takes back MOST_ROWS rows.
    strides = [2**34 - a_row, a_row, a_head, a_row, 1]
    return TensorDescriptor(x, shape, strides, [1, 1, 1, rows, columns], layout)


@gluon.jit
def in_sequence(begin, length, head, row, column):
    """Where a tile begins, as TMA takes it; ``row``: in the sequence."""
    return [MOST_ROWS, begin + length, head, MOST_ROWS - length + row, column]


@gluon.jit
def corner(batch, head, row, column, variant: gl.constexpr):
    """Where a tile of queries or of the output begins, as TMA takes it."""
    if variant.packed:
        return in_sequence(batch.begin, batch.length, head, row, column)
    else:
        return [batch, head, row, column]


@gluon.jit
def corner_kv(batch, head, row, variant: gl.constexpr):
    """Where a tile of keys or of values begins, as TMA takes it."""
    if variant.packed:
        return in_sequence(batch.begin_kv, batch.length_kv, head, row, 0)
    else:
        return [batch, head, row, 0]


@gluon.jit
def keys_of(batch, work, variant: gl.constexpr):
    """How many keys there are."""
    if variant.packed:
        return batch.length_kv
    else:
        return work.seq_len_kv


@gluon.jit
def sequence_of(number, begins, count, rows: gl.constexpr):
    """The sequence of a tile of so many rows, by the tile's number in its head.

    Sequence s has the numbers from begins[s] // rows + s on: as many as it has tiles, or one more, for nothing.
    """
    which = 0
    behind = count
    while behind - which > 1:
        middle = (which + behind) // 2
        if gl.load(begins + middle) // rows + middle <= number:
            which = middle
        else:
            behind = middle
    return which


@gluon.jit
def find(number, work, variant: gl.constexpr):
    """The task that a number means; its row is negative where it means none.

    Of a sequence the last tile comes first, which is the longest under a causal mask.
    """
    TILE_QUERY: gl.constexpr = variant.tile.query
    within = number % work.tiles_a_head
    which = sequence_of(within, work.packed.queries, work.packed.count, TILE_QUERY)
    begin = gl.load(work.packed.queries + which)
    length = gl.load(work.packed.queries + which + 1) - begin
    begin_kv = gl.load(work.packed.keys + which)
    length_kv = gl.load(work.packed.keys + which + 1) - begin_kv
    i = within - (begin // TILE_QUERY + which)
    row = (gl.cdiv(length, TILE_QUERY) - 1 - i) * TILE_QUERY
    return Task(number // work.tiles_a_head, row, Sequence(begin, length, begin_kv, length_kv))


@gluon.jit
def room_for_task():
    """What the producer tells the others."""
    return gl.allocate_shared_memory(gl.int32, [TOLD, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def tell_task(n, task, query_iteration, work):
    """Tell the other roles a tile of queries of this block; n: its number."""
    ONE: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    mbarrier.wait(work.taken.empty.index(0), query_iteration & 1 ^ 1)
    batch = task.batch
    told = (n, task.head, task.row, batch.begin, batch.length, batch.length_kv)
    for k in gl.static_range(TOLD):
        work.taken.number.index(k).store(gl.full([1], told[k], gl.int32, ONE))
    mbarrier.arrive(work.taken.full.index(0), count=1)


@gluon.jit
def heard(k: gl.constexpr, work):
    """One of the numbers that the producer tells."""
    ONE: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    return gl.max(work.taken.number.index(k).load(ONE), 0)


@gluon.jit
def hear_task(query_iteration, work):
    """(n, task): what the producer tells of tile ``query_iteration`` of the queries."""
    mbarrier.wait(work.taken.full.index(0), query_iteration & 1)
    n = heard(0, work)
    batch = Sequence(heard(3, work), heard(4, work), 0, heard(5, work))  # nobody but the producer asks where keys begin
    task = Task(heard(1, work), heard(2, work), batch)
    mbarrier.arrive(work.taken.empty.index(0), count=1)
    return n, task
