"""What a cuTile kernel can be made of, and the constants that it is compiled with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from steps.core.tiles import Tile
from steps.cutile.kernel import Base, Scheduler, add_in_float32


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
    """What a kernel is compiled for, and the functions that it is made of (``steps.cutile.kernel``).

    Everything here is a constant in the compiled code.
    """

    load_key: Callable
    softmax: Callable
    divide: Callable
    latency: Latency
    tile: Tile
    head_dim: int
    group_size: int  # heads of Q, as the kernel sees it, that share a head of K and V
    causal: bool
    ragged: bool  # the last tile of keys is not full
    scheduler: Scheduler
    section: int  # heads of a section, where blocks are numbered so; 0: they are not
    mask_loop: MaskLoop | None
    walk: Callable  # over the tiles of keys that a tile of queries sees
    store: Callable
    base: Base
    window: int | None = None  # of ``Problem``, as softcap
    softcap: float | None = None
    sequences: int = 0  # a power of two: packed, at most so many; 0: not packed
    together: int = 0  # heads of a group whose queries share a tile, a power of two; 0: a tile is of one head
    sinks: bool = False  # every query head has a sink: scale is the scale and an array of them
    quantized: bool = False  # Q, K and V are in fp8: scale is that of the softmax, and theirs
    add_up: Callable = add_in_float32  # who adds up the PV products of all tiles
    lse: bool = False  # the log-sum-exp of every query is stored, too: Out is the output and an array for it

    @property
    def rows(self) -> int:
        """Different queries of a tile: it holds them once for every head that shares it."""
        return self.tile.query // self.together if self.together else self.tile.query

    @property
    def edge(self) -> Tile:
        """The tile where the mask cuts."""
        return self.narrow if self.mask_loop else self.tile

    @property
    def whole_latency(self) -> Latency:
        """Hints for the loop over whole tiles."""
        return self.mask_loop.latency if self.mask_loop else self.latency

    @property
    def narrow(self) -> Tile:
        """The tile of the loop for the mask."""
        return Tile(self.tile.query, self.mask_loop.key)
