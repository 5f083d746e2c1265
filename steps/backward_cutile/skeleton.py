"""A backward step in cuTile: the holes of the skeleton, and how its kernels are launched and compiled."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal

import cuda.tile as ct
from cuda.tile.compilation import KernelSignature, ScalarConstraint

from steps.backward_cutile import kernel
from steps.backward_cutile.variant import Variant
from steps.core import driver
from steps.core.fused import FusedStep, InCuTile, grid, hole
from steps.core.gradients import GradientStep, tiles_visited
from steps.core.rules import Rule, rule_for
from steps.core.step import target_of
from steps.core.tiles import BlockShape, Tile
from steps.core.work import Work, places
from steps.cutile.launching import Part, compiled_when_launched, launcher
from steps.cutile.skeleton import array, as_launched, power_of_two
from tutorial_lib.problem import Problem

Kernel = Literal["keys", "queries"]  # which blocks own
ROWS = Tile(64, 64)  # of the small kernels, whose blocks take as many queries
SMALL = BlockShape(ROWS)
OF_SINKS = BlockShape(Tile(2048, 64), warps=8)  # rows that a block of a head's sink loads at once


@dataclass(frozen=True, kw_only=True)
class CuTileGradients(GradientStep, InCuTile, FusedStep):
    """Kernels of ``steps.backward_cutile.kernel`` with these holes filled.

    weigh(scores, lse, scale) -> weights: what the softmax gave, from unscaled scores and the rows' log-sum-exp as
    ``of_rows`` loads it.
    of_rows: what a small kernel makes of each query before. d_query: who computes dQ. walks: how tiles are passed by.
    order(number, blocks): under a causal mask, which tile of queries a block owns.
    searched: tile, warps and blocks an SM are what a search found, where the launch rules have that.
    keys, queries: tile, warps and blocks an SM of the kernel whose blocks own keys, and of the one for dQ. None
    takes what the launch rules have (``steps.core.rules``).
    """

    weigh: Callable = hole()
    of_rows: kernel.Rows = hole(default=kernel.ROW_SUMS)
    d_query: kernel.OfQueries = hole(default=kernel.ORDERED_ATOMICS)
    walks: kernel.Walks = hole(default=kernel.ONE_LOOP)
    order: Callable = hole(default=kernel.as_numbered)
    searched: bool = hole(default=False)
    keys: BlockShape | None = hole(default=None, none="by the launch rule")
    queries: BlockShape | None = hole(default=None, none="by the launch rule")

    takes: ClassVar[tuple[str, ...]] = ("window", "softcap", "lengths", "sinks")
    shown: ClassVar[str] = "The kernel whose blocks own keys (steps/backward_cutile/kernel.py has the others)"

    def unsupported(self, problem: Problem, target: str) -> str | None:
        if reason := super().unsupported(problem, target):
            return reason
        if problem.lengths is not None and self.adds:
            return "takes packed sequences where dQ has a kernel of its own"
        if max(problem.seq_len_q, problem.seq_len_kv) * problem.heads * problem.head_dim >= 2**31:
            return "heads * seq_len * head_dim must be below 2^31 (cuTile holds strides in 32 bits)"
        return None

    def scratch_bytes(self, problem: Problem) -> int:
        """One or two numbers for each query, and dQ in float32 where it is added up."""
        queries = problem.batch * problem.heads * problem.seq_len_q
        return 4 * queries * (1 + self.prepared + (problem.head_dim if self.adds else 0))

    @property
    def adds(self) -> bool:
        """Whether blocks add to sums of others."""
        return not self.deterministic

    @property
    def deterministic(self) -> bool:
        return self.d_query.deterministic

    @property
    def prepared(self) -> bool:
        """Whether a small kernel makes the log-sum-exps as the large ones need them."""
        return self.of_rows is kernel.PREPARED

    def configured(self, problem: Problem, arch: str) -> CuTileGradients:
        """This step with the shapes of its blocks, by the launch rules where it says nothing itself."""
        shapes = {name: getattr(self, name) or self._rule(name, problem, arch).choice for name in ("keys", "queries")}
        return dataclasses.replace(self, **shapes)

    def _rule(self, name: Kernel, problem: Problem, arch: str) -> Rule:
        """The launch rule of a kernel."""
        tiles = self.in_tiles(problem)
        found = self.searched and rule_for(f"searched_{name}", tiles, arch)
        return found or rule_for(name, tiles, arch)

    def choices(self, problem: Problem, target: str) -> tuple[str, ...]:
        """Of the kernel whose blocks own keys, and of the one for dQ where there is one."""
        names = ("keys",) if self.adds else ("keys", "queries")
        shapes = [(getattr(self, name), self._rule(name, problem, target)) for name in names]
        return tuple(f"Own_{own.tile.query}x{own.tile.key}" if own else rule.told(target) for own, rule in shapes)

    def counted_kernels(self, problem: Problem) -> int:
        return 1 if self.adds else 2

    def variant(self, problem: Problem, tile: Tile, rows: int = 0) -> Variant:
        """The constants of a kernel; rows: of the tiles that its blocks own, where sequences are packed."""
        return Variant(
            weigh=self.weigh,
            of_rows=self.of_rows,
            d_query=self.d_query,
            walks=self.walks,
            order=self.order if problem.causal else kernel.as_numbered,
            tile=tile,
            head_dim=self.in_tiles(problem).head_dim,
            group_size=problem.group_size,
            causal=problem.causal,
            ragged=problem.lengths is not None or problem.seq_len_kv % tile.key != 0,
            ragged_queries=problem.lengths is not None or problem.seq_len_q % tile.query != 0,
            window=problem.window,
            softcap=problem.softcap,
            sequences=power_of_two(len(problem.lengths)) if problem.lengths else 0,
            rows=rows if problem.lengths else 0,
        )

    def work(self, problem: Problem, arch: str) -> Work:
        """What a launch has to do, most of which the kernel does whose blocks own keys."""
        step = self.configured(problem, arch)
        held = places(arch, step.keys.occupancy or 1, step.keys.cluster or 1)
        return Work.of_keys(problem, step.keys.tile, problem.kv_heads, held, self.in_tiles(problem).head_dim)

    def entry(self, problem: Problem, arch: str) -> tuple[Callable, dict]:
        return self.configured(problem, arch).kernel("keys", problem)[1], {}

    def make_ready(self, problem, tensors, out):
        return self.make_kernel_ready(self.entry(problem, target_of(tensors[0].device))[0], problem, tensors, out)

    def make_kernel_ready(self, function: Callable, problem: Problem, tensors, out):
        """As ``make_ready``, for a function of the kernel whose blocks own keys that is given."""
        import torch

        device, scale = tensors[0].device, problem.effective_scale
        step = self.configured(problem, target_of(device))
        own = [driver.places_like(x) for x in (*tensors[:3], *tensors[6:])]

        def scaled_last(*tensors) -> tuple:
            """The scale behind all but where sequences begin."""
            end = len(tensors) - len(begins)
            return *tensors[:end], scale, *tensors[end:]

        # Of a call: its tensors, the gradients, (dsinks, sinks), where packed sequences begin, and zeros, where dQ is
        # added up; behind them what rows are made ready.
        q, k, v, o, lse, do, dq, dk, dv, *of_sinks = range(11 if problem.sinks else 9)
        behind = 9 + len(of_sinks)
        begins = (behind, behind + 1) if problem.lengths else ()
        added = [behind + len(begins)] if step.adds else []
        row_sum = behind + len(begins) + len(added)
        ready_lse = row_sum + 1
        of_rows, read = (o, do, row_sum), (q, k, v, do, lse, row_sum)
        if step.prepared:
            of_rows, read = (o, do, lse, row_sum, ready_lse), (q, k, v, do, ready_lse, row_sum)
        rows, variant = (-(-problem.seq_len_q // ROWS.query), problem.heads, problem.batch), step.variant(problem, ROWS)
        blocks, _, shape = step.kernel("keys", problem)
        parts = [
            Part(rows, _of_rows(step.of_rows, variant), SMALL, lambda *tensors: tensors, of_rows),
            Part(blocks, function, shape, scaled_last, (*read, *added, dk, dv, *begins)),
        ]
        if step.adds:
            parts.append(Part(rows, _scaled(variant), SMALL, scaled_last, (*added, dq)))
        else:
            parts.append(Part(*step.kernel("queries", problem), scaled_last, (*read, dq, *begins)))
        if problem.sinks:
            function, numbers = _gradient_of_sinks(step.variant(problem, OF_SINKS.tile)), read[4:]
            parts.append(Part((problem.heads, 1, 1), function, OF_SINKS, lambda *x: x, (*of_sinks, *numbers)))

        line = driver.places_like(tensors[4])
        run = launcher(parts, device, lambda: (line(), line()) if step.prepared else (line(),))

        def launch(q, k, v, o, lse, do, out, *more):
            gradients = out or tuple(place() for place in own)
            sums = (torch.zeros_like(q, dtype=torch.float32, memory_format=torch.contiguous_format),) if added else ()
            run(q, k, v, o, lse, do, *gradients, *more, *sums)
            return gradients

        return launch

    def kernel(self, name: Kernel, problem: Problem) -> tuple[tuple[int, int, int], Callable, BlockShape]:
        """The kernel whose blocks own keys, or queries: how many blocks, the function, and how it is compiled."""
        if name == "keys":
            tile = self.keys.tile
            tiles = -(-problem.seq_len_kv // tile.key)
            if problem.lengths is not None:  # each may need one more than whole ones
                tiles = problem.seq_len_kv // tile.key + len(problem.lengths)
            blocks = (tiles, problem.kv_heads, problem.batch)
            return blocks, _gradients_of_keys(self.variant(problem, tile, tile.key)), self.keys
        tile = self.queries.tile
        return grid(problem, tile), _gradients_of_queries(self.variant(problem, tile, tile.query)), self.queries

    def compile(self, problem, arch="sm_90"):
        """The kernel for keys. Where dQ has a kernel of its own it is one of two, and no model of the step."""
        self.refuse(problem, arch)
        return self.compile_kernel(self.entry(problem, arch)[0], problem, arch)

    def compile_kernel(self, function: Callable, problem: Problem, arch: str):
        """As ``compile``, for a function of that kernel that is given."""
        self.refuse(problem, arch)
        step = self.configured(problem, arch)
        compiled = step.compile_one("keys", problem, arch, function)
        if self.adds:
            blocks = math.prod(step.kernel("keys", problem)[0])
            return dataclasses.replace(compiled, blocks=blocks, kv_tiles=tiles_visited(problem, step.keys.tile))
        return dataclasses.replace(compiled, other_kernels=(step.compile_one("queries", problem, arch).code,))

    def compile_one(self, name: Kernel, problem: Problem, arch: str, function: Callable | None = None):
        """The kernel whose blocks own keys, or queries, compiled; function: another one in its place."""
        from tutorial_lib import compiler

        _, own, shape = self.kernel(name, problem)
        function = function or own
        parameters = signature(name, problem, self.adds)
        warps = shape.warps or compiler.COMPUTE_WARPS
        kernel = compiled_when_launched(function, shape)
        return compiler.compile_cutile(kernel, parameters, arch, shape.tile.scores, warps)


def signature(name: Kernel, problem: Problem, adds: bool) -> KernelSignature:
    """The parameters of a kernel, as a launch on contiguous tensors of ``problem`` would compile it for."""
    dtype, rows = getattr(ct, problem.dtype), (problem.batch, problem.heads, problem.seq_len_q)
    queries = array((*rows, problem.head_dim), dtype)
    keys = array((problem.batch, problem.kv_heads, problem.seq_len_kv, problem.head_dim), dtype)
    numbers = array(rows, ct.float32)
    written = [queries]
    if name == "keys":
        written = [array((*rows, problem.head_dim), ct.float32)] * adds + [keys, keys]
    begins = [array((len(problem.lengths) + 1,), ct.int32)] * 2 if problem.lengths else []
    parameters = [queries, keys, keys, queries, numbers, numbers, *written, ScalarConstraint(ct.float32), *begins]
    return as_launched("fmha_backward", parameters)


@cache
def _of_rows(of_rows: kernel.Rows, variant: Variant) -> Callable:
    return of_rows.kernel(variant)


@cache
def _gradients_of_keys(variant: Variant) -> Callable:
    return variant.d_query.kernel(variant)


_scaled = cache(kernel.make_scaled)
_gradient_of_sinks = cache(kernel.make_gradient_of_sinks)
_gradients_of_queries = cache(kernel.make_gradients_of_queries)
