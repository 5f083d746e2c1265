"""The constants and layouts that an fp8 kernel is compiled with, and the pieces that it is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from triton.experimental.gluon import language as gl

from steps.core.tiles import Tile
from steps.fp8.products import ProductSums, Values
from steps.gluon.functions import compiled_as
from steps.hopper.lib import NO_TURNS, Hold, Schedule, Turns, hold_by_nobody, keep_meetings
from steps.hopper.softmax import SUM_AT_END, Sums, in_one_chain
from steps.hopper.variant import GROUP_WARPS, MOST_REGISTERS, PRODUCER_REGISTERS, THREE_GROUPS_REGISTERS

BITS = 8  # of an element of Q and K
OUTPUT_BITS = 16
WIDEST = 128  # bytes of a row that a swizzle goes through
HELD = Hold(keep_meetings, hold_by_nobody, barriers=True)


@dataclass(frozen=True)
class Variant:
    """What a kernel is compiled for. The pieces are explained where they are: ``steps.fp8.products``, and
    ``steps.hopper``.

    offset: of the weights, in base 2: the largest of a row is 2^offset.
    """

    tile: Tile
    head_dim: int
    group_size: int
    causal: bool
    ragged: bool  # the last tile of keys is not full
    warpgroups: int  # that compute, of steps.hopper.variant.ROWS queries each: 2 or 3
    stages: int
    query_stages: int  # tiles of queries that shared memory holds
    schedule: Schedule
    values: Values
    product_sums: ProductSums
    offset: int
    turns: Turns = NO_TURNS
    hold: Hold = HELD
    sums: Sums = SUM_AT_END
    highest: Callable = in_one_chain
    lse: bool = False  # the log-sum-exp of every query is stored, too

    # What pieces of steps.hopper ask.
    warps: ClassVar[int] = GROUP_WARPS
    neighbours: ClassVar[int] = 1
    ctas: ClassVar[int] = 1
    window: ClassVar[None] = None
    packed: ClassVar[bool] = False
    together: ClassVar[int] = 1
    in_panels: ClassVar[bool] = False
    panels: ClassVar[int] = 1
    rewrite: ClassVar[bool] = True

    @property
    def cache_key(self) -> str:
        """What Triton knows these constants by: functions by their source, not by their names."""
        return compiled_as(self)

    @property
    def rows(self) -> int:
        """Queries of a warpgroup."""
        return self.tile.query // self.warpgroups

    @property
    def masks_in_loop(self) -> bool:
        """Whether the diagonal may pass through more tiles of keys than the first that is visited."""
        return self.causal and self.tile.key % self.tile.query != 0

    @property
    def workers(self) -> list[int]:
        """Warps of every warpgroup but the first, and of the producer."""
        return [self.warps] * (self.warpgroups - 1) + [1]

    @property
    def budgets(self) -> list[int]:
        """Registers of a thread of those; the first warpgroup gets what is left, which is no less."""
        registers = MOST_REGISTERS if self.warpgroups == 2 else THREE_GROUPS_REGISTERS
        return [registers] * (self.warpgroups - 1) + [PRODUCER_REGISTERS]

    @property
    def value_rows(self) -> int:
        """Rows of a tile of values in shared memory."""
        return self.head_dim if self.values.transposed else self.tile.key

    @property
    def value_columns(self) -> int:
        """Its columns."""
        return self.tile.key if self.values.transposed else self.head_dim

    @cached_property
    def accumulator(self) -> gl.NVMMADistributedLayout:
        """Scores [query, key], as wgmma leaves them in registers: a warp has 16 rows."""
        return gl.NVMMADistributedLayout([3, 0], [self.warps, 1], [16, self.tile.key, 32])

    @cached_property
    def output(self) -> gl.NVMMADistributedLayout:
        """Outputs [query, head_dim]."""
        return gl.NVMMADistributedLayout([3, 0], [self.warps, 1], [16, self.head_dim, 256 // self.values.bits])

    @cached_property
    def weights(self) -> gl.DotOperandLayout:
        """The first factor of the PV product, in registers: 32 bits of a row's neighbours are in one lane."""
        return gl.DotOperandLayout(0, self.output, 32 // self.values.bits)

    @cached_property
    def shared(self) -> gl.NVMMASharedLayout:
        """Tiles of queries and keys."""
        return swizzled(self.head_dim, BITS)

    @cached_property
    def shared_value(self) -> gl.NVMMASharedLayout:
        """Tiles of values."""
        return swizzled(self.value_columns, self.values.bits)

    @cached_property
    def shared_output(self) -> gl.NVMMASharedLayout:
        """Tiles of the output."""
        return swizzled(self.head_dim, OUTPUT_BITS)


def swizzled(columns: int, bits: int) -> gl.NVMMASharedLayout:
    """Tiles with rows of so many columns, as TMA writes and wgmma reads them."""
    return gl.NVMMASharedLayout(min(WIDEST, columns * bits // 8), bits, rank=4)
