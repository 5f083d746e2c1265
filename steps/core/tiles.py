"""Everything that is chosen by size: one table for tile sizes, for what a search found, for what head_dim allows.

Nothing here is read from results/ when a kernel is launched. A new measurement changes a kernel only when somebody
writes its outcome into this file, and ``tests/core/test_tiles.py`` compares the table of FOUND with the recorded
search.
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


# --- cuTile ---

DEFAULT = Tile(64, 64)  # what NVIDIA's cuTile attention tutorial uses on DGX Spark (sm_121)

# The best for blocks of four warps, two an SM, in the search that results/nvidia-h100-80gb-hbm3/search.json records.
FOUR_WARPS: dict[tuple[str, int], Tile] = {
    ("sm_90", 64): Tile(64, 128),
    ("sm_90", 128): Tile(64, 128),
    ("sm_90", 256): Tile(64, 128),
}

MASK_LOOP_HEAD_DIM = 128  # where step mask_loop pays, and shared memory has no room for its output beside Q


@dataclass(frozen=True)
class Found:
    """How a cuTile kernel is compiled; None: left to the compiler."""

    tile: Tile
    warps: int | None = None
    cluster: int | None = None
    occupancy: int | None = None


# Architecture, head_dim and causal -> the fastest configuration of that search.
FOUND: dict[tuple[str, int, bool], Found] = {
    ("sm_90", 64, True): Found(Tile(128, 64), warps=8, cluster=None, occupancy=2),
    ("sm_90", 64, False): Found(Tile(128, 64), warps=8, cluster=None, occupancy=2),
    ("sm_90", 128, True): Found(Tile(128, 128), warps=None, cluster=2, occupancy=2),
    ("sm_90", 128, False): Found(Tile(128, 128), warps=None, cluster=2, occupancy=2),
    ("sm_90", 256, True): Found(Tile(128, 128), warps=8, cluster=None, occupancy=1),
    ("sm_90", 256, False): Found(Tile(128, 128), warps=8, cluster=None, occupancy=1),
}


def tile_for(arch: str, head_dim: int) -> Tile:
    """cuTile's tile for four warps on an architecture ("sm_90"; "cpu" for the interpreter) and a head_dim."""
    return FOUR_WARPS.get((arch, head_dim), DEFAULT)


# --- Gluon ---

GLUON_WIDE_HEAD_DIM = 256  # beyond it, eight warps share a block, as the output of four would not fit in registers


# --- Hopper ---


@dataclass(frozen=True)
class HopperShape:
    """What head_dim decides for the Hopper kernels, on the 228 KiB of shared memory and 65536 registers of an SM.

    key: keys of a tile. third_group: whether registers suffice for three warp groups that compute. two_queries: whether
    shared memory holds two tiles of Q, and one of the output, beside K and V. lean_sum: whether the lanes of a row
    should add their sums after the loop. wait_full, wait_causal: behind what at_maxima holds the wait for the PV
    product, without a mask and with a causal one; None: where the compiler puts it.
    """

    key: int = 128
    third_group: bool = False
    two_queries: bool = True
    lean_sum: bool = True
    wait_full: str | None = "correction"
    wait_causal: str | None = "correction"


HOPPER = {
    32: HopperShape(),
    64: HopperShape(third_group=True),
    128: HopperShape(),
    256: HopperShape(key=64, two_queries=False, lean_sum=False, wait_full=None, wait_causal="maxima"),
}
