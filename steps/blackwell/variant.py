"""What a Blackwell kernel can be made of, and the constants and layouts that it is compiled with.

The choices are nested: what makes sense only together with something else stands inside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import TensorMemoryLayout

from steps.core.fused import Choices
from steps.core.tiles import Tile
from tutorial_lib.problem import BYTES_PER_ELEMENT, Problem

HEAD_DIMS = (32, 64, 128, 256)
WIDE = 256  # head_dim of which shared memory holds fewer keys, and tensor memory the output of one warpgroup
ROWS = 128  # queries of a warpgroup: the lanes of tensor memory, and the rows of one tcgen05.mma
KEYS, WIDE_KEYS = 128, 64  # of a tile
GROUP_WARPS = 4  # of a warpgroup, which together reach all lanes
AT_ONCE = 64  # columns of the output that a warpgroup holds in registers at once, where it rescales or stores

# Registers of a thread. All threads of a block share 65536, and those of a warpgroup have the same number. The two
# warps that begin products and ask for tiles are in a warpgroup of their own. What is left is the first warpgroup's.
SOFTMAX_ALONE, SOFTMAX, CORRECTION, SINGLE_WARPS = 232, 192, 96, 32  # alone: no warpgroup rescales
WIDE_CORRECTION, WIDE_SINGLE_WARPS = 176, 80  # where one warpgroup does the softmax, there are enough


@dataclass(frozen=True)
class Correction(Choices):
    """A warpgroup of its own rescales the output.

    threshold: the maximum of a row must grow by more than so much, in base 2, before weights are relative to the new
    one; 0: it counts at once, and every tile is rescaled.

    Raises ValueError for a negative threshold, and for one with which weights might not fit into float16.
    """

    threshold: float = 0.0

    def __post_init__(self):
        if not 0 <= self.threshold < 16:
            raise ValueError(f"threshold must be at least 0 and below 16, got {self.threshold}")


@dataclass(frozen=True)
class Roles(Choices):
    """Two warpgroups do the softmax, each of 128 queries; a warp begins all products, and another asks for all tiles.

    At head_dim 256, where the outputs of two would fill tensor memory, one does.

    correction: who rescales the output, a warpgroup for it or the one that does the softmax. scheduler: a block
    computes one tile of queries; or it is persistent, and computes a list of tiles that was made before the launch
    ("static"), or takes the tile of a block that has not begun, whenever it is ready for one ("dynamic").
    """

    correction: Correction | Literal["by the softmax"] = "by the softmax"
    scheduler: Literal["a tile a block", "static", "dynamic"] = "a tile a block"


@dataclass(frozen=True)
class Cluster(Choices):
    """All warps do the same, and two blocks on two SMs, the CTAs of a cluster, work on the same keys at the same time.

    keys: "halves": each CTA holds half of every tile of keys and values, and the tensor cores of both compute one
    product for the queries of both. "copies": each holds whole tiles, and multiplies alone; TMA brings a tile to both.
    """

    keys: Literal["halves", "copies"] = "halves"


@dataclass(frozen=True)
class Emulated:
    """Which exponentials are a polynomial: in every ``frequency`` columns of scores the last ``remainder``.

    Raises ValueError for a remainder that is not below the frequency, and a frequency that does not divide a tile.
    """

    frequency: int = WIDE_KEYS
    remainder: int = 0

    def __post_init__(self):
        if not 0 <= self.remainder < self.frequency or WIDE_KEYS % self.frequency:
            raise ValueError(
                f"remainder must be at least 0 and below frequency, which divides {WIDE_KEYS}, "
                f"got {self.remainder} and {self.frequency}"
            )

    def __str__(self) -> str:
        return f"{self.remainder} of {self.frequency}" if self.remainder else "none"


@dataclass(frozen=True)
class Variant:
    """What a kernel is compiled for, and the layouts that follow: all of it is constant in the compiled code."""

    tile: Tile
    head_dim: int
    group_size: int
    causal: bool
    ragged: bool  # the last tile of keys is not full
    warpgroups: int  # that compute a softmax, of ROWS queries each
    stages: int
    roles: bool
    correction: bool
    persistent: bool  # a block computes several tiles of queries
    taken: bool  # and takes one after the other from blocks that have not begun, and has no list of them
    registers: tuple[int, ...]  # of a thread of every role but the first warpgroup's
    threshold: float
    frequency: int
    remainder: int  # 0: no exponential is a polynomial
    pair: bool = False  # two CTAs compute a product together, each with half of the keys or values
    multicast: bool = False  # of two CTAs each has all of them, and TMA brings them to both at once
    lse: bool = False  # the log-sum-exp of every query is stored, too

    @property
    def ctas(self) -> int:
        """CTAs that work together: blocks of a cluster."""
        return 2 if self.pair or self.multicast else 1

    @property
    def neighbours(self) -> int:
        """Blocks that share a tile, of which Triton does not know."""
        return 1

    @property
    def rewrite(self) -> bool:
        """Whether the kernel asks for its PTX to be rewritten."""
        return False

    @property
    def panel_columns(self) -> int:
        """Columns of Q and K that TMA brings at once."""
        return self.head_dim

    @property
    def packed(self) -> bool:
        """Whether sequences are packed into one tensor."""
        return False

    @property
    def products(self) -> int:
        """Of a cluster, how many QK products must end before a CTA goes on, and how many PV products.

        With ``multicast`` a tile may be overwritten when both CTAs have multiplied it.
        """
        return 2 if self.multicast else 1

    @property
    def rows(self) -> int:
        """Queries of a warpgroup, in all CTAs together."""
        return ROWS * self.ctas

    @property
    def warps(self) -> int:
        """Warps that a block begins with: those of the first softmax warpgroup."""
        return GROUP_WARPS

    @property
    def value_dim(self) -> int:
        """Columns of V and of the output."""
        return self.head_dim

    @property
    def output_columns(self) -> int:
        """Columns of the output that TMA stores at once: before 3.9 Triton sliced no shared memory of a cluster."""
        return self.head_dim if self.ctas == 1 else self.at_once

    @property
    def at_once(self) -> int:
        """Columns of the output that are in registers at once."""
        return min(self.head_dim, AT_ONCE)

    @property
    def weights_apart(self) -> bool:
        """Whether the weights have columns of their own; else they take the first half of those of the scores."""
        return not self.roles

    @property
    def workers(self) -> list[int]:
        """Warps of every role but the first warpgroup's: the other's, those that rescale, products, copies."""
        groups = self.warpgroups - 1 + self.correction
        return [GROUP_WARPS] * groups + [1, 1]

    @property
    def budgets(self) -> list[int]:
        """Registers of a thread of those; the first warpgroup gets what is left, which is no less."""
        return list(self.registers)

    @property
    def listeners(self) -> int:
        """Roles that read which tile of queries is next, beside the one that asks for it."""
        return len(self.workers)

    @property
    def weights_arrivals(self) -> int:
        """Who must be ready before a PV product: the softmax, and the warpgroup that rescales."""
        return 2 if self.correction else 1

    @property
    def tensor_columns(self) -> int:
        """Columns of tensor memory that a block needs: for scores and outputs in float32, and for weights apart."""
        weights = self.tile.key * BYTES_PER_ELEMENT // 4 if self.weights_apart else 0
        return self.warpgroups * (self.tile.key + weights + self.head_dim)

    @cached_property
    def scores(self) -> TensorMemoryLayout:
        """Scores [query, key] in tensor memory: a lane has a query, a column a key. Weights are packed two a column."""
        return self._columns(self.tile.key)

    @cached_property
    def sums(self) -> TensorMemoryLayout:
        """Outputs [query, head_dim] in tensor memory."""
        return self._columns(self.head_dim)

    def _columns(self, number: int) -> TensorMemoryLayout:
        """So many columns of tensor memory; of two CTAs each has half of the rows in its own."""
        if self.ctas == 1:
            return TensorMemoryLayout((ROWS, number), col_stride=1)
        return TensorMemoryLayout((ROWS, number), col_stride=1, cga_layout=[[1, 0]], two_ctas=self.pair)

    @cached_property
    def shared(self) -> gl.NVMMASharedLayout:
        """Tiles of queries in shared memory, swizzled as TMA writes and tcgen05.mma reads them; each CTA has half."""
        return self._tiles(self.head_dim, [0, 0, 1, 0])

    @cached_property
    def shared_key(self) -> gl.NVMMASharedLayout:
        """Tiles of keys: the first factor of a product of two CTAs is halved by rows, and the second by columns."""
        return self._tiles(self.head_dim, [0, 0, 1 if self.pair else 0, 0])

    @cached_property
    def shared_value(self) -> gl.NVMMASharedLayout:
        """Tiles of values: as those of keys, which are transposed for their product."""
        return self._tiles(self.head_dim // (2 if self.pair else 1), [0, 0, 0, 1 if self.pair else 0])

    def _tiles(self, columns: int, halved: list[int]) -> gl.NVMMASharedLayout:
        """Tiles with so many columns in a CTA; of two CTAs each has half along the axis where ``halved`` is 1."""
        halves = {} if self.ctas == 1 else {"cga_layout": [halved]}
        width = min(128, columns * BYTES_PER_ELEMENT)
        return gl.NVMMASharedLayout(width, 8 * BYTES_PER_ELEMENT, rank=4, **halves)


def is_persistent(roles: Roles | Cluster | str) -> bool:
    """Whether a block computes several tiles of queries."""
    return isinstance(roles, Roles) and roles.scheduler != "a tile a block"


def _registers(warpgroups: int, correction: bool) -> tuple[int, ...]:
    """What ``Variant.budgets`` returns."""
    if warpgroups == 1:
        return *([WIDE_CORRECTION] * correction), WIDE_SINGLE_WARPS, WIDE_SINGLE_WARPS
    return *([SOFTMAX, CORRECTION] if correction else [SOFTMAX_ALONE]), SINGLE_WARPS, SINGLE_WARPS


def make_variant(roles: Roles | Cluster | str, emulated: Emulated, problem: Problem) -> Variant:
    """The constants that a kernel with these choices is compiled with for ``problem``."""
    keys_held = roles.keys if isinstance(roles, Cluster) else None
    has_roles = isinstance(roles, Roles)
    correction = roles.correction if has_roles and isinstance(roles.correction, Correction) else None
    wide = problem.head_dim == WIDE
    warpgroups = 2 if has_roles and not wide else 1
    keys = WIDE_KEYS if wide else KEYS
    return Variant(
        tile=Tile(warpgroups * ROWS * (2 if keys_held else 1), keys),
        head_dim=problem.head_dim,
        group_size=problem.group_size,
        causal=problem.causal,
        ragged=problem.seq_len_kv % keys != 0,
        warpgroups=warpgroups,
        stages=2,
        roles=has_roles,
        correction=correction is not None,
        persistent=is_persistent(roles),
        taken=is_persistent(roles) and roles.scheduler == "dynamic",
        registers=_registers(warpgroups, correction is not None) if has_roles else (),
        threshold=correction.threshold if correction else 0.0,
        frequency=emulated.frequency,
        remainder=emulated.remainder,
        pair=keys_held == "halves",
        multicast=keys_held == "copies",
    )
