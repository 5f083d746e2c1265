"""What a Hopper kernel of the backward pass can be made of, and the constants and layouts that it is compiled with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from triton.experimental.gluon import language as gl

from steps.core.gradients import tiles_visited
from steps.core.order import tiles_a_head
from steps.core.rules import Rule, rule_for
from steps.core.step import DEFAULT_ARCH
from steps.core.tiles import Tile
from tutorial_lib.problem import BYTES_PER_ELEMENT, Problem

WARPS = 8  # that compute: two warp groups
ROWS = 64  # that a warp group multiplies at a time: wgmma's M
REGISTERS, PRODUCER_REGISTERS = 240, 24  # of a thread; the latter is the least that setmaxnreg can leave
STAGES = 2  # places of tiles of Q, and of dO
SECTION = 264  # blocks that begin together: 132 SMs take about as long for them as for the longest
AT_ONCE = 144  # blocks, about as many as run at once; whole heads of them, rounded down (up was not measured)
PROCESSORS = 132  # of an H100; a block has one alone
# Turns that a block takes for a query head at least, in the mean, for query heads to have blocks of their own: from
# trials with 64 query heads and 8 kv heads. Under a causal mask, and without.
TURNS_APART_CAUSAL, TURNS_APART = 5, 64
TURNS_FEW = 2  # likewise, where one block for all heads of a group would leave most SMs without: untested
TURNS = 6  # that each tile of queries takes at least, in the mean, for spare warps to keep pace

Adding = Literal["pairs", "fours", "reduction", "reduction_of_fours"]
BY_TMA = ("reduction", "reduction_of_fours")


@dataclass(frozen=True)
class Variant:
    """What a kernel is compiled for, and the layouts that follow: all of it is constant in the compiled code.

    Tiles of scores lie on their side, [key, query], as dV and dK need the weights and dS for their first factor.
    """

    tile: Tile
    head_dim: int
    group_size: int
    causal: bool
    ragged: bool  # the last tile of keys is not full
    unseen: bool  # kernels begin early, and there are blocks that take no turn: no query sees their keys
    under_way: bool
    adding: Adding
    parts: int  # that compute for themselves, of WARPS / parts warps each
    in_turn: bool
    section: int  # blocks of a section, about, in which those with the first keys begin; 0: one head after the other
    alternate: bool  # of the parts, one at a time computes weights and dS
    last_scales: bool = False  # the last block of a head scales dQ, and no kernel of its own
    adders: int = 0  # warps of their own that add dQ in turn, or pass tiles on for parts that add from registers
    sharing: int = 1  # query heads with blocks of their own that share a kv head, and add to its dK and dV
    freed_together: bool = False  # the place of dS of a turn is free when that of its dO is, and no barrier tells it
    whole_lines: bool = False  # a warp adds dQ from registers by lines of 128 bytes
    fence_behind: bool = False  # products that need no dS of this turn are asked for before its fence, not after
    from_row_sums: bool = False  # the product for the weights' gradient begins with minus the row sums, not with zero
    added_later: bool = False  # TMA is asked to add dQ a turn after it was stored, when the next scores are under way
    kept: int = 0  # columns of K that a part has in registers, too
    ahead: int = 0  # blocks, about, by which spare warps are ahead of their own (spare.py); 0: they do nothing
    early: bool = False  # a kernel begins when SMs are free, and not when the one before has ended
    newest_first: bool = False  # small kernels begin with the last head
    clears: bool = False  # one spare warp lets TMA clear the sums of a later head, and the others do nothing

    @property
    def warps(self) -> int:
        """Warps of a part."""
        return WARPS // self.parts

    @property
    def keys(self) -> int:
        """Keys of a part."""
        return self.tile.key if self.roles_apart else self.tile.key // self.parts

    @property
    def roles_apart(self) -> bool:
        """Whether parts compute different things of the same keys (roles.py); if not, the same of different keys."""
        return self.parts > 1 and self.tile.key == ROWS

    @property
    def writers(self) -> int:
        """Parts that write a tile of dS."""
        return 1 if self.roles_apart else self.parts

    @property
    def by_tma(self) -> bool:
        """Whether TMA adds dQ."""
        return self.adding in BY_TMA

    @property
    def in_fours(self) -> bool:
        """Whether the sums for dQ have a lane's four columns side by side."""
        return self.adding in ("fours", "reduction_of_fours")

    @property
    def counts(self) -> bool:
        """Whether blocks count in global memory how far they are, and others wait for that."""
        return self.in_turn or self.last_scales or self.ahead > 0

    @property
    def spare(self) -> bool:
        """Whether spare warps prepare rows and scale dQ (spare.py)."""
        return self.ahead > 0 and not self.clears

    @property
    def weights_rounded(self) -> bool:
        """Whether weights wait for their gradient in 16 bits: where all of K would leave no registers else."""
        return self.kept == self.head_dim

    @property
    def rows_apart(self) -> bool:
        """Whether parts share dQ by queries; if not, by columns, as wgmma takes no fewer than 64 rows."""
        return self.parts > 1 and self.tile.query > ROWS

    @property
    def query_rows(self) -> int:
        """Queries of which a part computes dQ."""
        return self.tile.query // self.parts if self.rows_apart else self.tile.query

    @property
    def query_columns(self) -> int:
        """Columns of dQ that a part computes."""
        return self.head_dim // self.parts if not self.rows_apart else self.head_dim

    @property
    def stages(self) -> int:
        """Places of tiles of Q, and of dO."""
        return STAGES

    @property
    def budgets(self) -> list[int]:
        """Registers of a thread of every part but the first, which gets what is left, and of the other warps."""
        handed = 8 if self.more_for_spare else 0
        of_others = PRODUCER_REGISTERS + 2 * handed
        return [REGISTERS - handed] * (self.parts - 1) + [of_others] * (len(self.workers) - self.parts + 1)

    @property
    def more_for_spare(self) -> bool:
        """Whether the warps that multiply leave registers to the spare warps: where that costs few spills."""
        return self.spare and self.head_dim == 128 and not self.kept

    @property
    def workers(self) -> list[int]:
        """Warps of every part but the first, of the producer, and of whoever else works in its warp group."""
        others = [2, 1] if self.spare else [1] if self.clears else [1] * self.adders
        return [self.warps] * (self.parts - 1) + [1] + others

    @cached_property
    def scores(self) -> gl.NVMMADistributedLayout:
        """Scores, weights, their gradients and dS [key, query], as wgmma leaves them: a warp has 16 keys."""
        return gl.NVMMADistributedLayout([3, 0], [self.warps, 1], [16, self.tile.query, 16])

    @cached_property
    def sums(self) -> gl.NVMMADistributedLayout:
        """A part's dK and dV [key, head_dim]."""
        return gl.NVMMADistributedLayout([3, 0], [self.warps, 1], [16, self.head_dim, 16])

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
        """A part's dQ [query, head_dim]; two warp groups of one part have half of the columns each."""
        groups = self.warps // 4
        return gl.NVMMADistributedLayout([3, 0], [4, groups], [16, self.query_columns // groups, 16])

    @cached_property
    def query_fours(self) -> gl.DistributedLinearLayout:
        """A part's dQ with columns in the order in which sums hold them, four of a lane side by side: see adding.py."""
        return self._fours(self.query_rows, self.query_columns)

    @cached_property
    def query_lines(self) -> gl.DistributedLinearLayout:
        """A part's dQ in the same order, with 32 columns of a row in eight lanes beside each other, not 16 in four."""
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
        """A part's dK or dV, likewise."""
        return self._fours(self.keys, self.head_dim)

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
        return gl.NVMMASharedLayout(min(128, self.head_dim * BYTES_PER_ELEMENT), 8 * BYTES_PER_ELEMENT, rank=4)

    @cached_property
    def shared_scores(self) -> gl.NVMMASharedLayout:
        """dS [key, query] in shared memory, for dQ."""
        return gl.NVMMASharedLayout(128, 8 * BYTES_PER_ELEMENT, rank=2)

    @cached_property
    def shared_weights(self) -> gl.SharedLinearLayout:
        """Weights [key, query] that one part hands to the other: four of a lane side by side, and lanes in order.

        Whoever stores or loads them needs no more turns of shared memory than there are bytes.
        """
        return gl.SharedLinearLayout(
            [[0, 1], [8, 0], [0, 2], [0, 4], [1, 0], [2, 0], [4, 0], [0, 8], [0, 16], [0, 32], [16, 0], [32, 0]]
        )

    @cached_property
    def shared_sums(self) -> gl.NVMMASharedLayout:
        """A part's dQ in shared memory in float32, for TMA to add."""
        return gl.NVMMASharedLayout(min(128, 4 * self.query_columns), 32, rank=4)

    @cached_property
    def shared_fours(self) -> gl.SharedLinearLayout:
        """The same place for fours. TMA's swizzle alone would have neighbouring rows meet in the same banks.

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
    def rows(self) -> gl.BlockedLayout:
        """A tile of queries in the small kernels [query, head_dim]: a lane has 8 columns."""
        lanes = self.head_dim // 8
        return gl.BlockedLayout([1, 8], [32 // lanes, lanes], [4, 1], [1, 0])

    @cached_property
    def line(self) -> gl.BlockedLayout:
        """Sums one after the other in the small kernels, a lane's 16 bytes beside those of the next lane."""
        return gl.BlockedLayout([4], [32], [4], [0])

    @cached_property
    def line_of_two(self) -> gl.BlockedLayout:
        """Likewise, for two spare warps."""
        return gl.BlockedLayout([4], [32], [2], [0])

    @cached_property
    def zeros(self) -> gl.BlockedLayout:
        """Zeros of a part's dQ that one warp stores [8, columns]."""
        return gl.BlockedLayout([1, 4], [32 // (self.query_columns // 4), self.query_columns // 4], [1, 1], [1, 0])

    @cached_property
    def rows_of_two(self) -> gl.BlockedLayout:
        """Rows for the two spare warps that prepare: a lane has 16 columns, in one row, which takes few addresses."""
        lanes = self.head_dim // 16
        return gl.BlockedLayout([1, 16], [32 // lanes, lanes], [2, 1], [1, 0])

    @cached_property
    def rows_of_one(self) -> gl.BlockedLayout:
        """Rows of sums for dQ, for the spare warp that scales: a lane has four columns."""
        lanes = min(32, self.head_dim // 4)
        return gl.BlockedLayout([1, 4], [32 // lanes, lanes], [1, 1], [1, 0])

    @property
    def rows_prepared(self) -> int:
        """Rows that the spare warps prepare at a time: a lane asks for 16 bytes four times, or eight times."""
        return 2 * self.rows_scaled

    @property
    def rows_scaled(self) -> int:
        """Rows that the spare warp scales at a time: likewise."""
        return (1024 if self.more_for_spare else 512) // self.head_dim


def rule_of(parts: int, problem: Problem) -> Rule | None:
    """The launch rule for warp groups that compute together (``parts`` 1) or apart; None where there is none."""
    return rule_for("hopper_apart" if parts > 1 else "hopper_together", problem, DEFAULT_ARCH)


def make_variant(
    problem: Problem,
    *,
    under_way: bool,
    adding: Adding,
    parts: int,
    in_turn: bool,
    sections: bool,
    alternate: bool,
    last_scales: bool = False,
    adder: bool = False,
    two_adders: bool = False,
    spare_warps: bool = False,
    heads_apart: bool = False,
    freed_together: bool = False,
    keys_kept: bool = False,
    zeros_ahead: bool = False,
    whole_lines: bool = False,
    early: bool = False,
    newest_first: bool = False,
    fence_behind: bool = False,
    from_row_sums: bool = False,
    added_later: bool = False,
) -> Variant:
    """The constants that a kernel is compiled with for ``problem``."""
    tile = rule_of(parts, problem).choice.tile
    if problem.head_dim == 256 and adding in BY_TMA:
        adding = "fours"  # shared memory has no room for dQ
    blocks = -(-problem.seq_len_kv // tile.key)
    turns = tiles_visited(problem, tile) / (problem.batch * problem.heads * blocks)
    few = blocks * problem.kv_heads * problem.batch <= PROCESSORS // 2  # most SMs would have nothing to do
    apart = turns >= (TURNS_FEW if few else TURNS_APART_CAUSAL if problem.causal else TURNS_APART)
    sharing = problem.group_size if heads_apart and adding in BY_TMA and apart else 1
    by_sections = not problem.causal if in_turn else problem.causal
    made = Variant(
        tile=tile,
        head_dim=problem.head_dim,
        group_size=problem.group_size // sharing,
        causal=problem.causal,
        ragged=problem.seq_len_kv % tile.key != 0,
        unseen=early and problem.causal and (blocks - 1) * tile.key >= tiles_a_head(problem, tile) * tile.query,
        under_way=under_way,
        adding=adding,
        parts=parts,
        in_turn=in_turn,
        section=SECTION if sections and problem.group_size == sharing and by_sections else 0,
        alternate=alternate and problem.head_dim == 128,
        last_scales=last_scales and problem.group_size == 1,
        adders=2 if two_adders else int(adder and adding in BY_TMA),
        sharing=sharing,
        early=early,
        newest_first=newest_first,
    )
    if made.roles_apart:
        made = replace(made, whole_lines=whole_lines)
    elif made.parts > 1:
        made = replace(
            made,
            freed_together=freed_together,
            kept=columns_kept(made) if keys_kept else 0,
            fence_behind=fence_behind,
            from_row_sums=from_row_sums and problem.head_dim == 128,
            added_later=added_later and problem.head_dim == 64 and not (made.causal or made.ragged),
        )
    with_spare = replace(made, ahead=max(AT_ONCE, made.section))
    turns = tiles_visited(problem, tile) / (problem.batch * problem.heads * tiles_a_head(problem, tile))
    enough = problem.batch * problem.heads > heads_ahead(with_spare, blocks)
    if not spare_warps or made.group_size > 1:
        return made
    if enough and turns >= TURNS:
        return with_spare
    return replace(with_spare, clears=True) if zeros_ahead and enough and made.by_tma else made


def columns_kept(variant: Variant) -> int:
    """Columns of K that a part keeps in registers: as many as cost the loop few spills, by what the compiler makes."""
    masks = variant.causal or variant.ragged
    return {64: 64, 128: 0 if masks else 64}.get(variant.head_dim, 0)


def heads_ahead(variant: Variant, tiles: int) -> int:
    """By how many heads spare warps are ahead and behind, with so many tiles of keys (``spare.lines_ahead``)."""
    return max(2, variant.ahead // tiles)
