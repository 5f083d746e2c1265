"""What a Gluon kernel can be made of, and the constants and layouts that it is compiled with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module

from triton.experimental.gluon import language as gl

from steps.core.tiles import Tile
from steps.gluon.kernel import Copies, Queries
from steps.gluon.softmax import Sums


@dataclass(frozen=True)
class Warps:
    """How the warps of a block divide a tile of scores [query, key]: into rows (queries) and columns (keys)."""

    rows: int
    columns: int

    @property
    def number(self) -> int:
        return self.rows * self.columns


@dataclass(frozen=True)
class Schedule:
    """A kernel with its own order of copies and products.

    function: the kernel, with the parameters of ``steps.gluon.kernel.fmha``; piece: the most columns of head_dim that
    are in shared memory at once, None for all of them; head_dims: what it takes.
    """

    function: Callable
    head_dims: tuple[int, ...] = (32, 64, 128, 256)
    piece: int | None = None

    def __reduce__(self):  # a kernel cannot be pickled, its name can
        return _schedule, (self.function.fn.__module__, self.function.fn.__name__, self.head_dims, self.piece)

    def __str__(self) -> str:
        return self.function.__name__ if self.piece is None else f"pieces of {self.piece} columns"


def _schedule(module: str, name: str, head_dims: tuple[int, ...], piece: int | None) -> Schedule:
    return Schedule(getattr(import_module(module), name), head_dims, piece)


def no_swizzle(columns: int) -> gl.SwizzledSharedLayout:
    """Rows of a tile behind one another, as in memory."""
    return gl.SwizzledSharedLayout(vec=1, per_phase=1, max_phase=1, order=[1, 0])


@dataclass(frozen=True)
class Variant:
    """What a kernel is compiled for, the pieces that it is made of, and the layouts that follow.

    Layouts say which lane of which warp holds what, and where it lies. Everything here is a constant in the compiled
    code. columns: of a panel of a tile in shared memory.
    """

    tile: Tile
    head_dim: int
    columns: int
    group_size: int
    causal: bool
    ragged: bool  # the last tile of keys is not full
    warps: Warps
    stages: int
    copies: Copies
    queries: Queries
    sums: Sums
    shared: gl.SwizzledSharedLayout
    lse: bool = False  # the log-sum-exp of every query is stored, too

    @cached_property
    def accumulator(self) -> gl.NVMMADistributedLayout:
        """Scores and outputs, as mma.sync.m16n8k16 leaves them in registers."""
        return gl.NVMMADistributedLayout([2, 0], [self.warps.rows, self.warps.columns], [16, 8])

    @cached_property
    def left(self) -> gl.DotOperandLayout:
        """The first factor of a product: Q, then the weights."""
        return gl.DotOperandLayout(0, self.accumulator, 2)

    @cached_property
    def right(self) -> gl.DotOperandLayout:
        """The second factor of a product: K transposed, then V."""
        return gl.DotOperandLayout(1, self.accumulator, 2)

    @cached_property
    def copy(self) -> gl.BlockedLayout:
        """Copies between global and shared memory: 16 bytes a lane, neighbouring lanes along a row."""
        lanes = min(32, self.columns // 8)
        return gl.BlockedLayout([1, 8], [32 // lanes, lanes], [self.warps.number, 1], [1, 0])
