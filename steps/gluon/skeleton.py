"""A step in Gluon: the holes of the skeleton, and how its kernel is launched and compiled."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from steps.core.fused import grid, hole, tiles_visited
from steps.core.step import DEFAULT_ARCH
from steps.core.tiles import GLUON_WIDE_HEAD_DIM, Tile
from steps.gluon.kernel import IN_SHARED, RING, Copies, Queries, fmha
from steps.gluon.launching import PointerStep
from steps.gluon.softmax import SUM_EACH_TILE, Sums
from steps.gluon.variant import Schedule, Variant, Warps
from tutorial_lib import layouts
from tutorial_lib.architectures import ARCHITECTURES, KIB
from tutorial_lib.problem import BYTES_PER_ELEMENT, Problem

LANES = 32
SIMULATED = "sm_90"  # whose shared memory a block has on the CPU
PANEL = 64  # columns of 16 bits that span the 32 banks of shared memory: tiles are kept in panels of so many
ACCUMULATORS = 128  # registers of a lane that the output may take; with 255 in all, twice as many would spill


@dataclass(frozen=True, kw_only=True)
class GluonStep(PointerStep):
    """A fused kernel in Gluon: ``steps.gluon.kernel.fmha`` with these holes filled.

    shared_layout(columns) -> where element [row, column] of a tile lies in shared memory.
    warps: how the warps divide the scores; stages: tiles of K and of V that shared memory holds.
    copies: when tiles of K and V are copied. queries: where Q is while keys are read. sums: how rows are added up.
    schedule: the kernel. tile: query rows of a block, and keys of an iteration.
    """

    shared_layout: Callable = hole()
    warps: Warps = hole()
    stages: int = hole()
    copies: Copies = hole(default=RING)
    queries: Queries = hole(default=IN_SHARED)
    schedule: Schedule = hole()
    sums: Sums = hole(default=SUM_EACH_TILE)
    tile: Tile = hole(default=Tile(64, 64))

    backend: ClassVar[str] = "gluon"

    def __post_init__(self):
        if not isinstance(self.tile, Tile):
            raise ValueError(f"tile must be a Tile(query, key), got {self.tile!r}")
        if self.queries.held and self.tile.query != self.tile.key:
            raise ValueError(f"queries in registers take a tile of as many queries as keys, got {self.tile}")

    @property
    def head_dims(self) -> tuple[int, ...]:
        return self.schedule.head_dims

    def unsupported(self, problem: Problem, target: str) -> str | None:
        if reason := super().unsupported(problem, target):
            return reason
        if (limits := ARCHITECTURES.get(SIMULATED if target == "cpu" else target)) and limits.shared_bytes:
            needs, holds = self.shared_bytes(problem), limits.shared_bytes - KIB  # 1 KiB a block is the system's
            if needs > holds:
                has = f"{SIMULATED}, which is simulated," if target == "cpu" else target
                return f"needs {needs // KIB} KiB of shared memory a block; {has} has {holds // KIB} KiB"
        return None

    def shared_bytes(self, problem: Problem) -> int:
        """Shared memory that the tiles of a block take, in bytes."""
        v = self.variant(problem)
        keys = 2 * v.stages * v.tile.key
        if self.cuts(problem):
            return (keys + 2 * v.tile.query) * v.columns * BYTES_PER_ELEMENT
        return (keys + (0 if v.queries.held else v.tile.query)) * v.head_dim * BYTES_PER_ELEMENT

    def ldmatrix_conflicts(self, problem: Problem) -> int:
        """Extra wavefronts of shared memory that all ldmatrix of a launch take, computed from the layouts alone."""
        v = self.variant(problem)
        queries, keys_values = self._matrices(v)
        blocks = math.prod(grid(problem, v.tile))
        tiles = tiles_visited(problem, v.tile)
        loaded = tiles * keys_values + (blocks if v.queries.held else tiles) * queries
        return (layouts.ldmatrix_wavefronts(v.shared, v.columns) - 1) * loaded * v.warps.number

    def shared_clocks(self, problem: Problem) -> float:
        """Clocks a K/V tile that shared memory is busy at least: ldmatrix, with its conflicts, and the copies into it.

        A matrix of 8 x 8 elements takes a clock a wavefront, and so do 128 bytes that are copied. What warps exchange
        through shared memory is not counted.
        """
        v = self.variant(problem)
        queries, keys_values = self._matrices(v)
        copied = 2 * v.tile.key * v.head_dim
        if self.cuts(problem):
            copied += v.tile.query * v.head_dim
        read = keys_values + (0 if v.queries.held and not self.cuts(problem) else queries)
        clocks = read * v.warps.number * layouts.ldmatrix_wavefronts(v.shared, v.columns)
        return clocks + copied * BYTES_PER_ELEMENT / (layouts.BANKS * layouts.WORD)

    @staticmethod
    def _matrices(v: Variant) -> tuple[int, int]:
        """8 x 8 matrices that a warp reads of a tile of Q, and of a tile of K and one of V."""
        queries = layouts.matrices(v.left, [v.tile.query, v.head_dim])
        keys = layouts.matrices(v.right, [v.head_dim, v.tile.key])
        return queries, keys + layouts.matrices(v.right, [v.tile.key, v.head_dim])

    def cuts(self, problem: Problem) -> bool:
        """Whether shared memory keeps only pieces of head_dim; a head_dim that is one piece is not cut."""
        return self.schedule.piece is not None and self.schedule.piece < problem.head_dim

    def variant(self, problem: Problem, arch: str = DEFAULT_ARCH) -> Variant:
        """The constants that ``problem`` is compiled with."""
        warps = self.warps if problem.head_dim <= GLUON_WIDE_HEAD_DIM else Warps(2, 4)
        rows = ACCUMULATORS * warps.number * LANES // problem.head_dim
        tile = Tile(min(self.tile.query, rows), self.tile.key)
        columns = self.schedule.piece if self.cuts(problem) else min(PANEL, problem.head_dim)
        return Variant(
            tile=tile,
            head_dim=problem.head_dim,
            columns=columns,
            group_size=problem.group_size,
            causal=problem.causal,
            ragged=problem.seq_len_kv % tile.key != 0,
            warps=warps,
            stages=self.stages,
            copies=self.copies,
            queries=self.queries,
            sums=self.sums,
            shared=self.shared_layout(columns),
        )

    def kernel(self, problem: Problem) -> Callable:
        """The schedule's function, or ``fmha`` where it has nothing to cut."""
        return self.schedule.function if self.cuts(problem) else fmha

    def number_of_warps(self, variant: Variant) -> int:
        return variant.warps.number
