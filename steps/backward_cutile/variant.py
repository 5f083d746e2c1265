"""What a backward kernel is compiled for: all of it is constant in the compiled code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from steps.core.tiles import Tile


@dataclass(frozen=True)
class Variant:
    """weigh: a hole of the step. atomics: dQ is added by the blocks that own keys, and has no kernel of its own."""

    weigh: Callable
    atomics: bool
    tile: Tile
    head_dim: int
    group_size: int
    causal: bool
