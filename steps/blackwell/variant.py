"""The constants and layouts that a Blackwell kernel is compiled with, and the pieces that it is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import TensorMemoryLayout

from steps.blackwell.sharing import Sharing
from steps.blackwell.softmax import Rescaling
from steps.blackwell.taking import Schedule
from steps.core.tiles import Tile
from steps.gluon.functions import compiled_as
from tutorial_lib.problem import BYTES_PER_ELEMENT

HEAD_DIMS = (32, 64, 128, 256)
WIDE = 256  # head_dim of which shared memory holds fewer keys, and tensor memory the output of one warpgroup
ROWS = 128  # queries of a warpgroup: the lanes of tensor memory, and the rows of one tcgen05.mma
KEYS, WIDE_KEYS = 128, 64  # of a tile
GROUP_WARPS = 4  # of a warpgroup, which together reach all lanes
AT_ONCE = 64  # columns of the output that a warpgroup holds in registers at once, where it rescales or stores


@dataclass(frozen=True)
class Variant:
    """What a kernel is compiled for, the pieces that it is made of, and the layouts that follow.

    All of it is constant in the compiled code.
    """

    tile: Tile
    head_dim: int
    group_size: int
    causal: bool
    ragged: bool  # the last tile of keys is not full
    warpgroups: int  # that compute a softmax, of ROWS queries each
    stages: int
    registers: tuple[int, ...]  # of a thread of every role but the first warpgroup's; (): warps have no roles
    sharing: Sharing
    schedule: Schedule
    rescaling: Rescaling
    exponential: Callable
    lse: bool = False  # the log-sum-exp of every query is stored, too

    @property
    def cache_key(self) -> str:
        """What Triton knows these constants by: functions by their source, not by their names."""
        return compiled_as(self)

    @property
    def ctas(self) -> int:
        """CTAs that work together: blocks of a cluster."""
        return self.sharing.ctas

    @property
    def neighbours(self) -> int:
        """Blocks that share a tile, of which Triton does not know."""
        return 1

    @property
    def rewrite(self) -> bool:
        """Whether the kernel asks for its PTX to be rewritten."""
        return False

    @property
    def panel_columns(self) -> int:
        """Columns of Q and K that TMA brings at once."""
        return self.head_dim

    @property
    def packed(self) -> bool:
        """Whether sequences are packed into one tensor."""
        return False

    @property
    def rows(self) -> int:
        """Queries of a warpgroup, in all CTAs together."""
        return ROWS * self.ctas

    @property
    def warps(self) -> int:
        """Warps that a block begins with: those of the first softmax warpgroup."""
        return GROUP_WARPS

    @property
    def value_dim(self) -> int:
        """Columns of V and of the output."""
        return self.head_dim

    @property
    def output_columns(self) -> int:
        """Columns of the output that TMA stores at once: before 3.9 Triton sliced no shared memory of a cluster."""
        return self.head_dim if self.ctas == 1 else self.at_once

    @property
    def at_once(self) -> int:
        """Columns of the output that are in registers at once."""
        return min(self.head_dim, AT_ONCE)

    @property
    def workers(self) -> list[int]:
        """Warps of every role but the first warpgroup's: the other's, those that rescale, products, copies."""
        return [GROUP_WARPS] * (len(self.registers) - 2) + [1, 1]

    @property
    def budgets(self) -> list[int]:
        """Registers of a thread of those; the first warpgroup gets what is left, which is no less."""
        return list(self.registers)

    @property
    def listeners(self) -> int:
        """Roles that read which tile of queries is next, beside the one that asks for it."""
        return len(self.workers)

    @property
    def tensor_columns(self) -> int:
        """Columns of tensor memory that a block needs: for scores and outputs in float32, without roles for weights."""
        weights = 0 if self.registers else self.tile.key * BYTES_PER_ELEMENT // 4
        return self.warpgroups * (self.tile.key + weights + self.head_dim)

    @cached_property
    def scores(self) -> TensorMemoryLayout:
        """Scores [query, key] in tensor memory: a lane has a query, a column a key. Weights are packed two a column."""
        return self._columns(self.tile.key)

    @cached_property
    def sums(self) -> TensorMemoryLayout:
        """Outputs [query, head_dim] in tensor memory."""
        return self._columns(self.head_dim)

    def _columns(self, number: int) -> TensorMemoryLayout:
        """So many columns of tensor memory; of two CTAs each has half of the rows in its own."""
        if self.ctas == 1:
            return TensorMemoryLayout((ROWS, number), col_stride=1)
        return TensorMemoryLayout((ROWS, number), col_stride=1, cga_layout=[[1, 0]], two_ctas=self.sharing.joint)

    @cached_property
    def shared(self) -> gl.NVMMASharedLayout:
        """Tiles of queries in shared memory, swizzled as TMA writes and tcgen05.mma reads them; each CTA has half."""
        return self._tiles(self.head_dim, [0, 0, 1, 0])

    @cached_property
    def shared_key(self) -> gl.NVMMASharedLayout:
        """Tiles of keys: the first factor of a product of two CTAs is halved by rows, and the second by columns."""
        return self._tiles(self.head_dim, [0, 0, 1 if self.sharing.joint else 0, 0])

    @cached_property
    def shared_value(self) -> gl.NVMMASharedLayout:
        """Tiles of values: as those of keys, which are transposed for their product."""
        return self._tiles(self.head_dim // (2 if self.sharing.joint else 1), [0, 0, 0, 1 if self.sharing.joint else 0])

    def _tiles(self, columns: int, halved: list[int]) -> gl.NVMMASharedLayout:
        """Tiles with so many columns in a CTA; of two CTAs each has half along the axis where ``halved`` is 1."""
        halves = {} if self.ctas == 1 else {"cga_layout": [halved]}
        width = min(128, columns * BYTES_PER_ELEMENT)
        return gl.NVMMASharedLayout(width, 8 * BYTES_PER_ELEMENT, rank=4, **halves)
