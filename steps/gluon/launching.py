"""How a kernel that takes pointers is launched and compiled: what the steps of Gluon's and of CDNA's part share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from steps.core.driver import places_like
from steps.core.fused import FusedStep, grid, tiles_visited, too_long_to_simulate
from steps.core.launch import empty_lse, gluon_launcher
from steps.core.step import target_of
from steps.core.work import Work, places
from steps.gluon.tensors import contiguous_copy, copyable, shapes
from tutorial_lib import compiler
from tutorial_lib.problem import Problem, positive


@dataclass(frozen=True, kw_only=True)
class PointerStep(FusedStep):
    """A fused kernel that takes pointers, strides and lengths: ``arguments``. A block is a tile of queries.

    Its skeleton offers ``kernel``, ``variant`` and ``number_of_warps``. A variant has ``tile`` and ``lse``.
    """

    def kernel(self, problem: Problem) -> Callable:
        """The function that is launched."""
        raise NotImplementedError

    def number_of_warps(self, variant) -> int:
        """Warps, or waves, of a block."""
        raise NotImplementedError

    def compiled(self, kernel, passed: tuple, warps: int, arch: str, scores: int) -> compiler.Compiled:
        """What the compiler makes of a kernel; the arguments are as those of ``compiler.compile_gluon``."""
        return compiler.compile_gluon(kernel, passed, warps, arch, scores)

    def blocks(self, problem: Problem, variant) -> tuple[int, int, int]:
        """The grid: how many blocks there are along each axis."""
        return grid(problem, variant.tile)

    def shared_clocks(self, problem: Problem) -> float | None:
        """Clocks a K/V tile that shared memory is busy at least; None where that is not known."""
        return None

    def work(self, problem: Problem, arch: str) -> Work:
        """What a launch has to do."""
        tile = self.variant(problem, arch).tile
        return Work.of_queries(problem, tile, places(arch), False, tile, self.in_tiles(problem).head_dim)

    def too_long_on_cpu(self, problem: Problem) -> str | None:
        return too_long_to_simulate(problem, self.variant(problem, self.made_for).tile)

    def entry(self, problem: Problem, arch: str) -> tuple[Callable, dict]:
        return self.kernel(problem), {"variant": self.variant(problem, arch), "LSE": None}

    def beside_the_kernel(self, problem: Problem, arch: str) -> tuple:
        """Nothing: a launch follows the constants."""
        return ()

    def make_ready(self, problem, q, k, v, out, return_lse=False):
        variant = replace(self.variant(problem, self._launched_for(q.device)), lse=return_lse)
        lse = empty_lse(q) if return_lse else None
        return self.make_kernel_ready(self.kernel(problem), problem, q, k, v, out, variant, lse=lse)

    def _launched_for(self, device) -> str:
        return self.made_for if device.type == "cpu" else target_of(device)

    def make_kernel_ready(self, kernel, problem: Problem, q, k, v, out, *constants, lse=None):
        """As ``make_ready``, for a kernel that is given, and takes ``constants`` behind what all of them take.

        lse: a tensor for the log-sum-exp; with it the kernel takes another behind these, and launches return that, too.
        """
        import torch

        variant = self.variant(problem, self._launched_for(q.device))
        sign, scale = positive(problem.effective_scale)
        written = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
        place, lse_place = places_like(written), lse is not None and places_like(lse)

        def fit(q, k, v):
            """The tensors as the kernel takes them, or copies."""
            q, k, v = (copyable(x) for x in (q if sign == 1 else q * sign, k, v))
            return (q, k, v) if k.stride(2) == v.stride(2) else (q, contiguous_copy(k), contiguous_copy(v))

        fitted = fit(q, k, v)
        as_they_are = all(a is b for a, b in zip(fitted, (q, k, v)))
        passed = (*arguments(*fitted, written, problem, scale), *constants)
        moving = (0, 1, 2, 3)
        if lse_place:
            moving, passed = (*moving, len(passed)), (*passed, lse)
        warps, blocks = self.number_of_warps(variant), self.blocks(problem, variant)
        run = gluon_launcher(kernel, blocks, passed, warps, q.device, moving, self.made_for)

        def launch(q, k, v, out):
            o = place() if out is None else out
            if not as_they_are:
                q, k, v = fit(q, k, v)
            if not lse_place:
                run(q, k, v, o)
                return o
            lse = lse_place()
            run(q, k, v, o, lse)
            return o, lse

        return launch

    def compile(self, problem, arch=None):
        arch = arch or self.made_for
        self.refuse(problem, arch)
        return self.compile_kernel(self.kernel(problem), problem, arch, self.variant(problem, arch))

    def compile_kernel(self, kernel, problem: Problem, arch: str, *constants):
        """As ``compile``, for a kernel that is given, and takes ``constants`` behind what is passed to all of them."""
        self.refuse(problem, arch)
        variant = self.variant(problem, arch)
        q, k, v, o = (compiler.Placeholder(shape, problem.dtype) for shape in shapes(problem))
        passed = (*arguments(q, k, v, o, problem, problem.effective_scale), *constants)
        compiled = self.compiled(kernel, passed, self.number_of_warps(variant), arch, variant.tile.scores)
        return replace(
            compiled,
            blocks=math.prod(self.blocks(problem, variant)),
            kv_tiles=tiles_visited(problem, variant.tile),
            shared_clocks=self.shared_clocks(problem),
        )


def arguments(q, k, v, o, problem: Problem, scale: float) -> tuple:
    """What a launch passes to a kernel in front of its constants; the scale is in base 2, as the hardware's is."""
    strides = [tuple(x.stride()) for x in (q, k, v, o)]
    return (q, k, v, o, *strides, scale / math.log(2), problem.seq_len_q, problem.seq_len_kv)
