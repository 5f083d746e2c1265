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

    @property
    def scores(self) -> int:
        """Elements of one tile of scores, [query, key]."""
        return self.query * self.key


DEFAULT = Tile(64, 64)

# H100, S=4096, 4 batches of 32 heads (16 at head_dim 256): the fastest for step 7 of 64 or 128 queries by 64 or 128
# keys.
MEASURED: dict[tuple[str, int], Tile] = {
    ("sm_90", 64): Tile(64, 128),
    ("sm_90", 128): Tile(64, 128),
    ("sm_90", 256): Tile(64, 128),
}


def tile_for(arch: str, head_dim: int) -> Tile:
    """The tile for an architecture ("sm_90"; "cpu" for the interpreter) and a head_dim."""
    return MEASURED.get((arch, head_dim), DEFAULT)
