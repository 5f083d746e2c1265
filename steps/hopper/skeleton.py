"""A step for Hopper: which kernel it runs, and which pieces that is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from steps.core.fused import hole
from steps.core.order import NATURAL, TAKEN, Order
from steps.core.rules import rule_for
from steps.core.step import DEFAULT_ARCH
from steps.core.tiles import HopperShape, Tile
from steps.hopper import ahead, lib, linked, one_by_one, overlapped, producer
from steps.hopper import products as by_wgmma
from steps.hopper import softmax as scores
from steps.hopper.launching import TmaStep
from steps.hopper.variant import (
    GROUP_WARPS,
    MOST_REGISTERS,
    PRODUCER_REGISTERS,
    ROWS,
    THREE_GROUPS_REGISTERS,
    Variant,
    pieces_of,
)
from tutorial_lib import layouts
from tutorial_lib.multicast import PAIR
from tutorial_lib.problem import BYTES_PER_ELEMENT, Problem

WAITS = {
    "maxima": scores.wait_behind_maxima,
    "correction": scores.wait_behind_correction,
    "the compiler's": scores.wait_last,
}


@dataclass(frozen=True, kw_only=True)
class HopperStep(TmaStep):
    """A fused kernel for sm_90 in Gluon, with these holes filled. Each piece is explained where it is defined.

    generation: the kernel, which reads from top to bottom in a module of its own. ``linked`` and ``ahead`` need room in
    shared memory for the next queries, which there is up to head_dim 128; beyond, ``overlapped`` runs in their place.
    ``ahead`` runs where the launch rule says so and blocks do not come in pairs; elsewhere ``linked``.
    registers: of a thread that computes. turns: in which order two groups issue QK products.
    third_group: at head_dim 64 three groups compute, and issue their products in this order; None: two everywhere.
    order: which block computes which tiles of queries (``steps.core.order``).
    ends: where a part stops under a causal mask. walk: under a causal mask at head_dim 256, in which order it visits
    the tiles of keys.
    wide_output, wide_queries, wide_free: beyond head_dim 128, from where in shared memory the output leaves, where Q is
    for its products, and when its place is free.
    softmax: with the wait for the PV product in it; behind the maxima means where the launch rule puts it.
    sums: of rows, up to head_dim 128; sums_downwards: where a part visits the tiles of keys from the last.
    highest: the largest score of a row, but at head_dim 256 without a mask.
    pairs: two blocks on neighbouring SMs share what TMA brings of keys and values, always or where the rule says so.
    hold: at head_dim 128, whether the warps of a group meet, and what holds the order of instructions where they do
    not. queries: where Q is for its products up to head_dim 128, where the rule says so; else in shared memory. Where
    tiles are taken one by one, neither counts.
    in_pieces: products take a head_dim between powers of two as two pieces (``steps.hopper.pieces``).
    takes: of ``Problem.features`` what the kernel is asked to compute, too, where blocks stay and visit the tiles of
    keys from the first; it is compiled in only where it is asked.

    Raises ValueError for registers that setmaxnreg does not take, and for holes that do not go together.
    """

    generation: Callable = hole(default=one_by_one.fmha)
    registers: int = hole(told=False, default=168)
    turns: lib.Turns = hole(told=False, default=lib.NO_TURNS)
    third_group: lib.Turns | None = hole(told=False, default=None)
    order: Order = hole(told=False, default=NATURAL)
    ends: lib.Ends = hole(told=False, default=lib.BLOCKS_END)
    walk: scores.Walk = hole(told=False, default=scores.UPWARDS)
    wide_output: by_wgmma.OutputTo = hole(told=False, default=by_wgmma.TO_QUERIES)
    wide_queries: by_wgmma.Queries = hole(told=False, default=by_wgmma.SHARED)
    wide_free: lib.Free = hole(told=False, default=lib.BEHIND_SOFTMAX)
    softmax: Callable = hole(told=False, default=scores.wait_last)
    sums: scores.Sums = hole(told=False, default=scores.SUM_EACH_TILE)
    sums_downwards: scores.Sums = hole(told=False, default=scores.SUM_EACH_TILE)
    highest: Callable = hole(told=False, default=scores.in_one_chain)
    pairs: Literal["always", "by rule"] | None = hole(told=False, default=None)
    hold: lib.Hold = hole(told=False, default=lib.WITH_MEETINGS)
    queries: by_wgmma.Queries = hole(told=False, default=by_wgmma.SHARED)
    in_pieces: bool = hole(told=False, default=False)
    takes: tuple[str, ...] = hole(told=False, default=())

    backend: ClassVar[str] = "hopper"
    head_dims: ClassVar[tuple[int, ...]] = (32, 64, 128, 256)
    pads_head_dim: ClassVar[bool] = True

    def __post_init__(self):
        if self.registers % 8 or not PRODUCER_REGISTERS <= self.registers <= MOST_REGISTERS:
            raise ValueError(
                f"registers must be a multiple of 8 from {PRODUCER_REGISTERS} to {MOST_REGISTERS}, got {self.registers}"
            )
        if self.pairs and (not self.ends.own or self.order.taken):
            raise ValueError("pairs of blocks take parts that stop at their own ends, and lists of tiles")
        if self.pairs == "always" and self.walk is scores.DOWNWARDS:
            raise ValueError("where blocks always come in pairs they visit the tiles of keys from the first")
        overlaps = self.generation not in (one_by_one.fmha, producer.fmha)
        if self.in_pieces and (not overlaps or self.softmax is scores.wait_behind_softmax):
            raise ValueError("head_dim in pieces takes products that overlap, and no wait behind the softmax")
        if self.pairs and self.order.computed:
            raise ValueError("blocks that compute their tiles take pairs=None")

    def unsupported(self, problem: Problem, target: str) -> str | None:
        if reason := super().unsupported(problem, target):
            return reason
        if target not in ("sm_90", "cpu"):
            return f"made of wgmma, which sm_90 alone has, not {target}"
        return None

    def choices(self, problem: Problem, target: str) -> tuple[str, ...]:
        return (rule_for("hopper", self.in_tiles(problem), DEFAULT_ARCH).name,)

    def shape(self, problem: Problem) -> HopperShape:
        """What the launch rule says of ``problem``."""
        return rule_for("hopper", self.in_tiles(problem), DEFAULT_ARCH).choice

    def stays(self) -> bool:
        """Whether a block computes several tiles of queries."""
        return self.order.persistent

    def in_pairs(self, problem: Problem) -> bool:
        """Whether two blocks share what TMA brings."""
        return self.pairs == "always" or (self.pairs == "by rule" and self.shape(problem).pairs)

    def kernel(self, problem: Problem):
        shape, alone = self.shape(problem), not (self.order_for(problem).taken or self.in_pairs(problem))
        if self.generation not in (linked.fmha, ahead.fmha):
            return self.generation
        if not shape.two_queries:
            return overlapped.fmha
        plain = not (problem.window or problem.softcap or self.in_pieces)
        goes_ahead = self.generation is ahead.fmha and shape.softmax_ahead and alone and plain
        return ahead.fmha if goes_ahead else linked.fmha

    def variant(self, problem: Problem, arch: str = DEFAULT_ARCH) -> Variant:
        """The constants that ``problem`` is compiled with, and the pieces."""
        shape, kernel, order = self.shape(problem), self.kernel(problem), self.order_for(problem)
        pieces = pieces_of(problem.head_dim) if self.in_pieces else None
        problem = self.in_tiles(problem)
        three = self.third_group is not None and shape.third_group
        groups = 3 if three else 2
        neighbours = PAIR if self.in_pairs(problem) else 1
        tile = Tile(neighbours * groups * ROWS, shape.key)
        if not self.stays():
            output, queries, free = by_wgmma.TO_QUERIES, by_wgmma.SHARED, lib.BEHIND_STORE
        elif not shape.two_queries:
            output, queries = self.wide_output, self.wide_queries
            free = lib.BEHIND_STORE if output is by_wgmma.TO_QUERIES else self.wide_free
        else:
            output, free = by_wgmma.TO_ITS_OWN, lib.BEHIND_SOFTMAX
            queries = self.queries if shape.quarter_query and not order.taken else by_wgmma.SHARED
        own_end = self.ends.own and problem.causal
        downwards = own_end and self.walk is scores.DOWNWARDS and not shape.two_queries
        ends = (lib.OWN_BEGINNING if downwards else self.ends) if own_end else lib.BLOCKS_END
        sums = self.sums_downwards if downwards else self.sums if shape.lean_sum else scores.SUM_EACH_TILE
        return Variant(
            tile=tile,
            head_dim=problem.head_dim,
            group_size=problem.group_size,
            causal=problem.causal,
            ragged=problem.lengths is not None or problem.seq_len_kv % tile.key != 0,
            groups=groups,
            parts=1 if kernel is one_by_one.fmha else groups,
            stages=2,
            query_stages=2 if kernel in (linked.fmha, ahead.fmha) else 1,
            registers=THREE_GROUPS_REGISTERS if three else self.registers,
            schedule=self.schedule(order, problem, tile),
            turns=self.third_group if three else self.turns,
            ends=ends,
            walk=self.walk if downwards else scores.UPWARDS,
            queries=queries,
            highest=self.highest if shape.four_chains else scores.in_one_chain,
            softmax=WAITS[shape.wait] if self.softmax is scores.wait_behind_maxima else self.softmax,
            sums=sums,
            hold=self.hold if shape.no_meetings and not order.taken else lib.WITH_MEETINGS,
            output_to=output,
            free=free,
            window=problem.window,
            softcap=problem.softcap,
            neighbours=neighbours,
            pieces=pieces,
            packed=problem.lengths is not None,
        )

    def schedule(self, order: Order, problem: Problem, tile: Tile) -> lib.Schedule:
        """How a block learns which tiles are its own."""
        if not order.persistent:
            return lib.ONE_TILE
        return lib.TAKEN if order.taken else lib.COMPUTED if order.computes(problem, tile) else lib.LISTS

    def order_for(self, problem: Problem) -> Order:
        """Of packed sequences, whose lengths the GPU alone knows, nothing is dealt."""
        return TAKEN if problem.lengths is not None else self.order

    def taking_tiles(self):
        if not self.stays():
            return self
        # Pairs of blocks go through the same list, and what is taken is neither dealt nor computed.
        return replace(self, order=TAKEN, pairs=None)

    def shared_clocks(self, problem: Problem) -> float:
        """Clocks a K/V tile that shared memory is busy at least, at 128 bytes a clock: operands of wgmma, and copies.

        Every ``ROWS`` queries read K and V, and Q, of which some may stay in registers; the weights always do.
        """
        v = self.variant(problem)
        columns = sum(v.pieces) if v.in_pieces else v.head_dim
        held = v.head_dim // v.queries.held if v.queries.held else 0
        queries = ROWS * (columns - held)
        read = v.parts * v.rows // ROWS * (2 * v.tile.key * columns + queries)
        copied = 2 * v.tile.key * v.head_dim
        return (read + copied) * BYTES_PER_ELEMENT / (layouts.BANKS * layouts.WORD)

    def entry(self, problem: Problem, arch: str):
        kernel, constants = super().entry(problem, arch)
        absent = {"begins_q", "begins_k", "sequences"} if problem.lengths is None else set()
        return kernel, constants | dict.fromkeys(absent & set(kernel.arg_names))

    def compute_warps(self, variant: Variant) -> int:
        return GROUP_WARPS * variant.groups
