"""The constants and layouts that the backward kernels for Blackwell are compiled with.

Of a cluster's two CTAs each has half of every tile. Of which axis, depends on where the tile stands in a product of two
CTAs (PTX ISA, "TensorCore 5th Generation Family Instructions"): the first factor is halved by rows, the second by
columns, and the sum by rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import TensorMemoryLayout

from steps.core.tiles import Tile
from steps.gluon.functions import compiled_as
from tutorial_lib.problem import BYTES_PER_ELEMENT

CTAS = 2  # of a cluster
WARPS, ROW_WARPS = 8, 4  # of a CTA: two warpgroups, each of which reaches all lanes; and of the small kernel
OF_KEYS, OF_QUERIES = Tile(128, 128), Tile(256, 64)  # of a cluster that owns keys, and of one that owns queries
AT_ONCE = 64  # columns of dQ that are in registers at once
ROWS = 32  # of a block of the small kernel


@dataclass(frozen=True)
class Rows:
    """What the small kernel is compiled for, which makes ready two numbers for each query."""

    head_dim: int
    tile: Tile = Tile(ROWS, 0)

    @property
    def columns(self) -> int:
        """Columns of a tile that tensors have: all."""
        return self.head_dim


@dataclass(frozen=True)
class Variant:
    """What a large kernel is compiled for, and the layouts that follow.

    Scores are [own row, passing row]: [key, query] where clusters own keys, and [query, key] where they own queries.
    """

    tile: Tile
    rows: int  # that the cluster owns
    passing: int  # rows of a tile that passes by
    stages: int  # slots for tiles that pass by
    head_dim: int
    group_size: int
    causal: bool
    ragged: bool  # the last tile of keys is not full
    ragged_queries: bool  # the last tile of queries is not full
    walk: Callable | None  # over the tiles that pass by, where clusters own queries

    @property
    def cache_key(self) -> str:
        """What Triton knows these constants by: functions by their source, not by their names."""
        return compiled_as(self)

    @property
    def at_once(self) -> int:
        """Columns of dQ that are in registers at once."""
        return AT_ONCE

    @cached_property
    def scores(self) -> TensorMemoryLayout:
        """Scores, and the gradients of weights, in tensor memory."""
        return self._columns(self.passing)

    @cached_property
    def sums(self) -> TensorMemoryLayout:
        """dQ, dK or dV [own row, head_dim] in tensor memory."""
        return self._columns(self.head_dim)

    def _columns(self, number: int) -> TensorMemoryLayout:
        """So many columns of a product. Of 64 rows in a CTA the other half of the lanes has the last columns."""
        return TensorMemoryLayout((self.rows // CTAS, number), col_stride=1, cga_layout=[[1, 0]], two_ctas=True)

    @cached_property
    def shared(self) -> gl.NVMMASharedLayout:
        """Tiles in shared memory that the CTAs halve by rows; of those that pass by, columns of a second factor."""
        return gl.NVMMASharedLayout(128, 8 * BYTES_PER_ELEMENT, rank=4, cga_layout=[[0, 0, 1, 0]])

    @cached_property
    def shared_columns(self) -> gl.NVMMASharedLayout:
        """Tiles in shared memory that the CTAs halve by columns: second factors of what adds up to a gradient."""
        return gl.NVMMASharedLayout(128, 8 * BYTES_PER_ELEMENT, rank=4, cga_layout=[[0, 0, 0, 1]])

    @cached_property
    def shared_scores(self) -> gl.NVMMASharedLayout:
        """Weights and dS in shared memory."""
        return gl.NVMMASharedLayout(128, 8 * BYTES_PER_ELEMENT, rank=2, cga_layout=[[1, 0]])
