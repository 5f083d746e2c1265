"""Tile sizes: the one place that says how many query rows and keys a block works on at a time.

The default, 64 x 64, is what NVIDIA's cuTile attention tutorial uses on DGX Spark (sm_121). An entry here is a
value that was measured to be better for an architecture and head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """query: rows of Q that one block owns; key: rows of K and V that it takes in one turn of its loop."""

    query: int
    key: int


DEFAULT = Tile(64, 64)

MEASURED: dict[tuple[str, int], Tile] = {}


def tile_for(arch: str, head_dim: int) -> Tile:
    """The tile for an architecture ("sm_90"; "cpu" for the interpreter) and a head_dim."""
    return MEASURED.get((arch, head_dim), DEFAULT)
