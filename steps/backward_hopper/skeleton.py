"""A backward step for Hopper: which kernel it runs, which pieces that is made of, and how it is launched."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from steps.backward_hopper import adding as by
from steps.backward_hopper import apart, lib, loop, roles, spare, together
from steps.backward_hopper import products as with_wgmma
from steps.backward_hopper.launching import TmaGradients, of_sinks
from steps.backward_hopper.rows import first_head_first, prepare, scaled
from steps.backward_hopper.variant import ROWS, WARPS, Variant
from steps.core.fused import grid, hole, too_long_to_simulate
from steps.core.gradients import tiles_visited
from steps.core.launch import gluon_launcher, in_a_row
from steps.core.order import tiles_a_head
from steps.core.rules import Rule, rule_for
from steps.core.step import DEFAULT_ARCH
from steps.core.work import Work, places
from steps.hopper import packed
from steps.hopper.launching import described
from steps.hopper.lib import NO_TURNS, Turns
from tutorial_lib import compiler
from tutorial_lib.problem import Problem

ROW_WARPS = 4  # of the small kernels
SECTION = 264  # blocks that begin together: 132 SMs take about as long for them as for the longest
LARGER_SECTION = 396  # with 8 heads of 81 blocks faster than 264: in a trial on an H200, not recorded
AT_ONCE = 144  # blocks, about as many as run at once; whole heads of them, rounded down (up was not measured)
PROCESSORS = 132  # of an H100; a block has one alone
# Iterations that a block takes for a query head at least, in the mean, for query heads to have blocks of their own:
# from trials with 64 query heads and 8 kv heads. Under a causal mask, and without.
ITERATIONS_APART_CAUSAL, ITERATIONS_APART = 5, 64
# Queries of a block that shares a head's with others, at least: in a trial on an H200, which is not recorded, 256 were
# faster than 128.
LEAST_ROWS = 256
MOST_BLOCKS = 65535  # along a grid's second and third axis
ROUNDING = 4  # iterations that take as long as clearing and rounding sums for dK and dV: a trial with 64 blocks
# Iterations that each tile of queries takes at least, in the mean, for spare warps to keep pace; and at head_dim 64
# without a mask: faster with 4 and 5 of them, too, in trials on an H200, which are not recorded.
LEAST_ITERATIONS, LEAST_UNMASKED_64 = 6, 4


@dataclass(frozen=True, kw_only=True)
class HopperGradients(TmaGradients):
    """Kernels for sm_90 in Gluon, with these holes filled. Each piece is explained where it is defined.

    generation: the kernel, which reads from top to bottom in a module of its own. ``spare`` runs where there are
    helpers for a problem; elsewhere ``output_buffer`` runs in its place.
    compute: of an iteration, where warpgroups compute together. Nothing that follows counts there but ``adding``.
    adding: how a block adds its share of dQ. wide_adding: at head_dim 256, where shared memory has no room for dQ.
    adding_unmasked: at head_dim 64 without a mask, in place of ``adding``.
    complete: whether a block that has all keys of its heads stores dQ, and adds nothing (``tiles_of_all_keys``). Where
    these blocks are few, several share a head's queries, and add to its dK and dV (``parts_for``).
    sequence: in which order blocks add to dQ; in a fixed one, for the same bits every time.
    sections: under a causal mask, blocks begin in sections of heads, and of a section the longest first; not where a
    block has several query heads, nor under a sliding window, which makes blocks about as long as each other, nor of
    packed sequences. Blocks that add in order begin so without a mask, and of a section those with the first keys.
    turns: in which order warpgroups compute weights and dS, at head_dim 128.
    helpers: warps of the producer's warpgroup that had nothing to do. wide_helpers: at head_dim 256. Spare warps
    prepare and scale rows of other heads where there are heads enough, and blocks enough for each tile of queries, but
    not with grouped heads, unless these are apart, nor under a sliding window, nor of packed sequences; short_helpers:
    where they cannot keep pace.
    cta_per_query_head: with grouped heads a block has one query head, and not all of a group, where that pays
    (``heads_apart``), and adds to dK and dV of the kv head: these differ in their last bits from call to call, too.
    keys_64, keys_unmasked: where warpgroups have K at head_dim 64, and at head_dim 128 without a mask; in shared memory
    under a soft cap, whose tanh takes registers. A last tile of queries or keys that is not full counts as a mask.
    gradient: at head_dim 128, how the product for the weights' gradient begins.
    exchange, fence: how warpgroups that are apart exchange dS; at head_dim 256 they do it in a way of their own.
    short_rules: whether launches have other tiles where blocks are few, or up to 640 queries fill smaller tiles better.
    begin: when the kernels of a call begin. line_of_block: of which head a small kernel begins.
    A block of packed sequences finds the sequence of its keys, and TMA sees that alone (``steps.hopper.packed``). What
    is made ready and added up for a sequence has whole tiles in scratch memory. No launch depends on lengths.

    Raises ValueError for values that do not go together.
    """

    generation: Callable = hole(default=together.fmha_backward)
    compute: Callable = hole(default=together.one_by_one)
    adding: by.Adding = hole(default=by.PAIRS)
    wide_adding: by.Adding = hole(told=False, default=by.FOURS)
    adding_unmasked: by.Adding | None = hole(told=False, default=None)
    complete: bool = hole(told=False, default=False)
    sequence: by.Sequence = hole(told=False, default=by.ANY_ORDER)
    sections: bool = hole(told=False, default=False)
    turns: Turns = hole(told=False, default=NO_TURNS)
    helpers: lib.Helpers = hole(told=False, default=lib.NOBODY)
    wide_helpers: lib.Helpers = hole(told=False, default=lib.NOBODY)
    short_helpers: lib.Helpers = hole(told=False, default=lib.NOBODY)
    cta_per_query_head: bool = hole(told=False, default=False)
    keys_64: with_wgmma.Keys = hole(told=False, default=with_wgmma.SHARED)
    keys_unmasked: with_wgmma.Keys = hole(told=False, default=with_wgmma.SHARED)
    gradient: with_wgmma.Gradient = hole(told=False, default=with_wgmma.FROM_ZERO)
    exchange: with_wgmma.Exchange = hole(told=False, default=with_wgmma.BY_ITSELF)
    fence: with_wgmma.Fence = hole(told=False, default=with_wgmma.FENCE_FIRST)
    short_rules: bool = hole(told=False, default=False)
    begin: lib.Begin = hole(told=False, default=lib.ONE_BY_ONE)
    line_of_block: Callable = hole(told=False, default=first_head_first)

    backend: ClassVar[str] = "hopper"
    architectures: ClassVar[tuple[str, ...]] = (DEFAULT_ARCH,)
    elsewhere: ClassVar[str] = f"made of wgmma, which {DEFAULT_ARCH} alone has, not {{}}"
    shown: ClassVar[str] = (
        "The kernel whose blocks own keys (steps/backward_hopper/rows.py has the small ones around it)"
    )
    takes: ClassVar[tuple[str, ...]] = ("window", "softcap", "lengths", "sinks")
    head_dims: ClassVar[tuple[int, ...]] = (32, 64, 128, 256)
    pads_head_dim: ClassVar[bool] = True

    def __post_init__(self):
        takes_apart = self.turns, self.helpers, self.sequence
        if self.together and takes_apart != (NO_TURNS, lib.NOBODY, by.ANY_ORDER):
            raise ValueError("turns, helpers and sequence take warpgroups that are apart")
        if not (self.together or self.adding.by_tma):
            raise ValueError("warpgroups that are apart take adding by TMA")
        if self.deterministic and self.adding_unmasked:
            raise ValueError("sequence=IN_ORDER takes adding_unmasked=None: nobody's turn is put off")
        if (self.helpers.hear or self.wide_helpers.hear) and not self.deterministic:
            raise ValueError("warps that add take sequence=IN_ORDER: elsewhere nobody waits for a turn to add")
        fits = self.adding.fours and not self.deterministic
        if (self.helpers == spare.SPARE or self.cta_per_query_head) and not fits:
            raise ValueError("spare warps and cta_per_query_head take adding by fours, in any order")

    @property
    def together(self) -> bool:
        """Whether warpgroups compute together."""
        return self.generation is together.fmha_backward

    @property
    def deterministic(self) -> bool:
        """Whether blocks add to dQ in a fixed order."""
        return self.sequence == by.IN_ORDER

    def unsupported(self, problem: Problem, target: str) -> str | None:
        if reason := super().unsupported(problem, target):
            return reason
        if self.rule(problem) is None:
            how = "compute together" if self.together else "are apart"
            return f"its two warpgroups {how}, which has no tile for head_dim {problem.head_dim}"
        variant = self.variant(problem)
        if variant.adds_keys and max(axes := lines_rounded(problem, variant)) > MOST_BLOCKS:
            most = f"no two factors of up to {MOST_BLOCKS}, as a grid's axes have"
            return f"its sums are of {math.prod(axes)} heads, a number that has {most}"
        return None

    def rule(self, problem: Problem) -> Rule | None:
        """The launch rule for warpgroups that compute together, or apart; None where there is none."""
        asked = self.in_tiles(problem), DEFAULT_ARCH
        short = rule_for("hopper_short", *asked) if self.short_rules else None
        return short or rule_for("hopper_together" if self.together else "hopper_apart", *asked)

    def kernel(self, problem: Problem):
        """The kernel whose blocks own keys."""
        alone = self.generation is spare.fmha_backward and self.variant(problem).helpers == lib.NOBODY
        return apart.fmha_backward if alone else self.generation

    def scratch_bytes(self, problem: Problem) -> int:
        """Two numbers for each query, what is added up in float32, and what blocks count for each other."""
        rows, of_keys = problem.batch * problem.heads * self.padded(problem), math.prod(self.key_sums(problem))
        columns = 0 if self.variant(problem).adding.complete else self.in_tiles(problem).head_dim
        return 4 * (rows * (2 + columns) + of_keys + self.number_of_counts(problem))

    def key_sums(self, problem: Problem) -> tuple[int, ...]:
        """The shape of dK and dV in float32 where query heads add to them, with keys to the end of the last tile."""
        variant = self.variant(problem)
        keys = own_blocks(problem, variant)[0] * variant.tile.key
        return 2 if variant.adds_keys else 0, problem.batch, problem.kv_heads, keys, variant.head_dim

    def number_of_counts(self, problem: Problem) -> int:
        """Numbers in global memory that blocks count up: of a warpgroup's tiles of queries, or up to two of a head."""
        variant = self.variant(problem)
        if variant.ahead:
            return (2 if variant.spare else 1) * problem.batch * problem.heads
        tiles = self.padded(problem) // variant.tile.query
        return variant.warpgroups * problem.batch * problem.heads * tiles if variant.counts else 0

    def padded(self, problem: Problem) -> int:
        """Queries of a head, to the end of the last tile; packed sequences begin with a tile each."""
        tile = self.variant(problem).tile
        return grid(problem, tile)[0] * tile.query

    def choices(self, problem: Problem, target: str) -> tuple[str, ...]:
        """Of the kernel whose blocks own keys."""
        return (self.rule(problem).name,)

    def variant(self, problem: Problem, arch: str = DEFAULT_ARCH) -> Variant:
        """The constants that ``problem`` is compiled with, and the pieces."""
        tile, head_dim = self.rule(problem).choice.tile, self.in_tiles(problem).head_dim
        blocks, wide = -(-problem.seq_len_kv // tile.key), head_dim == 256
        packed = problem.lengths is not None
        ragged = packed or problem.seq_len_kv % tile.key != 0
        padded = tiles_a_head(problem, tile) * tile.query
        ragged_queries = packed or problem.seq_len_q % tile.query != 0
        masked = problem.causal or ragged or ragged_queries
        sharing = problem.group_size if self.cta_per_query_head and self.heads_apart(problem, tile) else 1
        group_size = problem.group_size // sharing
        alike = problem.window or packed  # blocks are about as long, or nobody knows how long
        l2_aware_lpt = self.sections and group_size == 1 and problem.causal != self.deterministic and not alike
        section = 0
        if l2_aware_lpt:
            heads = problem.batch * problem.kv_heads * sharing
            section = SECTION if self.deterministic else section_for(heads, blocks)
        ahead = max(AT_ONCE, section)
        helpers = self.wide_helpers if wide else self.helpers
        if helpers == spare.SPARE:
            helpers = self.spare_for(problem, tile, group_size, ahead)
        adding = self.wide_adding if wide else self.adding
        if self.adding_unmasked and head_dim == 64 and not masked and tile.key > ROWS:
            adding = self.adding_unmasked
        sequence = self.sequence
        if helpers.hear:
            sequence = by.BY_ADDER if adding.by_tma else by.PASSED_ON
            adding = replace(adding, add=by.store_for_adder) if adding.by_tma else adding
        all_keys = self.tiles_of_all_keys(problem, tile) if sharing == 1 and adding.by_tma else 0
        if all_keys:
            adding, sequence, helpers = by.COMPLETE if all_keys == 1 else by.COLLECTED, by.ANY_ORDER, lib.NOBODY
        may_add = not problem.causal and not self.deterministic
        parts = parts_for(problem, tile) if all_keys == 1 and may_add else 1
        keys = with_wgmma.SHARED
        if not problem.softcap:  # which leaves no registers for keys
            keys = self.keys_64 if head_dim == 64 else self.keys_unmasked if head_dim == 128 and not masked else keys
        if problem.dtype == "bfloat16" and keys.weights is with_wgmma.in_16_bits:
            keys = replace(keys, weights=with_wgmma.in_bfloat16)
        consume, store, add = loop.consume, with_wgmma.store_both, with_wgmma.add_both
        if all_keys > 1:
            consume = loop.consume_tiles
        if tile.key == ROWS:
            consume, store, add = roles.consume, roles.store_sums, roles.add_sums
        tile_of_block = lib.from_last_keys if self.deterministic and problem.causal else lib.by_number
        return Variant(
            tile=tile,
            head_dim=head_dim,
            columns=problem.head_dim,
            group_size=group_size,
            causal=problem.causal,
            window=problem.window,
            softcap=problem.softcap,
            packed=packed,
            ragged=ragged,
            ragged_queries=ragged_queries,
            unseen=self.begin.early and (packed or (problem.causal and (blocks - 1) * tile.key >= padded)),
            warpgroups=1 if self.together else 2,
            sharing=sharing,
            section=section,
            ahead=ahead if helpers in (spare.SPARE, spare.CLEARS) else 0,
            compute=self.compute,
            consume=consume,
            tile_of_block=lib.l2_aware_lpt if l2_aware_lpt else tile_of_block,
            adding=adding,
            sequence=sequence,
            turns=self.turns if head_dim == 128 else NO_TURNS,
            key_operand=keys,
            gradient=self.gradient if head_dim == 128 else with_wgmma.FROM_ZERO,
            exchange=with_wgmma.BY_ITSELF if wide else self.exchange,
            fence=with_wgmma.FENCE_FIRST if wide else self.fence,
            leave=add if sharing > 1 or parts > 1 else store,
            helpers=helpers,
            begin=self.begin,
            line_of_block=self.line_of_block,
            parts=parts,
            key_tiles=max(1, all_keys),
        )

    def work(self, problem: Problem, arch: str) -> Work:
        """What a launch has to do, most of which the kernel does whose blocks own keys."""
        variant = self.variant(problem, arch)
        heads = own_blocks(problem, variant)[1] // variant.parts
        return Work.of_keys(
            problem, variant.tile, heads, places(arch), variant.head_dim, variant.key_tiles, variant.parts,
            not variant.adding.complete,
        )  # fmt: skip

    def kernels_for(self, problem: Problem, arch: str) -> tuple:
        return self.kernel(problem), self.variant(problem)

    def tiles_of_all_keys(self, problem: Problem, tile) -> int:
        """Tiles of keys of a block that has all of its heads, so that its dQ is complete; 0 where several have them."""
        if not self.complete or problem.window or problem.lengths:
            return 0
        blocks = -(-problem.seq_len_kv // tile.key)
        return blocks if blocks == 1 or self.rule(problem).where == "two_tiles_of_keys" else 0

    def heads_apart(self, problem: Problem, tile) -> bool:
        """Whether query heads of a group have blocks of their own.

        So it is where a block takes enough iterations for a head, in the mean; else it turns on when the last SM ends.
        What a block takes beside its iterations is counted as one. Adding dK and dV, which are as many sums as dQ of
        some iterations, is counted as these, and ``ROUNDING`` comes to it.

        Under a sliding window it turns on the end alone. Without one, blocks with the last keys are soon several heads
        ahead of the others (step cta_per_query_head). Blocks of a window are about as long as each other, so that
        neighbours stay at the same head, and find its queries in L2: a hypothesis, which nobody has measured.
        """
        problem = of_equal_lengths(problem)
        blocks = -(-problem.seq_len_kv // tile.key)
        mean = tiles_visited(problem, tile) / (problem.batch * problem.heads * blocks)
        enough = ITERATIONS_APART_CAUSAL if problem.causal else ITERATIONS_APART
        if mean >= enough and not problem.window:
            return True
        heads = problem.kv_heads, problem.heads
        together, apart = (Work.of_keys(problem, tile, n, PROCESSORS, problem.head_dim) for n in heads)
        to_add = 2 * tile.key / tile.query
        return apart.iterations + (1 + to_add) * apart.tiles + ROUNDING < together.iterations + together.tiles

    def spare_for(self, problem: Problem, tile, group_size: int, ahead: int) -> lib.Helpers:
        """What spare warps do: they prepare and scale where they keep pace, and where there are heads enough.

        Blocks share a head's rows out by the iterations that each takes, which they do not count under a window, nor
        of packed sequences.
        """
        blocks = -(-problem.seq_len_kv // tile.key)
        few = problem.batch * problem.heads <= heads_ahead(ahead, blocks)
        if group_size > 1 or problem.window or problem.lengths or few:
            return lib.NOBODY
        iterations = tiles_visited(problem, tile) / (problem.batch * problem.heads * tiles_a_head(problem, tile))
        head_dim = self.in_tiles(problem).head_dim
        if iterations >= (LEAST_UNMASKED_64 if head_dim == 64 and not problem.causal else LEAST_ITERATIONS):
            return spare.SPARE
        return lib.NOBODY if head_dim == 256 else self.short_helpers

    def too_long_on_cpu(self, problem: Problem) -> str | None:
        return too_long_to_simulate(problem, self.variant(problem).tile)

    def entry(self, problem: Problem, arch: str):
        kernel, variant = self.kernel(problem), self.variant(problem)
        missing = set() if variant.spare else {"AllNumbers", "Out", "AllDO", "LSE", "strides", "rates"}
        missing |= set() if variant.spare else {"AllSums", "DQ"}
        missing |= set() if variant.counts else {"Counts"}
        missing |= set() if variant.packed else {"begins_q", "begins_k", "sequences"}
        return kernel, {"variant": variant, **dict.fromkeys(n for n in kernel.arg_names if n in missing)}

    def kernels_ready(self, kernel, constants: tuple, problem: Problem, tensors: tuple):
        import torch

        q, k, v, o, lse, do, dq, dk, dv, *behind = tensors
        sinks, begins = behind[: 2 * problem.sinks], behind[2 * problem.sinks :]
        device, variant, padded = q.device, self.variant(problem), self.padded(problem)
        counts, lines = self.number_of_counts(problem), problem.batch * problem.heads
        tiles, complete = padded // variant.small_rows, variant.adding.complete
        shape, of_keys = (problem.batch, problem.heads, padded, variant.head_dim), self.key_sums(problem)
        of_queries, sums_behind = 0 if complete else math.prod(shape), variant.adds_keys or not complete

        def scratch():
            """Numbers of each query, sums for dQ, those for dK and for dV where there are, and what blocks count."""
            numbers = torch.empty((2 * lines, padded), dtype=torch.float32, device=device)
            sums = torch.empty(of_queries + math.prod(of_keys), dtype=torch.float32, device=device)
            key_sums = sums[of_queries:].view(of_keys)
            sums = sums if complete else sums[:of_queries].view(shape)
            counted = [torch.empty(counts, dtype=torch.int32, device=device)] if counts else []
            return numbers, sums, *key_sums, *counted

        numbers, sums, *more = scratch()
        key_sums, counted = more[: of_keys[0]], more[of_keys[0] :]
        rows, first_line = (tiles, problem.heads, problem.batch), 0
        cleared = 0 if complete else lines  # by a kernel
        if variant.ahead:
            cleared = heads_ahead(variant.ahead, own_blocks(problem, variant)[0])
        if variant.spare:  # kernels of their own have as many heads as are prepared, and scaled, by nobody else
            rows, first_line = (tiles, 1, cleared), lines - cleared
        strides = (o.stride()[:3], do.stride()[:3], lse.stride())
        sizes = (problem.seq_len_q, padded, problem.heads)
        pieces = math.prod(of_keys) // (variant.small_rows * variant.head_dim)
        passed = (o, do, lse, numbers, sums, strides, *sizes, problem.batch)
        passed += (counts or None, pieces or None, cleared, variant)
        early = variant.begin.early
        where = of_sequences(problem, *begins)
        preparing = _launcher(prepare, rows, passed, counted, ROW_WARPS, device, 5, where, early=early, overtaken=early)
        blocks = own_blocks(problem, variant)
        into = key_sums if variant.adds_keys else (dk, dv)
        to_queries = dq if complete else sums[..., : variant.sum_columns]
        passed = (*arguments(q, k, v, do, numbers, to_queries, *into, problem, padded, variant), *constants)

        def beyond(o, lse, do, dq, numbers, sums, counted):
            """What the kernel whose blocks own keys takes behind its constants."""
            if variant.spare:
                return *counted, sums, dq, numbers, o, do, lse
            return counted

        more = beyond(o, lse, do, dq, numbers, sums, counted)
        kept = ((*strides, dq.stride()[:3]), rates(problem, variant)) if variant.spare else ()
        multiplying = _launcher(
            kernel, blocks, passed, (*more, *kept), variant.warps, device, 8, where,
            early=early, overtaken=early and sums_behind, rewrite=True,
        )  # fmt: skip

        passed, into = (sums, dq, dq.stride()[:3], problem.effective_scale, *sizes, first_line, variant), ()
        if key_sums:  # rounded by the same kernel, behind dQ
            heads_of_queries = 0 if complete else rows[1] * rows[2]
            heads_of_keys, keys = problem.batch * problem.kv_heads, of_keys[3]
            numbers_of_keys = problem.seq_len_kv, keys, problem.kv_heads, heads_of_keys, heads_of_queries
            into = *key_sums, dk, dv, dk.stride()[:3], dv.stride()[:3], numbers_of_keys
            rows = max(0 if complete else tiles, keys // variant.small_rows), *lines_rounded(problem, variant)
        summed, counted = ["sums of dk", "sums of dv"][: len(key_sums)], ["counts"][: len(counted)]
        names = ["q", "k", "v", "o", "lse", "do", "dq", "dk", "dv", *["dsinks", "sinks"][: len(sinks)]]
        begins = ["begins_q", "begins_k"][: len(begins)]
        names += [*begins, "numbers", "sums", *summed, *counted]
        more = beyond("o", "lse", "do", "dq", "numbers", "sums", counted)
        to_queries = "dq" if complete else "sums"
        launches = [
            (preparing, ["o", "do", "lse", "numbers", "sums", *counted, *begins[:1]]),
            (multiplying, ["q", "k", "v", "do", "numbers", to_queries, *(summed or ("dk", "dv")), *more, *begins]),
        ]
        if sums_behind:
            scaling = _launcher(scaled, rows, passed, into, ROW_WARPS, device, 2, where, early=early)
            launches.append((scaling, ["sums", "dq", *summed, *(["dk", "dv"] if summed else []), *begins]))
        launches += of_sinks(sinks, numbers, problem, padded)  # begins when all kernels before have ended
        return in_a_row([(run, [names.index(x) for x in which]) for run, which in launches], scratch, device)

    def compile(self, problem, arch="sm_90"):
        """The kernel whose blocks own keys."""
        self.refuse(problem, arch)  # before its variant is asked for, which there may be none of
        return self.compile_kernel(self.kernel(problem), problem, arch, self.variant(problem))

    def compile_kernel(self, kernel, problem: Problem, arch: str, *constants):
        """As ``compile``, for a kernel that is given: see ``make_kernel_ready``."""
        self.refuse(problem, arch)
        variant, padded = self.variant(problem), self.padded(problem)
        queries = (problem.batch, problem.heads, problem.seq_len_q, problem.head_dim)
        keys = (problem.batch, problem.kv_heads, problem.seq_len_kv, problem.head_dim)
        q, k = compiler.Placeholder(queries, problem.dtype), compiler.Placeholder(keys, problem.dtype)
        numbers = compiler.Placeholder((2 * problem.batch * problem.heads, padded), "float32")
        sums = compiler.Placeholder((problem.batch, problem.heads, padded, variant.sum_columns), "float32")
        sums = q if variant.adding.complete else sums
        into = compiler.Placeholder(self.key_sums(problem)[1:], "float32") if variant.adds_keys else k
        more = (compiler.Placeholder((1,), "int32"),) if variant.counts else ()
        if variant.spare:
            lse = compiler.Placeholder((problem.batch, problem.heads, problem.seq_len_q), "float32")
            strides = (q.stride()[:3], q.stride()[:3], lse.stride(), q.stride()[:3])
            more = (*more, sums, q, numbers, q, q, lse, strides, rates(problem, variant))
        passed = *arguments(q, k, k, q, numbers, sums, into, into, problem, padded, variant), *constants, *more
        begins = compiler.Placeholder((1,), "int32")
        compiled = compiler.compile_gluon(
            kernel,
            with_sequences(kernel, passed, of_sequences(problem, begins, begins)),
            variant.warps,
            arch,
            variant.tile.scores,
            compute_warps=WARPS,
            rewrite=True,
        )
        blocks = math.prod(own_blocks(problem, variant))
        order = "the last head first" if variant.line_of_block is not first_head_first else None
        iterations = tiles_visited(problem, variant.tile)
        return replace(compiled, blocks=blocks, kv_tiles=iterations, lists=order)


def rates(problem: Problem, variant: Variant) -> tuple[int, int]:
    """Pieces of rows that spare warps prepare, and scale, in an iteration, times 2^16: all are done in a head's."""
    rows = tiles_a_head(problem, variant.tile) * variant.tile.query
    iterations = tiles_visited(problem, variant.tile) // (problem.batch * problem.heads)
    return tuple(-(-(rows // piece << 16) // iterations) for piece in (variant.rows_prepared, variant.rows_scaled))


def section_for(heads: int, tiles: int) -> int:
    """Blocks of a section, about: of two sizes that with which the last section is nearer to a whole one.

    heads: of all batches; tiles: of keys. With many sections the last one hardly counts.
    """
    if heads * tiles > 3 * SECTION:
        return SECTION
    widths = {section: max(1, section // tiles) for section in (SECTION, LARGER_SECTION)}
    return max(widths, key=lambda section: (heads % widths[section] or widths[section]) / widths[section])


def heads_ahead(ahead: int, tiles: int) -> int:
    """By how many heads spare warps are ahead and behind, with so many tiles of keys (``spare.lines_ahead``)."""
    return max(2, ahead // tiles)


def parts_for(problem: Problem, tile) -> int:
    """How many blocks share a head's queries: as many as SMs are there for, each with ``LEAST_ROWS`` or more."""
    tiles = tiles_a_head(problem, tile)
    each = -(-tiles // max(1, PROCESSORS // (problem.batch * problem.kv_heads)))
    return -(-tiles // max(each, LEAST_ROWS // tile.query))


def lines_rounded(problem: Problem, variant: Variant) -> tuple[int, int]:
    """Heads of dQ, of dK and of dV whose sums a kernel of its own rounds, along two axes of a grid.

    All stand along the first or, where they are too many for it, the largest of their factors that is not.
    """
    heads = problem.batch * problem.heads
    if variant.spare:
        heads = heads_ahead(variant.ahead, own_blocks(problem, variant)[0])
    lines = (0 if variant.adding.complete else heads) + 2 * problem.batch * problem.kv_heads
    least = -(-lines // MOST_BLOCKS)
    second = next(n for n in range(least, lines + 1) if lines % n == 0)
    return lines // second, second


def of_equal_lengths(problem: Problem) -> Problem:
    """Packed sequences as if all were equally long: what is known of every call that a launch serves."""
    if problem.lengths is None:
        return problem
    count = len(problem.lengths)
    queries, keys = -(-problem.seq_len_q // count), -(-problem.seq_len_kv // count)
    return replace(problem, batch=count, seq_len_q=queries, seq_len_kv=keys, lengths=None, lengths_kv=None)


def own_blocks(problem: Problem, variant: Variant) -> tuple[int, int, int]:
    """Blocks that own keys; of packed sequences each may have one tile more than whole ones."""
    heads, rows = problem.heads if variant.sharing > 1 else problem.kv_heads, variant.tile.key * variant.key_tiles
    tiles = problem.seq_len_kv // rows + len(problem.lengths) if problem.lengths else -(-problem.seq_len_kv // rows)
    return tiles, heads * variant.parts, problem.batch


def of_sequences(problem: Problem, begins_q=None, begins_k=None) -> dict:
    """What kernels take of packed sequences, by the names of their parameters."""
    if problem.lengths is None:
        return {}
    return {"begins_q": begins_q, "begins_k": begins_k, "sequences": len(problem.lengths)}


def _launcher(kernel, blocks, passed: tuple, more: tuple, warps: int, device, moving: int, where: dict, **asked: bool):
    """As ``gluon_launcher``; the first ``moving`` arguments are tensors. where: ``of_sequences``, behind ``more``."""
    arguments = with_sequences(kernel, (*passed, *more), where)
    more = [n for n in range(len(passed), len(arguments)) if hasattr(arguments[n], "data_ptr")]
    return gluon_launcher(kernel, blocks, arguments, warps, device, (*range(moving), *more), **asked)


def with_sequences(kernel, passed: tuple, where: dict) -> tuple:
    """What a kernel is passed, and behind it what it takes of packed sequences, with None for what is between."""
    return (*passed, *(where.get(name) for name in kernel.arg_names[len(passed) :])) if where else passed


def arguments(q, k, v, do, numbers, sums, dk, dv, problem: Problem, padded: int, variant: Variant) -> tuple:
    """What a launch passes to ``fmha_backward`` in front of the variant; the scale is in base 2."""
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    tile = variant.tile
    tiles = partial(packed.described if variant.packed else described, columns=variant.head_dim, layout=variant.shared)
    if variant.adding.by_tma:
        sums = described(sums, variant.query_rows, variant.query_columns, variant.shared_sums)

    return (
        tiles(q, tile.query),
        tiles(k, tile.key),
        tiles(v, tile.key),
        tiles(do, tile.query),
        TensorDescriptor(numbers, list(numbers.shape), [padded, 1], [1, tile.query], variant.shared_numbers),
        sums,
        *(into if variant.adds_keys else tiles(into, tile.key) for into in (dk, dv)),
        problem.effective_scale / math.log(2),
        problem.seq_len_q,
        problem.seq_len_kv,
        problem.heads,
        problem.batch,
        padded,
    )
