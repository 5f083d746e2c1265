"""The constants and layouts that a Hopper kernel is compiled with, and the pieces that it is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from triton.experimental.gluon import language as gl

from steps.core.tiles import Tile
from steps.gluon.functions import compiled_as
from steps.hopper.lib import Ends, Free, Hold, Schedule, Turns
from steps.hopper.packed import AXES
from steps.hopper.products import OutputTo, Queries
from steps.hopper.softmax import DOWNWARDS, Sums, Walk
from tutorial_lib.problem import BYTES_PER_ELEMENT

SWIZZLED = 64  # columns of the widest swizzle, which tiles of V have where those of K do
LEAST_PIECE = 16  # columns: wgmma's K
ROWS = 64  # of queries that a warpgroup multiplies at a time: wgmma's M
GROUP_WARPS = 4  # of a warpgroup
PRODUCER_REGISTERS = 24  # the least that setmaxnreg can leave
MOST_REGISTERS = 240  # with which two groups of 128 threads and the producer's four warps still share 65536
THREE_GROUPS_REGISTERS = 160  # with which three do
SM_REGISTERS = 65536


@dataclass(frozen=True)
class Variant:
    """What a kernel is compiled for, the pieces that it is made of, and the layouts that follow.

    All of it is constant in the compiled code. The pieces are explained where they are: ``steps.hopper.lib``,
    ``products`` and ``softmax``.
    """

    tile: Tile  # of a block, or of both blocks of a pair; queries of each head that it has
    head_dim: int  # columns of a tile of Q and K, of all its panels
    value_dim: int  # columns of a tile of V and of the output
    group_size: int  # query heads that share keys; where a block has several, as many as blocks for them
    causal: bool
    ragged: bool  # the last tile of keys is not full
    groups: int  # warpgroups that compute, together or for themselves, of ROWS queries each
    warpgroups: int  # those that run for themselves, each with its queries; 1: all warps do the same, as one
    stages: int
    query_stages: int  # tiles of queries that shared memory holds
    registers: int
    schedule: Schedule
    consume: Callable | None  # what a warpgroup does: a generation; None: the warps have no roles
    turns: Turns
    ends: Ends
    walk: Walk
    queries: Queries
    highest: Callable
    softmax: Callable
    sums: Sums
    hold: Hold
    output_to: OutputTo
    free: Free
    window: int | None = None  # of ``Problem``, as softcap
    softcap: float | None = None
    lse: bool = False  # the log-sum-exp of every query is stored, too
    neighbours: int = 1  # blocks on neighbouring SMs that share what TMA brings of keys and values
    pieces: tuple[int, int] | None = None  # columns of head_dim, where products take them in two pieces
    value_pieces: tuple[int, int] | None = None  # the same of V's columns
    panels: int = 1  # that Q and K have, of equal width (``steps.hopper.panels``)
    packed: bool = False  # sequences are packed into one tensor
    sinks: bool = False  # every query head has a sink
    together: int = 1  # query heads of a group that a block has, each warpgroup another: all see the same keys

    def __post_init__(self):
        if self.walk == DOWNWARDS and self.neighbours > 1:
            raise ValueError("blocks in pairs visit the tiles of keys from the first")
        if self.packed and not (self.schedule.tells and self.neighbours == 1 and not self.in_pieces):
            raise ValueError("packed sequences take persistent blocks, each for itself, and head_dim in one piece")
        if self.in_panels and (self.packed or self.neighbours > 1 or self.consume is None):
            raise ValueError("panels take a producer, blocks each for itself, and sequences that are not packed")

    @property
    def cache_key(self) -> str:
        """What Triton knows these constants by: functions by their source, not by their names."""
        return compiled_as(self)

    @property
    def in_pieces(self) -> bool:
        """Whether the QK product takes head_dim in two pieces (``steps.hopper.pieces``)."""
        return self.pieces is not None

    @property
    def in_panels(self) -> bool:
        """Whether tiles of Q and K lie in panels, and the QK product takes one after the other."""
        return self.panels > 1

    @property
    def panel_columns(self) -> int:
        """Columns of Q and K that lie together."""
        return self.head_dim // self.panels

    @property
    def output_in_pieces(self) -> bool:
        """Whether the PV product does so with the columns of V."""
        return self.value_pieces is not None

    @cached_property
    def outputs(self) -> list[gl.NVMMADistributedLayout]:
        """Outputs [query, columns of a piece], of each piece."""
        return [gl.NVMMADistributedLayout([3, 0], [self.warps, 1], [16, columns, 16]) for columns in self.value_pieces]

    @property
    def rows(self) -> int:
        """Queries of a warpgroup."""
        return self.tile.query * self.together // (self.neighbours * self.warpgroups)

    @property
    def warps(self) -> int:
        """Warps of a warpgroup."""
        return GROUP_WARPS * self.groups // self.warpgroups

    @property
    def most_over(self) -> int:
        """Of the tiles of keys that a block visits, or a pair, how many at most a warpgroup passes over at its end."""
        if not self.ends.own:
            return 0
        query, key = self.tile.query, self.tile.key
        # After so many tiles of queries their ends stand to those of tiles of keys as for the first.
        firsts = range(0, query * key, query)
        return max(-(-(first + query) // key) - -(-(first + self.rows) // key) for first in firsts)

    @property
    def listeners(self) -> int:
        """Roles that the producer tells which tile of queries is next."""
        return self.warpgroups

    @property
    def quarter(self) -> int:
        """A quarter of the columns of Q."""
        return self.head_dim // 4

    @property
    def output_columns(self) -> int:
        """Columns of the output that are stored at once."""
        return self.value_dim // self.output_to.at_once

    @property
    def workers(self) -> list[int]:
        """Warps of every warpgroup but the first, and of the producer."""
        return [self.warps] * (self.warpgroups - 1) + [1]

    @property
    def budgets(self) -> list[int]:
        """Registers of a thread of those; the first warpgroup gets what is left, which is no less."""
        return [self.registers] * (self.warpgroups - 1) + [PRODUCER_REGISTERS]

    @cached_property
    def accumulator(self) -> gl.NVMMADistributedLayout:
        """Scores [query, key], as wgmma leaves them in registers: a warp has 16 rows."""
        return gl.NVMMADistributedLayout([3, 0], [self.warps, 1], [16, self.tile.key, 16])

    @cached_property
    def output(self) -> gl.NVMMADistributedLayout:
        """Outputs [query, value_dim]."""
        return gl.NVMMADistributedLayout([3, 0], [self.warps, 1], [16, self.value_dim, 16])

    @cached_property
    def weights(self) -> gl.DotOperandLayout:
        """The first factor of the PV product, which comes from registers."""
        return gl.DotOperandLayout(0, self.output, 2)

    @cached_property
    def shared(self) -> gl.NVMMASharedLayout:
        """Tiles in shared memory, swizzled as TMA writes and wgmma reads them."""
        swizzle = min(128, self.head_dim * BYTES_PER_ELEMENT)
        return gl.NVMMASharedLayout(swizzle, 8 * BYTES_PER_ELEMENT, rank=len(self.outer) + 2)

    @property
    def outer(self) -> list[int]:
        """How much of the axes in front of rows and columns is in a tile, as TMA knows a tensor."""
        return [1] * ((AXES if self.packed else 4) - 2)

    @property
    def shared_key(self) -> gl.NVMMASharedLayout:
        """Those of keys."""
        return self.shared

    @property
    def shared_value(self) -> gl.NVMMASharedLayout:
        """Those of values."""
        return self.shared

    @property
    def rewrite(self) -> bool:
        """Whether the kernel asks for its PTX to be rewritten (``tutorial_lib.rewriting``): for wgmma's descriptors."""
        return True

    @property
    def ctas(self) -> int:
        """Blocks that work together."""
        return 1


def registers_of(groups: int, blocks: int) -> tuple[int, int]:
    """Registers of a thread where so many blocks share an SM: when a block begins, and of groups that compute.

    The producer has a group of warps of its own, and gives back what it does not need. setmaxnreg takes multiples of 8.
    """
    begin = SM_REGISTERS // (blocks * 32 * GROUP_WARPS * (groups + 1)) // 8 * 8
    return begin, (begin * (groups + 1) - PRODUCER_REGISTERS) // groups // 8 * 8


def pieces_of(head_dim: int) -> tuple[int, int] | None:
    """Columns of two pieces, each a power of two, that hold head_dim; None where one tile of all is as small."""
    first = 2 ** (head_dim.bit_length() - 1)
    second = max(LEAST_PIECE, 2 ** (head_dim - first - 1).bit_length()) if head_dim > first else first
    return (first, second) if second < first else None
