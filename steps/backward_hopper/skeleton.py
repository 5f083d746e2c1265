"""A backward step for Hopper: the holes of the skeleton, and how its kernels are launched and compiled."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

from steps.backward_hopper.halves import axis_of, ready_in_halves
from steps.backward_hopper.kernel import fmha_backward
from steps.backward_hopper.rows import prepare, scaled
from steps.backward_hopper.variant import BY_TMA, WARPS, Adding, Variant, heads_ahead, make_variant, rule_of
from steps.core.fused import FusedStep, hole, too_long_to_simulate
from steps.core.gradients import GradientStep, tiles_visited
from steps.core.launch import gluon_launcher
from steps.core.order import tiles_a_head
from steps.core.step import DEFAULT_ARCH
from steps.gluon.tensors import contiguous_copy
from steps.hopper.launching import describable
from tutorial_lib import compiler
from tutorial_lib.problem import Problem

ROW_WARPS = 4  # of the small kernels


@dataclass(frozen=True, kw_only=True)
class HopperGradients(GradientStep, FusedStep):
    """Kernels for sm_90 in Gluon: ``steps.backward_hopper.kernel.fmha_backward`` with these holes filled.

    under_way: products are under way while others are waited for.
    adding: how a block adds its part of dQ: a lane's numbers in "pairs" or "fours"; by TMA, "reduction", and as fours
    by TMA, "reduction_of_fours". At head_dim 256 shared memory has no room for dQ, and it is added by fours, without
    TMA.
    parts: whether the two warp groups compute together, or each for itself.
    in_turn: blocks add to dQ always in the same order, for the same bits every time. Takes parts that are apart.
    sections: under a causal mask, blocks begin in sections of heads, and of a section the longest first; not where a
    block has several query heads. Blocks in turn begin so without a mask, and of a section those with the first keys.
    alternate: warp groups that are apart compute weights and dS one at a time, at head_dim 128; at others nothing
    changes. Takes parts that are apart.
    two_streams: a call that is large enough is launched in two halves, on two streams (``halves``).
    last_scales: the last block of a head scales dQ (``last``); not with grouped heads. Takes parts that are apart and
    add fours by TMA, not in turn, and calls that stay whole.
    adder: a warp of its own adds dQ in turn, where TMA adds; at head_dim 256 nothing changes. Takes in_turn.
    two_adders: two such warps, each of which adds every other tile; at head_dim 256 a warp for each part that passes
    tiles on, to which the part has added. Takes adder.
    spare_warps: warps of the producer's warp group that have nothing to do prepare rows of later heads, and scale dQ of
    earlier ones (``spare``), where there are heads enough, and blocks enough for each tile of queries; not with grouped
    heads, unless these are apart. Takes the same, and not last_scales.
    heads_apart: with grouped heads a block has one query head, and not all of a group, where it takes turns enough for
    it, and adds to dK and dV of the kv head: these differ in their last bits from call to call, too. At head_dim 256
    nothing changes. Takes the same.
    freed_together: the place of dS is free when that of dO is, with one barrier for both. Takes parts that are apart;
    at head_dim 256 nothing changes.
    keys_kept: parts keep K in registers, too, at head_dim 64; without a mask half of its columns at head_dim 128, where
    spare warps then have fewer registers, and do fewer rows at a time. Takes the same.
    zeros_ahead: where spare warps cannot keep pace, one lets TMA clear the sums of later heads. Takes spare_warps; at
    head_dim 256 nothing changes.
    whole_lines: at head_dim 256 eight lanes have 128 bytes of a row of dQ when it is added. Takes fours.
    early: a kernel of a call begins before the one before it has ended, and waits for that where it needs to. Takes
    last_scales=False.
    newest_first: small kernels begin with the last head, not with the first.
    fence_behind: a warp group asks for the products that it can before the fence behind its dS, and not after. Takes
    parts that are apart; at head_dim 256 nothing changes.
    from_row_sums: at head_dim 128 the product for the weights' gradient begins with minus the row sums. Takes the same.
    added_later: at head_dim 64 without a mask TMA is asked to add dQ when the next scores are under way. Takes the
    same, and not in_turn.

    Raises ValueError for values that do not go together.
    """

    under_way: bool = hole(default=False)
    adding: Adding = hole(default="pairs")
    parts: Literal[1, 2] = hole(default=1)
    in_turn: bool = hole(default=False)
    sections: bool = hole(default=False)
    alternate: bool = hole(default=False)
    two_streams: bool = hole(default=False)
    last_scales: bool = hole(default=False)
    adder: bool = hole(default=False)
    two_adders: bool = hole(default=False)
    spare_warps: bool = hole(default=False)
    heads_apart: bool = hole(default=False)
    freed_together: bool = hole(default=False)
    keys_kept: bool = hole(default=False)
    zeros_ahead: bool = hole(default=False)
    whole_lines: bool = hole(default=False)
    early: bool = hole(default=False)
    newest_first: bool = hole(default=False)
    fence_behind: bool = hole(default=False)
    from_row_sums: bool = hole(default=False)
    added_later: bool = hole(default=False)

    backend: ClassVar[str] = "hopper"
    shown: ClassVar[str] = (
        "The kernel whose blocks own keys (steps/backward_hopper/rows.py has the small ones around it)"
    )
    head_dims: ClassVar[tuple[int, ...]] = (32, 64, 128, 256)

    def __post_init__(self):
        if self.in_turn and self.parts == 1:
            raise ValueError("in_turn takes parts=2: where warp groups compute together dQ is added in another way")
        if self.parts > 1 and self.adding not in BY_TMA:
            raise ValueError(f"parts=2 takes adding {' or '.join(map(repr, BY_TMA))}, got {self.adding!r}")
        if self.alternate and self.parts == 1:
            raise ValueError("alternate takes parts=2: there is nobody else to take turns with")
        for name in ("freed_together", "keys_kept", "fence_behind", "from_row_sums", "added_later"):
            if getattr(self, name) and self.parts == 1:
                raise ValueError(f"{name} takes parts=2: it is about warp groups that compute each for itself")
        if self.whole_lines and self.adding not in ("fours", "reduction_of_fours"):
            raise ValueError(f'whole_lines takes adding "fours" or "reduction_of_fours", got {self.adding!r}')
        if self.added_later and self.in_turn:
            raise ValueError("added_later takes in_turn=False: who adds in turn does not wait for a later one")
        if self.zeros_ahead and not self.spare_warps:
            raise ValueError("zeros_ahead takes spare_warps=True: of these one clears")
        fits = self.parts == 2 and self.adding == "reduction_of_fours" and not (self.in_turn or self.two_streams)
        if self.last_scales and not fits:
            raise ValueError('last_scales takes parts=2, adding="reduction_of_fours", in_turn and two_streams=False')
        if self.early and self.last_scales:
            raise ValueError("early takes last_scales=False: a block that takes no turn would count too early")
        if self.adder and not self.in_turn:
            raise ValueError("adder takes in_turn=True: elsewhere nobody waits for a turn to add")
        if self.two_adders and not self.adder:
            raise ValueError("two_adders takes adder=True: it is a second one")
        for name in ("spare_warps", "heads_apart"):
            if getattr(self, name) and (self.last_scales or not fits):
                wanted = "in_turn, two_streams and last_scales=False"
                raise ValueError(f'{name} takes parts=2, adding="reduction_of_fours", {wanted}')

    def unsupported(self, problem: Problem, target: str) -> str | None:
        if reason := super().unsupported(problem, target):
            return reason
        if target not in ("sm_90", "cpu"):
            return f"made of wgmma, which sm_90 alone has, not {target}"
        if rule_of(self.parts, problem) is None:
            return f"its two warp groups compute together, which has no tile for head_dim {problem.head_dim}"
        return None

    @property
    def deterministic(self) -> bool:
        return self.in_turn

    def scratch_bytes(self, problem: Problem) -> int:
        """Two numbers for each query, what is added up in float32, and what blocks count for each other."""
        rows = problem.batch * problem.heads * self.padded(problem)
        of_keys = math.prod(self.key_sums(problem))
        return 4 * (rows * (2 + problem.head_dim) + of_keys + self.number_of_counts(problem))

    def key_sums(self, problem: Problem) -> tuple[int, ...]:
        """The shape of dK and dV in float32 where query heads add to them, with keys to the end of the last tile."""
        variant = self.variant(problem)
        keys = own_blocks(problem, variant)[0] * variant.tile.key
        return 2 if variant.sharing > 1 else 0, problem.batch, problem.kv_heads, keys, problem.head_dim

    def number_of_counts(self, problem: Problem) -> int:
        """Numbers in global memory that blocks count up: of each part's tiles of queries, or up to two of each head."""
        variant = self.variant(problem)
        if variant.ahead:
            return (1 if variant.clears else 2) * problem.batch * problem.heads
        tiles = self.padded(problem) // variant.tile.query
        return variant.parts * problem.batch * problem.heads * tiles if variant.counts else 0

    def padded(self, problem: Problem) -> int:
        """Queries of a head, to the end of the last tile."""
        tile = self.variant(problem).tile.query
        return -(-problem.seq_len_q // tile) * tile

    def choices(self, problem: Problem, target: str) -> tuple[str, ...]:
        """Of the kernel whose blocks own keys."""
        return (rule_of(self.parts, problem).name,)

    def counted_kernels(self, problem: Problem) -> int:
        return 1 if self._cut(problem) is None else 2

    def variant(self, problem: Problem, arch: str = DEFAULT_ARCH) -> Variant:
        """The constants that ``problem`` is compiled with."""
        return make_variant(
            problem,
            under_way=self.under_way,
            adding=self.adding,
            parts=self.parts,
            in_turn=self.in_turn,
            sections=self.sections,
            alternate=self.alternate,
            last_scales=self.last_scales,
            adder=self.adder,
            two_adders=self.two_adders,
            spare_warps=self.spare_warps,
            heads_apart=self.heads_apart,
            freed_together=self.freed_together,
            keys_kept=self.keys_kept,
            zeros_ahead=self.zeros_ahead,
            whole_lines=self.whole_lines,
            early=self.early,
            newest_first=self.newest_first,
            fence_behind=self.fence_behind,
            from_row_sums=self.from_row_sums,
            added_later=self.added_later,
        )

    def too_long_on_cpu(self, problem: Problem) -> str | None:
        return too_long_to_simulate(problem, self.variant(problem).tile)

    def entry(self, problem: Problem, arch: str):
        variant = self.variant(problem)
        missing = () if variant.spare else ("AllNumbers", "Out", "AllDO", "LSE", "strides", "rates")
        missing = missing if variant.last_scales or variant.spare else ("AllSums", "DQ", *missing)
        missing = missing if variant.counts else ("Turns", *missing)
        return fmha_backward, {"variant": variant, **dict.fromkeys(missing)}

    def make_ready(self, problem, tensors, out):
        return self.make_kernel_ready(fmha_backward, problem, tensors, out, self.variant(problem))

    def make_kernel_ready(self, kernel, problem: Problem, tensors, out, *constants):
        """As ``make_ready``, for a kernel that is given, and takes ``constants`` behind what all of them take."""
        import torch

        fits = [describable(x) for x in (*tensors[:4], tensors[5])]
        into = [out is not None and describable(x) for x in (out or ())] or [False] * 3
        if into[0] and self.variant(problem).last_scales:
            into[0] = out[0].is_contiguous()

        def fitted(q, k, v, o, do):
            """The tensors as TMA takes them, or copies."""
            if all(fits):
                return q, k, v, o, do
            return [x if fit else contiguous_copy(x) for x, fit in zip((q, k, v, o, do), fits, strict=True)]

        def places(q, k, v, out):
            """Where dQ, dK and dV are written."""
            like = (q, k, v)
            return [
                out[n] if into[n] else torch.empty_like(like[n], memory_format=torch.contiguous_format)
                for n in range(3)
            ]

        q, k, v, o, do = fitted(*tensors[:4], tensors[5])
        make, axis = partial(self._kernels_ready, kernel, constants), self._cut(problem)
        given = (q, k, v, o, tensors[4], do, *places(q, k, v, out))
        run = make(problem, given) if axis is None else ready_in_halves(make, problem, given, axis)

        def launch(q, k, v, o, lse, do, out):
            q, k, v, o, do = fitted(q, k, v, o, do)
            made = places(q, k, v, out)
            run(q, k, v, o, lse, do, *made)
            if out is None:
                return tuple(made)
            return tuple(place if place is x else place.copy_(x) for place, x in zip(out, made, strict=True))

        return launch

    def _cut(self, problem: Problem) -> int | None:
        """The axis along which a call is cut in halves; None where it stays whole."""
        return axis_of(problem, math.prod(own_blocks(problem, self.variant(problem)))) if self.two_streams else None

    def _kernels_ready(self, kernel, constants: tuple, problem: Problem, tensors: tuple):
        """``run(q, k, v, o, lse, do, dq, dk, dv)`` launches the kernels; tensors: those of the first call."""
        import torch

        q, k, v, o, lse, do, dq, dk, dv = tensors
        device, variant, padded = q.device, self.variant(problem), self.padded(problem)
        counts, lines = self.number_of_counts(problem), problem.batch * problem.heads
        tiles = padded // variant.tile.query

        shape, of_keys = (problem.batch, problem.heads, padded, problem.head_dim), self.key_sums(problem)

        def scratch():
            """Numbers of each query, sums for dQ, those for dK and dV where there are, and what blocks count."""
            numbers = torch.empty((2 * lines, padded), dtype=torch.float32, device=device)
            sums = torch.empty(math.prod(shape) + math.prod(of_keys), dtype=torch.float32, device=device)
            sums, key_sums = sums[: math.prod(shape)].view(shape), sums[math.prod(shape) :].view(of_keys)
            return numbers, sums, key_sums, ((torch.empty(counts, dtype=torch.int32, device=device),) if counts else ())

        numbers, sums, key_sums, counted = scratch()
        rows, first_line = (tiles, problem.heads, problem.batch), 0
        cleared = heads_ahead(variant, own_blocks(problem, variant)[0]) if variant.ahead else lines  # by a kernel
        if variant.spare:  # kernels of their own have as many heads as are prepared, and scaled, by nobody else
            rows, first_line = (tiles, 1, cleared), lines - cleared
        strides = (o.stride()[:3], do.stride()[:3], lse.stride())
        sizes = (problem.seq_len_q, padded, problem.heads)
        pieces = math.prod(of_keys) // (variant.tile.query * problem.head_dim)
        passed = (o, do, lse, numbers, sums, *strides, *sizes, problem.batch, counts, pieces, cleared, variant)
        preparing = _launcher(prepare, rows, passed, counted, ROW_WARPS, device, 5, overtaken=variant.early)
        blocks = own_blocks(problem, variant)
        into = key_sums if variant.sharing > 1 else (dk, dv)
        passed = (*arguments(q, k, v, do, numbers, sums, *into, problem, padded, variant), *constants)

        def beyond(o, lse, do, dq, numbers, sums, counted):
            """What the kernel whose blocks own keys takes behind its constants."""
            if variant.spare:
                return *counted, sums, dq, numbers, o, do, lse
            return (*counted, sums, dq) if variant.last_scales else counted

        more = beyond(o, lse, do, dq, numbers, sums, counted)
        kept = ((*strides, dq.stride()[:3]), rates(problem, variant)) if variant.spare else ()
        multiplying = _launcher(
            kernel, blocks, passed, more, variant.warps, device, 8, kept,
            early=variant.early, overtaken=variant.early, rewrite=True,
        )  # fmt: skip

        def scaled_launcher(blocks, summed, x, scale, *of, last: bool):
            """Of ``scaled``. last: of the call's kernels."""
            passed = (summed, x, x.stride()[:3], scale, *of, not last)
            how = {"early": variant.early, "overtaken": variant.early and not last}
            return _launcher(scaled, blocks, passed, (), ROW_WARPS, device, 2, **how)

        scaling = None
        if not variant.last_scales:
            of = (*sizes, first_line, variant, False)
            scaling = scaled_launcher(rows, sums, dq, problem.effective_scale, *of, last=variant.sharing == 1)
        rounding = []  # dK and dV, where they were added up
        for summed, x, scale in zip(key_sums, (dk, dv), (problem.effective_scale, 1.0)):
            of = (problem.seq_len_kv, of_keys[3], problem.kv_heads, 0, variant, True)
            rows_of_keys = (of_keys[3] // variant.tile.query, problem.kv_heads, problem.batch)
            rounding.append(scaled_launcher(rows_of_keys, summed, x, scale, *of, last=len(rounding) == 1))

        def run(q, k, v, o, lse, do, dq, dk, dv):
            numbers, sums, key_sums, counted = scratch()
            preparing(o, do, lse, numbers, sums, *counted)
            into = key_sums if rounding else (dk, dv)
            multiplying(q, k, v, do, numbers, sums, *into, *beyond(o, lse, do, dq, numbers, sums, counted))
            if scaling is not None:
                scaling(sums, dq)
            for launch, summed, x in zip(rounding, key_sums, (dk, dv)):
                launch(summed, x)

        return run

    def compile(self, problem, arch="sm_90"):
        """The kernel whose blocks own keys."""
        self.refuse(problem, arch)  # before its variant is asked for, which there may be none of
        return self.compile_kernel(fmha_backward, problem, arch, self.variant(problem))

    def compile_kernel(self, kernel, problem: Problem, arch: str, *constants):
        """As ``compile``, for a kernel that is given: see ``make_kernel_ready``."""
        self.refuse(problem, arch)
        variant, padded = self.variant(problem), self.padded(problem)
        queries = (problem.batch, problem.heads, problem.seq_len_q, problem.head_dim)
        keys = (problem.batch, problem.kv_heads, problem.seq_len_kv, problem.head_dim)
        q, k = compiler.Placeholder(queries, problem.dtype), compiler.Placeholder(keys, problem.dtype)
        numbers = compiler.Placeholder((2 * problem.batch * problem.heads, padded), "float32")
        sums = compiler.Placeholder((problem.batch, problem.heads, padded, problem.head_dim), "float32")
        into = compiler.Placeholder(self.key_sums(problem)[1:], "float32") if variant.sharing > 1 else k
        more = (compiler.Placeholder((1,), "int32"),) if variant.counts else ()
        if variant.last_scales:
            more = (*more, sums, q)
        if variant.spare:
            lse = compiler.Placeholder((problem.batch, problem.heads, problem.seq_len_q), "float32")
            strides = (q.stride()[:3], q.stride()[:3], lse.stride(), q.stride()[:3])
            more = (*more, sums, q, numbers, q, q, lse, strides, rates(problem, variant))
        compiled = compiler.compile_gluon(
            kernel,
            (*arguments(q, k, k, q, numbers, sums, into, into, problem, padded, variant), *constants, *more),
            variant.warps,
            arch,
            variant.tile.scores,
            compute_warps=WARPS,
            rewrite=True,
        )
        blocks = math.prod(own_blocks(problem, variant))
        again = () if self._cut(problem) is None else (compiled.code,)  # it is launched twice
        order = "the last head first" if variant.newest_first else None
        turns = tiles_visited(problem, variant.tile)
        return replace(compiled, blocks=blocks, kv_tiles=turns, other_kernels=again, lists=order)


def rates(problem: Problem, variant: Variant) -> tuple[int, int]:
    """Pieces of rows that spare warps prepare, and scale, in a turn, times 2^16, such that all are done in a head's."""
    rows = tiles_a_head(problem, variant.tile) * variant.tile.query
    turns = tiles_visited(problem, variant.tile) // (problem.batch * problem.heads)
    return tuple(-(-(rows // of_piece << 16) // turns) for of_piece in (variant.rows_prepared, variant.rows_scaled))


def own_blocks(problem: Problem, variant: Variant) -> tuple[int, int, int]:
    """Blocks that own keys."""
    heads = problem.heads if variant.sharing > 1 else problem.kv_heads
    return -(-problem.seq_len_kv // variant.tile.key), heads, problem.batch


def _launcher(
    kernel, blocks, passed: tuple, more: tuple, warps: int, device, moving: int, kept: tuple = (), **asked: bool
):
    """As ``gluon_launcher``; the first ``moving`` arguments are tensors, and so are ``more``, before ``kept``."""
    moving = (*range(moving), *range(len(passed), len(passed) + len(more)))
    return gluon_launcher(kernel, blocks, (*passed, *more, *kept), warps, device, moving, **asked)


def arguments(q, k, v, do, numbers, sums, dk, dv, problem: Problem, padded: int, variant: Variant) -> tuple:
    """What a launch passes to ``fmha_backward`` in front of the variant; the scale is in base 2."""
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    tile, head_dim = variant.tile, problem.head_dim

    def described(x, rows: int, columns: int = head_dim, layout=variant.shared):
        # A stride along an axis of length 1 is never used, and may be anything but what TMA takes.
        strides = [stride if n > 1 else head_dim for stride, n in zip(x.stride()[:3], x.shape)]
        return TensorDescriptor(x, list(x.shape), [*strides, 1], [1, 1, rows, columns], layout)

    if variant.by_tma:
        sums = described(sums, variant.query_rows, variant.query_columns, variant.shared_sums)

    return (
        described(q, tile.query),
        described(k, tile.key),
        described(v, tile.key),
        described(do, tile.query),
        TensorDescriptor(numbers, list(numbers.shape), [padded, 1], [1, tile.query], variant.shared_numbers),
        sums,
        *(into if variant.sharing > 1 else described(into, tile.key) for into in (dk, dv)),
        problem.effective_scale / math.log(2),
        problem.seq_len_q,
        problem.seq_len_kv,
        problem.heads,
        problem.batch,
        padded,
    )
