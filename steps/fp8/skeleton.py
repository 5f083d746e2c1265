"""An fp8 step for Hopper: which pieces its kernel is made of, and how it is launched."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from steps.core.driver import places_like
from steps.core.fused import FusedStep, grid, hole, tiles_visited, too_long_to_simulate
from steps.core.launch import empty_lse, gluon_launcher, in_a_row
from steps.core.order import DEALT, Order
from steps.core.quantized import QuantizedStep
from steps.core.rules import rule_for
from steps.core.step import DEFAULT_ARCH
from steps.core.tiles import Tile
from steps.core.work import Work, places
from steps.fp8 import kernel, transpose
from steps.fp8.products import IN_BFLOAT16, IN_TENSOR_CORES, ProductSums, Values
from steps.fp8.variant import HELD, Variant
from steps.gluon.tensors import contiguous_copy, shapes
from steps.hopper import lib
from steps.hopper.launching import describable, described
from steps.hopper.variant import GROUP_WARPS, ROWS
from tutorial_lib import compiler
from tutorial_lib.problem import Problem

ALIGNED = 16  # elements: what TMA wants of a stride, and of head_dim
WIDEST_16_BITS = 128  # head_dim up to which shared memory holds tiles of V in bfloat16 beside the others
STAGES = 2  # tiles of keys, and of values, that shared memory holds


@dataclass(frozen=True, kw_only=True)
class Fp8Step(QuantizedStep, FusedStep):
    """A fused kernel for sm_90 in Gluon that takes fp8, with these holes filled.

    values: how V and the weights come to the PV product. product_sums: how its sums are kept. offset: of the weights,
    in base 2. warpgroups: how many compute, 2 or 3. turns: in which order they issue products. hold: whether the warps
    of a group meet, and what holds the order of instructions. order: which block computes which tiles of queries.
    """

    values: Values = hole(default=IN_BFLOAT16)
    product_sums: ProductSums = hole(told=False, by_problem=True, default=IN_TENSOR_CORES)
    offset: int = hole(told=False, default=0)
    warpgroups: int = hole(told=False, by_problem=True, default=2)
    turns: lib.Turns = hole(told=False, default=lib.NO_TURNS)
    hold: lib.Hold = hole(told=False, default=HELD)
    order: Order = hole(told=False, default=DEALT)

    backend: ClassVar[str] = "hopper"
    architectures: ClassVar[tuple[str, ...]] = (DEFAULT_ARCH,)
    elsewhere: ClassVar[str] = f"made of wgmma, which {DEFAULT_ARCH} alone has, not {{}}"
    head_dims: ClassVar[tuple[int, ...]] = (64, 128, 256)
    pads_head_dim: ClassVar[bool] = True

    def unsupported(self, problem: Problem, target: str) -> str | None:
        if problem.fp8 and problem.head_dim % ALIGNED:
            return f"head_dim must be a multiple of {ALIGNED} up to {self.head_dims[-1]}, got {problem.head_dim}"
        if problem.fp8 and problem.head_dim > WIDEST_16_BITS and not self.values.transposed:
            return f"head_dim must be at most {WIDEST_16_BITS}, as V in 16 bits takes room, got {problem.head_dim}"
        return super().unsupported(problem, target)

    @property
    def offset_of_weights(self) -> int:
        return self.offset

    def sums_in_tensor_cores(self, problem: Problem) -> bool:
        its = self.for_problem(problem)
        return its.values.transposed and its.product_sums == IN_TENSOR_CORES

    def choices(self, problem: Problem, target: str) -> tuple[str, ...]:
        return (rule_for("fp8", self.in_tiles(problem), DEFAULT_ARCH).name,)

    def variant(self, problem: Problem, arch: str = DEFAULT_ARCH) -> Variant:
        """The constants that ``problem`` is compiled with, and the pieces."""
        step, problem = self.for_problem(problem), self.in_tiles(problem)
        tile = Tile(step.warpgroups * ROWS, rule_for("fp8", problem, DEFAULT_ARCH).choice.tile.key)
        return Variant(
            tile=tile,
            head_dim=problem.head_dim,
            group_size=problem.group_size,
            causal=problem.causal,
            ragged=problem.seq_len_kv % tile.key != 0,
            warpgroups=step.warpgroups,
            stages=STAGES,
            query_stages=1 if problem.head_dim > 128 else 2,
            schedule=lib.LISTS,
            values=step.values,
            product_sums=step.product_sums,
            offset=step.offset,
            turns=step.turns,
            hold=step.hold,
        )

    def work(self, problem: Problem, arch: str) -> Work:
        """What a launch has to do."""
        tile = self.variant(problem).tile
        return Work.of_queries(problem, tile, places(arch), True, tile, self.in_tiles(problem).head_dim)

    def too_long_on_cpu(self, problem: Problem) -> str | None:
        return too_long_to_simulate(problem, self.variant(problem).tile)

    def scratch_bytes(self, problem: Problem) -> int:
        """V as the kernel reads it."""
        return math.prod(self.shape_of_value(problem)) * self.values.bits // 8

    def shape_of_value(self, problem: Problem) -> tuple[int, ...]:
        """Of V as the kernel reads it."""
        shape = problem.batch, problem.kv_heads, problem.seq_len_kv, problem.head_dim
        return (*shape[:2], shape[3], _up(shape[2])) if self.values.transposed else shape

    def dtype_of_value(self, problem: Problem) -> str:
        """Of V as the kernel reads it."""
        return problem.dtype if self.values.transposed else "bfloat16"

    def entry(self, problem: Problem, arch: str):
        return kernel.fmha, {"variant": self.variant(problem), "LSE": None}

    def beside_the_kernel(self, problem: Problem, arch: str) -> tuple:
        """The lists that blocks read, and what is done with V before."""
        return self.order, self.values.order

    def make_ready(self, problem, tensors, out, dtype, return_lse=False):
        variant = replace(self.variant(problem), lse=return_lse)
        return self.make_kernel_ready(kernel.fmha, problem, tensors, out, dtype, variant, return_lse=return_lse)

    def make_kernel_ready(self, function, problem: Problem, tensors, out, dtype, *constants, return_lse: bool = False):
        """As ``make_ready``, for a kernel that is given, and takes ``constants`` behind what all of them take."""
        import torch

        variant = self.variant(problem)
        q, k, v = tensors[:3]
        device, into_out = q.device, out is not None and describable(out)
        o = out if into_out else torch.empty(q.shape, dtype=dtype, device=device)
        make_out = places_like(o)
        lse = empty_lse(q) if return_lse else None
        make_lse = places_like(lse) if return_lse else None
        dtype_of_value = getattr(torch, self.dtype_of_value(problem))
        value = torch.empty(self.shape_of_value(problem), dtype=dtype_of_value, device=device)
        fitted = [x if describable(x) else contiguous_copy(x) for x in (q, k)]
        as_they_are = all(a is b for a, b in zip(fitted, (q, k)))
        blocks, order = self.order.blocks(problem, variant.tile, device)
        passed = (
            *arguments(*fitted, value, o, tensors[3:], problem, order, variant),
            *constants,
            *([lse] if return_lse else ()),
        )
        moving = (*range(7), *([len(passed) - 1] if return_lse else ()))
        launcher = partial(gluon_launcher, device=device, simulated=self.made_for)
        run = launcher(
            function,
            (blocks, 1, 1),
            passed,
            variant.warps,
            moving=moving,
            rewrite=variant.rewrite,
            early=variant.values.transposed,
        )  # beside the kernel that transposes V, until V is needed
        last = 8 if return_lse else 7  # position of V as the kernel reads it
        taken = [0, 1, last, *range(3, last)]
        if variant.values.order is None:

            def attend(*given):
                given = *given, given[2].to(torch.bfloat16, memory_format=torch.contiguous_format)
                run(*[given[n] for n in taken])
        else:
            turned = (-(-value.shape[3] // transpose.KEYS.value), problem.kv_heads, problem.batch)
            passed = (
                v,
                v.stride(),
                value,
                problem.seq_len_kv,
                problem.kv_heads,
                value.shape[3],
                problem.head_dim,
                transpose.Constants(variant.head_dim, variant.values.order),
            )
            turn = launcher(transpose.transpose, turned, passed, transpose.WARPS.value, moving=(0, 2), overtaken=True)
            make_value = places_like(value)
            attend = in_a_row([(turn, [2, last]), (run, taken)], lambda: (make_value(),), device)

        def launch(q, k, v, q_scale, k_scale, v_scale, out):
            if not as_they_are:
                q, k = (x if describable(x) else contiguous_copy(x) for x in (q, k))
            o = out if into_out else make_out()
            more = (make_lse(),) if return_lse else ()
            attend(q, k, v, o, q_scale, k_scale, v_scale, *more)
            o = o if out is None or o is out else out.copy_(o)
            return (o, *more) if return_lse else o

        return launch

    def compile(self, problem, arch=None):
        arch = arch or self.made_for
        self.refuse(problem, arch)
        return self.compile_kernel(kernel.fmha, problem, arch, self.variant(problem))

    def compile_kernel(self, function, problem: Problem, arch: str, *constants):
        """As ``compile``, for a kernel that is given, and takes ``constants`` behind what is passed to all of them."""
        self.refuse(problem, arch)
        variant = self.variant(problem)
        queries, keys, _, _ = shapes(problem)
        value = compiler.Placeholder(self.shape_of_value(problem), self.dtype_of_value(problem))
        q, k = (compiler.Placeholder(shape, problem.dtype) for shape in (queries, keys))
        o = compiler.Placeholder(queries, "bfloat16")
        scales = [compiler.Placeholder(keys[:2], "float32")] * 3
        lists = [compiler.Placeholder((1,), "int32")] * 2
        compiled = compiler.compile_gluon(
            function,
            (*arguments(q, k, value, o, scales, problem, lists, variant), *constants),
            variant.warps,
            arch,
            variant.tile.scores,
            compute_warps=GROUP_WARPS * variant.warpgroups,
            rewrite=variant.rewrite,
        )
        return replace(
            compiled,
            lists=self.order.lists(problem, variant.tile, arch),
            blocks=self.order.number(problem, variant.tile, arch),
            kv_tiles=tiles_visited(problem, variant.tile),
            compute_groups=variant.warpgroups,
        )


def _up(keys: int) -> int:
    """Keys of a row of V transposed, which TMA can describe."""
    return -(-keys // ALIGNED) * ALIGNED


def arguments(q, k, v, o, scales, problem: Problem, order, variant: Variant) -> tuple:
    """What a launch passes to ``fmha`` in front of the variant; the scale is in base 2, as the hardware's is.

    v: as the kernel reads it. order: order and starts, see ``steps.core.order``.
    """
    return (
        described(q, variant.rows, variant.head_dim, variant.shared),
        described(k, variant.tile.key, variant.head_dim, variant.shared),
        described(v, variant.value_rows, variant.value_columns, variant.shared_value),
        described(o, variant.rows, variant.head_dim, variant.shared_output),
        *scales,
        *order[:2],
        problem.effective_scale / math.log(2),
        problem.seq_len_kv,
        problem.heads,
        grid(problem, variant.tile)[0],
    )
