"""What a backward kernel is compiled for: all of it is constant in the compiled code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from steps.backward_cutile.kernel import OfQueries, Rows, Walks
from steps.core.tiles import Tile


@dataclass(frozen=True)
class Variant:
    """What a kernel is compiled for, and the functions that it is made of (``steps.backward_cutile.kernel``)."""

    weigh: Callable
    of_rows: Rows
    d_query: OfQueries
    walks: Walks
    order: Callable  # in which blocks that own queries take them
    tile: Tile
    head_dim: int
    group_size: int
    causal: bool
    ragged: bool  # the last tile of keys is not full
    ragged_queries: bool  # the last tile of queries is not full
    window: int | None = None  # of ``Problem``, as softcap
    softcap: float | None = None
    sequences: int = 0  # a power of two: packed, at most so many; 0: not packed
    rows: int = 0  # of packed sequences: that a block owns, of keys or of queries
