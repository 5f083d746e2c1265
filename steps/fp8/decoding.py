"""A decoding step in cuTile that reads keys and values in fp8: a ``DecodeStep`` that is told their scales."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from steps.core.quantized import QuantizedStep
from steps.everyday import step900_split_kv
from steps.everyday.decoding import DecodeStep
from steps.fp8 import cutile
from tutorial_lib.problem import FP8, Problem

SPLIT_KV = step900_split_kv.STEP  # its kernel is the one that reads fp8, too, though its part has a higher number


@dataclass(frozen=True, kw_only=True)
class QuantizedDecodeStep(QuantizedStep, DecodeStep):
    """As ``DecodeStep``, of queries in 16 bits and keys and values in fp8."""

    takes: ClassVar[tuple[str, ...]] = ("kv_dtype",)
    architectures: ClassVar[tuple[str, ...]] = cutile.ARCHITECTURES
    elsewhere: ClassVar[str] = cutile.ELSEWHERE

    @property
    def offset_of_weights(self) -> int:
        return getattr(self.softmax, "offset", 0)

    def unsupported(self, problem: Problem, target: str) -> str | None:
        if problem.fp8:
            return f"takes queries in 16 bits, and keys and values in {FP8}"
        return super().unsupported(problem, target)

    def make_ready(self, problem, tensors, out, dtype, return_lse=False):
        step, function = self.decided(problem, tensors[0].device, return_lse)
        return step.make_kernel_ready(function, problem, tensors, out, dtype, return_lse)

    def make_kernel_ready(self, function: Callable, problem: Problem, tensors, out, dtype, return_lse: bool = False):
        """As ``make_ready``, for a function of the kernel that goes through the keys that is given."""
        decoded = self.runner(function, problem, tensors[0].device, return_lse)

        def launch(q, k, v, k_scale, v_scale, out):
            return decoded(q, (k, v), out, k_scale, v_scale)

        return launch
