"""A step for Hopper: the holes of the skeleton, and how its kernel is launched and compiled."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from steps.core.fused import FusedStep, hole, tiles_visited, too_long_to_simulate
from steps.core.launch import empty_lse, gluon_launcher
from steps.core.step import DEFAULT_ARCH, Unsupported
from steps.core.tiles import HOPPER
from steps.gluon.tensors import contiguous_copy, shapes
from steps.hopper.kernel import fmha
from steps.hopper.variant import GROUP_WARPS, ROWS, Roles, Variant, make_variant, order_of
from tutorial_lib import compiler, layouts
from tutorial_lib.problem import BYTES_PER_ELEMENT, Problem, positive


@dataclass(frozen=True, kw_only=True)
class HopperStep(FusedStep):
    """A fused kernel for sm_90 in Gluon: ``steps.hopper.kernel.fmha`` with this hole filled.

    roles: which warps do what, and all that follows from it (``steps.hopper.variant``); None: all warps do the same.
    """

    roles: Roles | None = hole(default=None)

    backend: ClassVar[str] = "hopper"
    head_dims: ClassVar[tuple[int, ...]] = tuple(HOPPER)

    def unsupported(self, problem: Problem, target: str) -> str | None:
        if reason := super().unsupported(problem, target):
            return reason
        if target not in ("sm_90", "cpu"):
            return f"made of wgmma, which sm_90 alone has, not {target}"
        return None

    def variant(self, problem: Problem, arch: str = DEFAULT_ARCH) -> Variant:
        """The constants that ``problem`` is compiled with."""
        return make_variant(self.roles, problem)

    def too_long_on_cpu(self, problem: Problem) -> str | None:
        return too_long_to_simulate(problem, self.variant(problem).tile)

    def shared_clocks(self, problem: Problem) -> float:
        """Clocks a K/V tile that shared memory is busy at least, at 128 bytes a clock: operands of wgmma, and copies.

        Every ``ROWS`` queries read K and V, and Q, of which a half may stay in registers; the weights always do.
        """
        v = self.variant(problem)
        queries = ROWS * v.head_dim // (2 if v.half_query else 1)
        read = v.tile.query // ROWS * (2 * v.tile.key * v.head_dim + queries)
        copied = 2 * v.tile.key * v.head_dim
        return (read + copied) * BYTES_PER_ELEMENT / (layouts.BANKS * layouts.WORD)

    def kernel(self, problem: Problem):
        """The function that is launched."""
        return fmha

    def entry(self, problem: Problem, arch: str):
        return self.kernel(problem), {"variant": self.variant(problem), "LSE": None}

    def make_ready(self, problem, q, k, v, out, return_lse=False):
        variant = replace(self.variant(problem), lse=return_lse)
        lse = empty_lse(q) if return_lse else None
        return self.make_kernel_ready(self.kernel(problem), problem, q, k, v, out, variant, lse=lse)

    def make_kernel_ready(self, kernel, problem: Problem, q, k, v, out, *constants, lse=None):
        """As ``make_ready``, for a kernel that is given, and takes ``constants`` behind what all of them take.

        lse: a place for the log-sum-exp; with it the kernel takes another behind these, and launches return that, too.
        """
        import torch

        variant = self.variant(problem)
        sign, scale = positive(problem.effective_scale)
        empty = partial(torch.empty, q.shape, dtype=q.dtype, device=q.device)
        into_out = out is not None and describable(out)

        def fit(q, k, v):
            """The tensors as TMA takes them, or copies."""
            return [x if describable(x) else contiguous_copy(x) for x in (q if sign == 1 else q * sign, k, v)]

        fitted = fit(q, k, v)
        as_they_are = all(a is b for a, b in zip(fitted, (q, k, v)))
        blocks, order = order_of(self.roles).blocks(problem, variant.tile, q.device)
        passed = arguments(*fitted, out if into_out else empty(), problem, scale, order, variant)
        passed = (*passed, *constants)
        moving, with_lse = (0, 1, 2, 3), lse is not None
        if with_lse:
            moving, passed = (*moving, len(passed)), (*passed, lse)
        run = gluon_launcher(kernel, (blocks, 1, 1), passed, variant.warps, q.device, moving)

        def launch(q, k, v, out):
            if not as_they_are:
                q, k, v = fit(q, k, v)
            o = out if into_out else empty()
            if not with_lse:
                run(q, k, v, o)
                return o if out is None or o is out else out.copy_(o)
            lse = empty_lse(q)
            run(q, k, v, o, lse)
            return (o if out is None or o is out else out.copy_(o)), lse

        return launch

    def compile(self, problem, arch="sm_90"):
        return self.compile_kernel(self.kernel(problem), problem, arch, self.variant(problem))

    def compile_kernel(self, kernel, problem: Problem, arch: str, *constants):
        """As ``compile``, for a kernel that is given, and takes ``constants`` behind what is passed to all of them."""
        if reason := self.unsupported(problem, arch):
            raise Unsupported(f"step {self.label}: {reason}")
        variant = self.variant(problem)
        q, k, v, o = (compiler.Placeholder(shape, problem.dtype) for shape in shapes(problem))
        order = [compiler.Placeholder((1,), "int32")] * 2
        compiled = compiler.compile_gluon(
            kernel,
            (*arguments(q, k, v, o, problem, problem.effective_scale, order, variant), *constants),
            variant.warps,
            arch,
            variant.tile.scores,
            compute_warps=GROUP_WARPS * variant.groups,
        )
        return replace(
            compiled,
            kv_tiles=tiles_visited(problem, variant.tile),
            compute_groups=variant.parts,
            shared_clocks=self.shared_clocks(problem),
        )


def describable(x) -> bool:
    """Whether TMA can describe the tensor: rows of 16-byte pieces, every stride a multiple of 16 bytes."""
    even = all(stride > 0 and stride % 8 == 0 for stride, length in zip(x.stride()[:3], x.shape) if length > 1)
    return even and x.stride(3) == 1 and x.data_ptr() % 16 == 0


def arguments(q, k, v, o, problem: Problem, scale: float, order, variant: Variant) -> tuple:
    """What a launch passes to ``fmha`` in front of the variant; the scale is in base 2, as the hardware's is.

    order: order and starts, see ``steps.core.order``; what follows them is not read here.
    """
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    def described(x, rows: int, columns: int = problem.head_dim):
        # A stride along an axis of length 1 is never used, and may be anything but what TMA takes.
        strides = [stride if n > 1 else problem.head_dim for stride, n in zip(x.stride()[:3], x.shape)]
        box = [1, 1, rows, columns]
        return TensorDescriptor(x, list(x.shape), [*strides, 1], box, variant.shared)

    keys, queries = variant.tile.key, variant.rows
    return (
        described(q, queries),
        described(k, keys),
        described(v, keys),
        described(o, queries, variant.output_columns),
        *order[:2],
        scale / math.log(2),
        problem.seq_len_kv,
        problem.heads,
        -(-problem.seq_len_q // variant.tile.query),
    )
