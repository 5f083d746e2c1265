"""An fp8 step in cuTile: the kernel of ``steps.cutile``, which is told the scales, and writes another dtype."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from steps.core.fused import hole
from steps.core.quantized import QuantizedStep
from steps.core.step import target_of
from steps.cutile.kernel import add_in_float32, add_in_tensor_cores
from steps.cutile.skeleton import CuTileStep
from steps.cutile.variant import Variant
from tutorial_lib.compiler import CUTILE_ARCHITECTURES
from tutorial_lib.problem import FP8, Problem

FIRST = 90  # cuTile 1.7 takes e4m3 from sm_90 on
ARCHITECTURES = tuple(arch for arch in CUTILE_ARCHITECTURES if int(arch.removeprefix("sm_")) >= FIRST)
ELSEWHERE = f"made of numbers in fp8, which cuTile has for {', '.join(ARCHITECTURES)}, not for {{}}"


@dataclass(frozen=True, kw_only=True)
class Fp8CuTileStep(QuantizedStep, CuTileStep):
    """As ``CuTileStep``, of inputs in fp8. The weights are rounded to V's dtype, so both products are in fp8.

    fast_acc: the tensor cores add up the PV products of all tiles of keys. Else they add up one tile, and float32 the
    tiles (``use_fast_acc`` of ``cuda.tile.mma``, which only sm_90 hears).
    """

    fast_acc: bool = hole(by_problem=True)

    formats: ClassVar[tuple[str, ...]] = (FP8,)  # ct.mma wants the weights, which are e4m3, and V in one
    architectures: ClassVar[tuple[str, ...]] = ARCHITECTURES
    elsewhere: ClassVar[str] = ELSEWHERE
    head_dims: ClassVar[tuple[int, ...]] = (64, 128, 256)  # tileiras 13.5 spills 376 bytes in tiles of 32 columns

    @property
    def offset_of_weights(self) -> int:
        return getattr(self.softmax, "offset", 0)

    def sums_in_tensor_cores(self, problem: Problem) -> bool:
        return self.for_problem(problem).fast_acc

    def variant(self, problem: Problem, arch: str) -> Variant:
        fast_acc = self.for_problem(problem).fast_acc
        add_up = add_in_tensor_cores if fast_acc else add_in_float32
        return dataclasses.replace(super().variant(problem, arch), quantized=True, add_up=add_up)

    def make_ready(self, problem, tensors, out, dtype, return_lse=False):
        variant = dataclasses.replace(self.variant(problem, target_of(tensors[0].device)), lse=return_lse)
        return self.make_kernel_ready(self.kernel_function(variant), problem, tensors, out, dtype, return_lse)

    def make_kernel_ready(self, function, problem: Problem, tensors, out, dtype, return_lse: bool = False):
        """As ``make_ready``, for a kernel function that is given."""
        run = super().make_kernel_ready(function, problem, *tensors[:3], out, return_lse, dtype)

        def launch(q, k, v, q_scale, k_scale, v_scale, out):
            return run(q, k, v, out, q_scale, k_scale, v_scale)

        return launch
