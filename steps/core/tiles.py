"""Sizes: what a block works on, and what a kernel is launched with. ``steps.core.rules`` says which are for what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """query: rows of Q that one block owns; key: rows of K and V that it takes in one iteration of its loop."""

    query: int
    key: int

    @property
    def scores(self) -> int:
        """Elements of one tile of scores, [query, key]."""
        return self.query * self.key


# --- cuTile ---


@dataclass(frozen=True)
class BlockShape:
    """What a block is: its tile, warps that compute, blocks of a cluster, blocks an SM. None: the compiler decides."""

    tile: Tile
    warps: int | None = None
    cluster: int | None = None
    occupancy: int | None = None


# --- Gluon ---

IN_PANELS = 192  # columns of tiles of Q and K that lie in panels (``steps.hopper.panels``); others are powers of two
GLUON_WIDE_HEAD_DIM = 256  # beyond it, eight warps share a block, as the output of four would not fit in registers
