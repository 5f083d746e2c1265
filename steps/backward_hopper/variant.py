"""The constants and layouts that a backward kernel for Hopper is compiled with, and the pieces that it is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from triton.experimental.gluon import language as gl

from steps.backward_hopper.adding import ANY_ORDER, Adding, Sequence
from steps.backward_hopper.lib import Begin, Helpers
from steps.backward_hopper.products import Exchange, Fence, Gradient, Keys
from steps.core.tiles import Tile
from steps.gluon.functions import compiled_as
from steps.hopper.lib import Turns
from steps.hopper.packed import AXES
from steps.hopper.variant import pieces_of
from tutorial_lib.problem import BYTES_PER_ELEMENT

WARPS = 8  # that compute: two warpgroups
ROWS = 64  # that a warpgroup multiplies at a time: wgmma's M
REGISTERS, PRODUCER_REGISTERS = 240, 24  # of a thread; the latter is the least that setmaxnreg can leave
SMALL_ROWS = 32
STAGES = 2  # slots of tiles of Q, and of dO


@dataclass(frozen=True)
class Variant:
    """What a kernel is compiled for, the pieces that it is made of, and the layouts that follow.

    All of it is constant in the compiled code. The pieces are explained where they are: ``steps.backward_hopper.lib``,
    ``products`` and ``adding``. Tiles of scores lie on their side, [key, query], as dV and dK need the weights and dS
    for their first factor.
    """

    tile: Tile
    head_dim: int  # of tiles
    columns: int  # of them, those that tensors have; zeros fill up the others
    group_size: int
    causal: bool
    window: int | None  # of ``Problem``, as softcap
    softcap: float | None
    packed: bool  # sequences of different lengths stand behind each other
    ragged: bool  # the last tile of keys is not full
    ragged_queries: bool  # the last tile of queries is not full
    unseen: bool  # kernels begin early, and no query may see some blocks' keys, as of packed sequences
    warpgroups: int  # that compute for themselves, of WARPS / warpgroups warps each; 1: all warps do the same, as one
    sharing: int  # query heads with blocks of their own that share a kv head, and add to its dK and dV
    section: int  # blocks of a section, about, where blocks begin in sections
    ahead: int  # blocks, about, by which spare warps are ahead of their own (spare.py); 0: they do nothing
    compute: Callable  # of an iteration, where warpgroups compute together
    consume: Callable  # of a warpgroup
    tile_of_block: Callable
    adding: Adding
    sequence: Sequence
    turns: Turns
    key_operand: Keys
    gradient: Gradient
    exchange: Exchange
    fence: Fence
    leave: Callable
    helpers: Helpers
    begin: Begin
    line_of_block: Callable
    parts: int  # blocks that share a head's queries, and add to dK and dV of the same keys
    key_tiles: int  # that a block owns, one after the other; more than one: all of its head

    @property
    def sum_columns(self) -> int:
        """Columns of the sums for dQ that are added to: those of tensors, in whole lines of 128 bytes."""
        return min(self.head_dim, -(-self.columns // 32) * 32)

    @property
    def small_rows(self) -> int:
        """Rows of a block of the small kernels."""
        return min(SMALL_ROWS, self.tile.query)

    @property
    def lanes(self) -> int:
        """Lanes that have a row of sums, where these are rounded: four columns each, or several times four."""
        return min(32, self.head_dim // 4)

    @property
    def ratio(self) -> int:
        """How many tiles of queries are as long as one of keys."""
        return self.tile.key // self.tile.query

    @property
    def adds_keys(self) -> bool:
        """Whether several blocks add to dK and dV of the same keys."""
        return self.sharing > 1 or self.parts > 1

    @property
    def collected_shape(self) -> list[int]:
        """A warpgroup's dQ of each tile of queries, of which a head has no more than it may have keys."""
        tiles = self.key_tiles * self.tile.key // self.tile.query
        return [tiles * self.warpgroups, self.query_rows, self.query_columns]

    @property
    def cache_key(self) -> str:
        """What Triton knows these constants by: functions by their source, not by their names."""
        return compiled_as(self)

    @property
    def warps(self) -> int:
        """Warps of a warpgroup."""
        return WARPS // self.warpgroups

    @property
    def keys(self) -> int:
        """Keys of a warpgroup."""
        return self.tile.key if self.roles_apart else self.tile.key // self.warpgroups

    @property
    def roles_apart(self) -> bool:
        """Whether warpgroups compute different things of the same keys (roles.py), not the same of different keys."""
        return self.warpgroups > 1 and self.tile.key == ROWS

    @property
    def same_roles(self) -> bool:
        """Whether warpgroups compute the same of different keys."""
        return self.warpgroups > 1 and not self.roles_apart

    @property
    def writers(self) -> int:
        """Warpgroups that write a tile of dS."""
        return 1 if self.roles_apart else self.warpgroups

    @property
    def pieces(self) -> tuple[int, int] | None:
        """Columns of two pieces that scores and the weights' gradient are products of; None where all of a tile is."""
        return pieces_of(self.columns)

    @property
    def sum_pieces(self) -> tuple[int, int] | None:
        """Columns of the two pieces that dK, dV and dQ are products of; None where they are of a whole tile.

        Only in tiles of 256 columns: in smaller ones the second product has so few that it takes as long as with more.
        In a trial with 80 columns on an H200, which is not recorded, pieces took longer.
        """
        return self.pieces if self.head_dim == 256 else None

    @property
    def added_up(self) -> int:
        """Columns that products over head_dim add up."""
        return sum(self.pieces or (self.head_dim,))

    @property
    def kept(self) -> int:
        """Columns of K that a warpgroup has in registers, too."""
        return self.head_dim // self.key_operand.share if self.key_operand.share else 0

    @property
    def adders(self) -> int:
        """Warps that add what all warpgroups have stored."""
        return self.helpers.hear // self.warpgroups

    @property
    def spare(self) -> bool:
        """Whether spare warps prepare rows and scale dQ (spare.py)."""
        return self.ahead > 0 and not self.helpers.zeros

    @property
    def counts(self) -> bool:
        """Whether blocks count in global memory how far they are, and others wait for that."""
        return self.ahead > 0 or self.sequence != ANY_ORDER

    @property
    def rows_apart(self) -> bool:
        """Whether warpgroups share dQ by queries; if not, by columns, as wgmma takes no fewer than 64 rows."""
        return self.warpgroups > 1 and self.tile.query > ROWS

    @property
    def query_rows(self) -> int:
        """Queries of which a warpgroup computes dQ."""
        return self.tile.query // self.warpgroups if self.rows_apart else self.tile.query

    @property
    def query_columns(self) -> int:
        """Columns of dQ that a warpgroup computes."""
        return self.head_dim // self.warpgroups if not self.rows_apart else self.head_dim

    @property
    def query_piece(self) -> int | None:
        """Columns of dQ that the second warpgroup multiplies: head_dim's second piece. None: as many as the first."""
        return self.sum_pieces[1] if self.sum_pieces and not self.rows_apart else None

    @property
    def doublings(self) -> int:
        """How often that piece is doubled to have as many columns as the other warpgroup's dQ."""
        return (self.query_columns // self.query_piece).bit_length() - 1 if self.query_piece else 0

    @property
    def stages(self) -> int:
        """Slots of tiles of Q, and of dO."""
        return STAGES

    @property
    def budgets(self) -> list[int]:
        """Registers of a thread of every warpgroup but the first, which gets what is left, and of the other warps."""
        handed = 8 if self.more_for_spare else 0
        of_others = PRODUCER_REGISTERS + 2 * handed
        return [REGISTERS - handed] * (self.warpgroups - 1) + [of_others] * (len(self.workers) - self.warpgroups + 1)

    @property
    def more_for_spare(self) -> bool:
        """Whether the warps that multiply leave registers to the spare warps: where that costs few spills."""
        return self.spare and self.head_dim == 128 and not self.kept

    @property
    def workers(self) -> list[int]:
        """Warps of every warpgroup but the first, of the producer, and of whoever else works in its warpgroup."""
        return [self.warps] * (self.warpgroups - 1) + [1, *self.helpers.warps]

    @cached_property
    def scores(self) -> gl.NVMMADistributedLayout:
        """Scores, weights, their gradients and dS [key, query], as wgmma leaves them: a warp has 16 keys."""
        return gl.NVMMADistributedLayout([3, 0], [self.warps, 1], [16, self.tile.query, 16])

    @cached_property
    def sums(self) -> gl.NVMMADistributedLayout:
        """A warpgroup's dK and dV [key, head_dim]."""
        return self._sums(self.head_dim)

    @cached_property
    def piece_sums(self) -> tuple[gl.NVMMADistributedLayout, ...]:
        """The pieces of dK and dV [key, columns]."""
        return tuple(map(self._sums, self.sum_pieces))

    def _sums(self, columns: int) -> gl.NVMMADistributedLayout:
        return gl.NVMMADistributedLayout([3, 0], [self.warps, 1], [16, columns, 16])

    @cached_property
    def factor(self) -> gl.DotOperandLayout:
        """Weights and dS as the first factor of dV and dK, from registers."""
        return gl.DotOperandLayout(0, self.sums, 2)

    @cached_property
    def key_factor(self) -> gl.DotOperandLayout:
        """K as the first factor of scores, from registers."""
        return gl.DotOperandLayout(0, self.scores, 2)

    @cached_property
    def query_sums(self) -> gl.NVMMADistributedLayout:
        """A warpgroup's dQ [query, head_dim]; where two warpgroups compute together, each has half of the columns."""
        groups = self.warps // 4
        return gl.NVMMADistributedLayout([3, 0], [4, groups], [16, self.query_columns // groups, 16])

    @cached_property
    def query_piece_sums(self) -> gl.NVMMADistributedLayout:
        """The second warpgroup's dQ, where it is a piece."""
        return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, self.query_piece, 16])

    @cached_property
    def query_fours(self) -> gl.DistributedLinearLayout:
        """A warpgroup's dQ with columns in the order of the sums, four of a lane side by side: see adding.py."""
        return self._fours(self.query_rows, self.query_columns)

    @cached_property
    def query_lines(self) -> gl.DistributedLinearLayout:
        """A warpgroup's dQ in the same order, with 32 columns of a row in eight neighbouring lanes, not 16 in four."""
        fours = self.query_fours
        first, second, eighth, sixteenth, *more = fours.reg_bases
        *lanes, fourth = fours.lane_bases
        return gl.DistributedLinearLayout(
            reg_bases=[first, second, eighth, fourth, *more],
            lane_bases=[*lanes[:2], sixteenth, *lanes[2:]],
            warp_bases=fours.warp_bases,
            block_bases=[],
            shape=fours.shape,
        )

    @cached_property
    def key_fours(self) -> gl.DistributedLinearLayout:
        """A warpgroup's dK or dV, likewise."""
        return self._fours(self.keys, self.head_dim)

    @cached_property
    def piece_fours(self) -> tuple[gl.DistributedLinearLayout, ...]:
        """The pieces of dK and dV, likewise."""
        return tuple(self._fours(self.keys, columns) for columns in self.sum_pieces)

    def _fours(self, rows: int, all_columns: int) -> gl.DistributedLinearLayout:
        groups = self.warps // 4
        columns = all_columns // groups
        more = [[0, 16 << n] for n in range((columns // 16).bit_length() - 1)]
        return gl.DistributedLinearLayout(
            reg_bases=[[0, 1], [0, 2], [8, 0], *more, *([[64, 0]] if rows == 128 else [])],
            lane_bases=[[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]],
            warp_bases=[[16, 0], [32, 0], *([[0, columns]] if groups == 2 else [])],
            block_bases=[],
            shape=[rows, all_columns],
        )

    @cached_property
    def shared(self) -> gl.NVMMASharedLayout:
        """Tiles of Q, K, V, dO, dK and dV in shared memory."""
        swizzle = min(128, self.head_dim * BYTES_PER_ELEMENT)
        return gl.NVMMASharedLayout(swizzle, 8 * BYTES_PER_ELEMENT, rank=len(self.outer) + 2)

    @property
    def outer(self) -> list[int]:
        """How much of the axes in front of rows and columns is in a tile, as TMA knows a tensor."""
        return [1] * ((AXES if self.packed else 4) - 2)

    @cached_property
    def shared_scores(self) -> gl.NVMMASharedLayout:
        """dS [key, query] in shared memory, for dQ."""
        return gl.NVMMASharedLayout(128, 8 * BYTES_PER_ELEMENT, rank=2)

    @cached_property
    def shared_weights(self) -> gl.SharedLinearLayout:
        """Weights [key, query] that one warpgroup hands to the other: four of a lane side by side, and lanes in order.

        Whoever stores or loads them takes no more wavefronts of shared memory than its bytes need.
        """
        return gl.SharedLinearLayout(
            [[0, 1], [8, 0], [0, 2], [0, 4], [1, 0], [2, 0], [4, 0], [0, 8], [0, 16], [0, 32], [16, 0], [32, 0]]
        )

    @cached_property
    def shared_sums(self) -> gl.NVMMASharedLayout:
        """A warpgroup's dQ in shared memory, for TMA to add, in float32, or to store where it is complete, rounded."""
        size = BYTES_PER_ELEMENT if self.adding.complete else 4
        return gl.NVMMASharedLayout(min(128, size * self.query_columns), 8 * size, rank=4)

    @cached_property
    def shared_collected(self) -> gl.NVMMASharedLayout:
        """What a warpgroup has of dQ of a tile of queries, in float32, before the block's last tile of keys."""
        return gl.NVMMASharedLayout(min(128, 4 * self.query_columns), 32, rank=2)

    @cached_property
    def shared_fours(self) -> gl.SharedLinearLayout:
        """The same buffer for fours. TMA's swizzle alone would have neighbouring rows meet in the same banks.

        A lane stores 16 bytes, and shared memory takes 8 lanes at a time: 64 bytes of two rows. In odd rows the halves
        of every 128 bytes change places, so that these are in 32 different banks.
        """
        rows = [[8 << n, 0] for n in range((self.query_rows // 8).bit_length() - 1)]
        panels = [[0, 32 << n] for n in range((self.query_columns // 32).bit_length() - 1)]
        in_a_row = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16]]
        return gl.SharedLinearLayout([*in_a_row, [1, 4 + 16], [2, 8], [4, 16], *rows, *panels])

    @cached_property
    def shared_numbers(self) -> gl.NVMMASharedLayout:
        """A number for each query [1, query]."""
        return gl.NVMMASharedLayout(0, 32, rank=2)

    @cached_property
    def line(self) -> gl.BlockedLayout:
        """Sums one after the other in the small kernels, a lane's 16 bytes beside those of the next lane."""
        return gl.BlockedLayout([4], [32], [4], [0])

    @cached_property
    def zeros(self) -> gl.BlockedLayout:
        """Zeros of a warpgroup's dQ that one warp stores [8, columns]."""
        return gl.BlockedLayout([1, 4], [32 // (self.query_columns // 4), self.query_columns // 4], [1, 1], [1, 0])

    @property
    def rows_prepared(self) -> int:
        """Rows that the spare warps prepare at a time: a lane asks for 16 bytes four times, or eight times."""
        return 2 * self.rows_scaled

    @property
    def rows_scaled(self) -> int:
        """Rows that the spare warp scales at a time: likewise."""
        return (1024 if self.more_for_spare else 512) // self.head_dim
