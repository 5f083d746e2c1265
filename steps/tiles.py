"""Tile sizes: the one place that says how many query rows and keys a block works on at a time.

The default, 64 x 64, is what NVIDIA's cuTile attention tutorial uses on DGX Spark (sm_121). An entry here
replaces it for an architecture and head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """query: rows of Q that one block owns; key: rows of K and V that it takes in one turn of its loop."""

    query: int
    key: int

    @property
    def scores(self) -> int:
        """Elements of one tile of scores, [query, key]."""
        return self.query * self.key


DEFAULT = Tile(64, 64)

# Chosen in a short search on an H100 at S=4096, over 64 or 128 queries by 64 or 128 keys, that was not recorded: a
# search whose result is kept may find better.
MEASURED: dict[tuple[str, int], Tile] = {
    ("sm_90", 64): Tile(64, 128),
    ("sm_90", 128): Tile(64, 128),
    ("sm_90", 256): Tile(64, 128),
}


def tile_for(arch: str, head_dim: int) -> Tile:
    """The tile for an architecture ("sm_90"; "cpu" for the interpreter) and a head_dim."""
    return MEASURED.get((arch, head_dim), DEFAULT)
