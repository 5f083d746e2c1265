"""A step for Hopper: which kernel it runs, and which pieces that is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from steps.core.fused import hole
from steps.core.order import NATURAL, TAKEN, Order
from steps.core.rules import rule_for
from steps.core.step import DEFAULT_ARCH
from steps.core.tiles import IN_PANELS, Tile
from steps.hopper import ahead, epilogue_overlap, kernel, lib, one_by_one, producer
from steps.hopper import products as by_wgmma
from steps.hopper import softmax as scores
from steps.hopper.conditions import STAGES, in_panels, launched, next_queries_fit
from steps.hopper.launching import TmaStep
from steps.hopper.variant import (
    GROUP_WARPS,
    MOST_REGISTERS,
    PRODUCER_REGISTERS,
    ROWS,
    SWIZZLED,
    THREE_GROUPS_REGISTERS,
    Variant,
    pieces_of,
    registers_of,
)
from tutorial_lib import layouts
from tutorial_lib.multicast import PAIR
from tutorial_lib.problem import BYTES_PER_ELEMENT, Problem


@dataclass(frozen=True, kw_only=True)
class HopperStep(TmaStep):
    """A fused kernel for sm_90 in Gluon, with these holes filled. Each piece is explained where it is defined.

    generation: what the warpgroups that compute do, which reads from top to bottom in a module of its own; or a kernel
    without roles. ``epilogue_overlap`` and ``ahead`` need room in shared memory for the next queries. ``ahead`` takes
    lists of tiles, blocks that fetch for themselves alone, and no mask but the causal one; elsewhere
    ``epilogue_overlap`` runs in its place.
    groups: warpgroups that compute. registers: of a thread of these, where they are two. turns: in which order groups
    issue QK products.
    order: which block computes which tiles of queries (``steps.core.order``).
    ends: where a warpgroup stops under a causal mask. walk: in which order a warpgroup that stops at its own end visits
    the tiles of keys.
    output_to: from where in shared memory the output leaves. queries: where Q is for its products; always in shared
    memory in panels, and where tiles are taken one by one and the next queries fit. free: when the slot of Q is free.
    softmax: with the wait for the PV product in it. sums: of rows. highest: the largest score of a row.
    pairs: two blocks on neighbouring SMs share what TMA brings of keys and values.
    warpgroup_per_query_head: each warpgroup of a block has the same queries of another head of a group.
    hold: whether the warps of a group meet, and what holds the order of instructions where they do not. Where tiles are
    taken one by one, they meet.
    in_pieces: products take a head_dim between powers of two as two pieces (``steps.hopper.pieces``).
    takes: of ``Problem.features`` what the kernel is asked to compute, too, where blocks stay and visit the tiles of
    keys from the first; it is compiled in only where it is asked.

    Raises ValueError for registers that setmaxnreg does not take, and for holes that do not go together.
    """

    generation: Callable = hole(by_problem=True, default=one_by_one.fmha)
    groups: int = hole(told=False, by_problem=True, default=2)
    registers: int = hole(told=False, default=168)
    turns: lib.Turns = hole(told=False, by_problem=True, default=lib.NO_TURNS)
    order: Order = hole(told=False, default=NATURAL)
    ends: lib.Ends = hole(told=False, default=lib.BLOCKS_END)
    walk: scores.Walk = hole(told=False, by_problem=True, default=scores.UPWARDS)
    output_to: by_wgmma.OutputTo = hole(told=False, by_problem=True, default=by_wgmma.TO_QUERIES)
    queries: by_wgmma.Queries = hole(told=False, by_problem=True, default=by_wgmma.SHARED)
    free: lib.Free = hole(told=False, by_problem=True, default=lib.BEHIND_STORE)
    softmax: Callable = hole(told=False, by_problem=True, default=scores.wait_last)
    sums: scores.Sums = hole(told=False, by_problem=True, default=scores.SUM_EACH_TILE)
    highest: Callable = hole(told=False, by_problem=True, default=scores.in_one_chain)
    pairs: bool = hole(told=False, by_problem=True, default=False)
    warpgroup_per_query_head: bool = hole(told=False, by_problem=True, default=False)
    hold: lib.Hold = hole(told=False, by_problem=True, default=lib.WITH_MEETINGS)
    in_pieces: bool = hole(told=False, default=False)
    takes: tuple[str, ...] = hole(told=False, default=())

    backend: ClassVar[str] = "hopper"
    architectures: ClassVar[tuple[str, ...]] = (DEFAULT_ARCH,)
    elsewhere: ClassVar[str] = f"made of wgmma, which {DEFAULT_ARCH} alone has, not {{}}"
    head_dims: ClassVar[tuple[int, ...]] = (32, 64, 128, 256)
    pads_head_dim: ClassVar[bool] = True

    def __post_init__(self):
        if self.registers % 8 or not PRODUCER_REGISTERS <= self.registers <= MOST_REGISTERS:
            raise ValueError(
                f"registers must be a multiple of 8 from {PRODUCER_REGISTERS} to {MOST_REGISTERS}, got {self.registers}"
            )
        pairs = self.pairs is not False  # for some problems at least
        if pairs and (not self.ends.own or self.order.taken):
            raise ValueError("pairs of blocks take warpgroups that stop at their own ends, and lists of tiles")
        if self.pairs is True and self.walk == scores.DOWNWARDS:
            raise ValueError("where blocks come in pairs they visit the tiles of keys from the first")
        overlaps = self.generation not in (one_by_one.fmha, producer.consume)
        if self.in_pieces and (not overlaps or self.softmax is scores.wait_behind_softmax):
            raise ValueError("head_dim in pieces takes products that overlap, and no wait behind the softmax")
        if pairs and self.order.computed:
            raise ValueError("blocks that compute their tiles take pairs=False")

    def unsupported(self, problem: Problem, target: str) -> str | None:
        if reason := super().unsupported(problem, target):
            return reason
        if rule_for("hopper", self.in_tiles(problem), DEFAULT_ARCH) is None:
            return f"no rule of [[hopper]] in steps/core/rules.toml takes head_dim {problem.head_dim}"
        return "takes no values wider than keys" if problem.value_dim > problem.head_dim else None

    def in_tiles(self, problem: Problem) -> Problem:
        """As ``Step.in_tiles``; tiles in panels have ``IN_PANELS`` columns."""
        if in_panels(problem):
            return replace(problem, head_dim=IN_PANELS, scale=problem.effective_scale)
        return super().in_tiles(problem)

    def choices(self, problem: Problem, target: str) -> tuple[str, ...]:
        return (rule_for("hopper", self.in_tiles(problem), DEFAULT_ARCH).name,)

    def kernel(self, problem: Problem):
        generation = self.generation_for(problem)
        return generation if generation is one_by_one.fmha else kernel.fmha

    def heads_together(self, problem: Problem) -> int:
        """Query heads of a group that a block has, for each warpgroup another."""
        step = self.for_problem(problem)
        return step.groups if step.warpgroup_per_query_head else 1

    def launched(self, problem: Problem) -> Problem:
        return replace(problem, heads=problem.heads // self.heads_together(problem))

    def blocks_an_sm(self, problem: Problem) -> int:
        return rule_for("hopper", self.in_tiles(problem), DEFAULT_ARCH).choice.occupancy or 1

    def most_registers(self, problem: Problem) -> int | None:
        blocks = self.blocks_an_sm(problem)
        return registers_of(self.for_problem(problem).groups, blocks)[0] if blocks > 1 else None

    def generation_for(self, problem: Problem) -> Callable:
        """What runs for ``problem``: in place of ``ahead`` ``epilogue_overlap``, where that cannot."""
        step = self.for_problem(problem)
        as_they_are = not (problem.window or problem.softcap or step.in_pieces)
        alone = not (step.order_for(problem).taken or step.pairs)
        return (
            epilogue_overlap.consume
            if step.generation is ahead.consume and not (as_they_are and alone)
            else step.generation
        )

    def variant(self, problem: Problem, arch: str = DEFAULT_ARCH) -> Variant:
        """The constants that ``problem`` is compiled with, and the pieces."""
        step, generation, order = self.for_problem(problem), self.generation_for(problem), self.order_for(problem)
        roles, together = generation is not one_by_one.fmha, self.heads_together(problem)
        pieces, value_pieces = (pieces_of(d) if step.in_pieces else None for d in (problem.head_dim, problem.value_dim))
        problem = step.in_tiles(problem)
        panels = in_panels(problem)
        neighbours = PAIR if step.pairs else 1
        tile = Tile(neighbours * step.groups * ROWS // together, launched(problem).key)
        blocks_an_sm, registers = self.blocks_an_sm(problem), step.registers
        if blocks_an_sm > 1:
            registers = registers_of(step.groups, blocks_an_sm)[1]
        elif step.groups == 3:
            registers = THREE_GROUPS_REGISTERS
        warpgroup_causal_bound = step.ends.own and problem.causal and together == 1
        downwards = warpgroup_causal_bound and step.walk == scores.DOWNWARDS
        ends = (lib.OWN_BEGINNING if downwards else step.ends) if warpgroup_causal_bound else lib.BLOCKS_END
        return Variant(
            tile=tile,
            head_dim=problem.head_dim,
            value_dim=max(step.columns(problem.value_dim), min(SWIZZLED, problem.head_dim)),
            group_size=problem.group_size // together,
            causal=problem.causal,
            ragged=problem.lengths is not None or problem.seq_len_kv % tile.key != 0,
            groups=step.groups,
            warpgroups=step.groups if roles else 1,
            stages=STAGES,
            query_stages=2 if generation in (epilogue_overlap.consume, ahead.consume) else 1,
            registers=registers,
            schedule=step.schedule(order, problem, tile),
            consume=generation if roles else None,
            turns=step.turns,
            ends=ends,
            walk=step.walk if downwards else scores.UPWARDS,
            queries=by_wgmma.SHARED if panels or (order.taken and next_queries_fit(problem)) else step.queries,
            highest=step.highest,
            softmax=step.softmax,
            sums=step.sums,
            hold=lib.WITH_MEETINGS if order.taken else step.hold,
            output_to=step.output_to,
            free=step.free,
            window=problem.window,
            softcap=problem.softcap,
            neighbours=neighbours,
            pieces=None if panels else pieces,
            panels=problem.head_dim // SWIZZLED if panels else 1,
            value_pieces=value_pieces,
            packed=problem.lengths is not None,
            sinks=problem.sinks,
            together=together,
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
        if not self.order.persistent:
            return self
        # Pairs of blocks go through the same list, and what is taken is neither dealt nor computed.
        return replace(self, order=TAKEN, pairs=False)

    def shared_clocks(self, problem: Problem) -> float:
        """Clocks a K/V tile that shared memory is busy at least, at 128 bytes a clock: operands of wgmma, and copies.

        Every ``ROWS`` queries read K and V, and Q, of which some may stay in registers; the weights always do.
        """
        v = self.variant(problem)
        columns = sum(v.pieces) if v.in_pieces else v.head_dim
        value_columns = sum(v.value_pieces) if v.output_in_pieces else v.value_dim
        held = v.head_dim // v.queries.held if v.queries.held else 0
        queries = ROWS * (columns - held)
        read = v.warpgroups * v.rows // ROWS * (v.tile.key * (columns + value_columns) + queries)
        copied = v.tile.key * (v.head_dim + v.value_dim)
        return (read + copied) * BYTES_PER_ELEMENT / (layouts.BANKS * layouts.WORD)

    def entry(self, problem: Problem, arch: str):
        kernel, constants = super().entry(problem, arch)
        absent = {"begins_q", "begins_k", "sequences"} if problem.lengths is None else set()
        absent |= set() if problem.sinks else {"Sinks"}
        return kernel, constants | dict.fromkeys(absent & set(kernel.arg_names))

    def compute_warps(self, variant: Variant) -> int:
        return GROUP_WARPS * variant.groups
