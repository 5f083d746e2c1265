"""What a backward kernel is compiled for: all of it is constant in the compiled code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cuda.tile as ct

from steps.core.tiles import Tile


@dataclass(frozen=True)
class Variant:
    """weigh: a hole of the step. atomics: what the additions to dQ by the blocks that own keys order beside themselves;
    None: dQ has a kernel of its own. mask_loops, longest_first, prepared: holes of the step, too.

    leaves_unseen: a block passes over the heads when no query sees its keys. Otherwise the loop over the queries has no
    iterations, which comes to the same. But where a loop over the heads is around it, and additions are ordered, what
    cuTile 1.7.0 makes of the two for sm_90 did not end on an H100.
    """

    weigh: Callable
    atomics: ct.MemoryOrder | None
    tile: Tile
    head_dim: int
    group_size: int
    causal: bool
    ragged: bool  # the last tile of keys is not full
    ragged_queries: bool  # the last tile of queries is not full
    mask_loops: bool
    longest_first: bool
    prepared: bool
    leaves_unseen: bool
    window: int | None = None  # of ``Problem``, as softcap
    softcap: float | None = None
    sequences: int = 0  # a power of two: packed, at most so many; 0: not packed
    rows: int = 0  # of packed sequences: that a block owns, of keys or of queries
