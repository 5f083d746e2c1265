"""Tile sizes: the one place that says how many query rows and keys a block works on at a time.

The default, 64 x 64, is what NVIDIA's cuTile attention tutorial uses on DGX Spark (sm_121). An entry here
replaces it for an architecture and head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from steps.run import RESULTS
from tutorial_lib.problem import Problem
from tutorial_lib.results import Configuration, Search, recorded_searches


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

# The best for blocks of four warps, two an SM, in the search that results/nvidia-h100-80gb-hbm3/search.json records.
MEASURED: dict[tuple[str, int], Tile] = {
    ("sm_90", 64): Tile(64, 128),
    ("sm_90", 128): Tile(64, 128),
    ("sm_90", 256): Tile(64, 128),
}


def tile_for(arch: str, head_dim: int) -> Tile:
    """The tile for an architecture ("sm_90"; "cpu" for the interpreter) and a head_dim."""
    return MEASURED.get((arch, head_dim), DEFAULT)


@cache
def recorded_search(arch: str, results: Path = RESULTS) -> Search | None:
    """The newest recorded search on an architecture, or None."""
    found = [search for search in recorded_searches(results) if search.machine["arch"] == arch]
    return max(found, key=lambda search: search.date, default=None)


def found_for(problem: Problem, arch: str) -> Configuration | None:
    """The configuration that a recorded search found fastest for a head_dim and a mask, or None without a record."""
    search = recorded_search(arch)
    for searched in search.searched if search else ():
        recorded = searched.the_problem()
        if (recorded.head_dim, recorded.causal) == (problem.head_dim, problem.causal):
            return searched.found[0].configuration
    return None
