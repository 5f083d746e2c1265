"""Sizes: what a block works on, and what a kernel is launched with. ``steps.core.rules`` says which are for what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Tile:
    """query: rows of Q that one block owns; key: rows of K and V that it takes in one turn of its loop."""

    query: int
    key: int

    @property
    def scores(self) -> int:
        """Elements of one tile of scores, [query, key]."""
        return self.query * self.key


# --- cuTile ---

MASK_LOOP_HEAD_DIM = 128  # where step mask_loop pays, and shared memory has no room for its output beside Q


@dataclass(frozen=True)
class BlockShape:
    """What a block is: its tile, warps that compute, blocks of a cluster, blocks an SM. None: the compiler decides."""

    tile: Tile
    warps: int | None = None
    cluster: int | None = None
    occupancy: int | None = None


# --- Gluon ---

GLUON_WIDE_HEAD_DIM = 256  # beyond it, eight warps share a block, as the output of four would not fit in registers


# --- Hopper ---


@dataclass(frozen=True)
class HopperShape:
    """What a problem decides for the Hopper kernels, on the 228 KiB of shared memory and 65536 registers of an SM.

    key: keys of a tile. third_group: whether registers suffice for three warp groups that compute. two_queries: whether
    shared memory holds two tiles of Q, and one of the output, beside K and V. lean_sum: whether the lanes of a row
    should add their sums after the loop. wait: behind what at_maxima holds the wait for the PV product. four_chains:
    whether a lane should look for a row's maximum in four chains. no_meetings: whether meetings of a group's warps
    that nothing needs should be taken out. quarter_query: whether a quarter of Q should stay in registers.
    softmax_ahead: whether the next queries' maxima should be taken under the last product for these. pairs: whether two
    blocks should share what TMA brings.
    """

    key: int
    third_group: bool = False
    two_queries: bool = True
    lean_sum: bool = True
    wait: Literal["correction", "maxima", "the compiler's"] = "correction"
    four_chains: bool = True
    no_meetings: bool = False
    quarter_query: bool = False
    softmax_ahead: bool = False
    pairs: bool = False
