"""What a cuTile kernel can be made of, and the constants that it is compiled with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from steps.core.tiles import Tile


@dataclass(frozen=True)
class Latency:
    """Hints on how long a load will take, 1 (short) to 10 (long); None leaves it to the compiler.

    A longer latency makes the compiler fetch further ahead, into more shared memory.
    """

    key: int | None = None
    value: int | None = None


@dataclass(frozen=True)
class MaskLoop:
    """A loop of its own for the keys that the mask cuts.

    key: keys of a tile there. latency: hints for the loop over whole tiles, in place of the step's.
    """

    key: int
    latency: Latency


@dataclass(frozen=True)
class Variant:
    """What a kernel is compiled for. Everything here is a constant in the compiled code."""

    load_key: Callable
    softmax: Callable
    divide: Callable
    latency: Latency
    tile: Tile
    head_dim: int
    group_size: int
    causal: bool
    ragged: bool  # the last tile of keys is not full
    persistent: bool
    section: int  # heads of a section, where blocks are numbered so; 0: they are not
    one_loop: bool
    mask_loop: MaskLoop | None
    apart: bool
    counted: bool
    base: float = 2  # of the softmax's exponentials
    lse: bool = False  # the log-sum-exp of every query is stored, too: Out is the output and an array for it

    @property
    def lists(self) -> int:
        """How many lists of ``steps.core.order`` the kernel reads: order, starts, turns."""
        return 2 + self.one_loop if self.persistent and not self.counted else 0

    @property
    def narrow(self) -> Tile:
        """The tile of the loop for the mask."""
        return Tile(self.tile.query, self.mask_loop.key)
