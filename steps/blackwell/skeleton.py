"""A step for Blackwell: the holes of the skeleton, what it is for, and what it must fit into."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from steps.blackwell.kernel import fmha
from steps.blackwell.variant import (
    GROUP_WARPS,
    HEAD_DIMS,
    Cluster,
    Emulated,
    Roles,
    Variant,
    is_persistent,
    make_variant,
)
from steps.core.fused import grid, hole
from steps.core.order import DEALT, NATURAL, SECTION_BYTES, Order
from steps.core.tiles import Tile
from steps.hopper.launching import TmaStep
from tutorial_lib.architectures import ARCHITECTURES, TENSOR_COLUMNS
from tutorial_lib.compiled import Compiled
from tutorial_lib.compiler import CompilerError
from tutorial_lib.problem import Problem

TARGETS = ("sm_100", "sm_103")
LIMITS = ARCHITECTURES[TARGETS[0]]
MOST_SHARED, MOST_COLUMNS = LIMITS.shared_bytes - LIMITS.reserved_bytes, TENSOR_COLUMNS  # of a block


class Launched(Order):
    """A block for every tile, in their order: one that stays takes the tiles of blocks that have not begun."""

    def __str__(self) -> str:
        return "taken by persistent blocks"

    def places(self, problem: Problem, tile: Tile, places: int) -> int:
        return math.prod(grid(problem, tile))


LAUNCHED = Launched(persistent=True, section_bytes=SECTION_BYTES)


def triton_is_new() -> bool:
    """Whether this Triton's Gluon has what these kernels are made of."""
    from triton.experimental.gluon.language.nvidia import blackwell

    return hasattr(blackwell.tensor_memory_descriptor_type, "get_reg_layout")


class OnBlackwell:
    """What all steps for Blackwell have in common. No such GPU was at hand: they were never timed."""

    backend: ClassVar[str] = "blackwell"
    architectures: ClassVar[tuple[str, ...]] = TARGETS  # on some others, LLVM would end the process
    elsewhere: ClassVar[str] = f"made of tcgen05 and tensor memory, for {' and '.join(TARGETS)}, not for {{}}"
    made_for: ClassVar[str] = TARGETS[0]

    def unsupported(self, problem: Problem, target: str) -> str | None:
        if reason := super().unsupported(problem, target):
            return reason
        if not triton_is_new():
            return "needs Triton 3.9 or newer, whose Gluon has what these kernels are made of"
        return None


def fitting(compiled: Compiled) -> Compiled:
    """The kernel; raises CompilerError for one that no block has room for, which Triton does not."""
    for what, needed, there in (
        ("bytes of shared memory", compiled.shared_bytes, MOST_SHARED),
        ("columns of tensor memory", compiled.tensor_columns or 0, MOST_COLUMNS),
    ):
        if needed > there:
            raise CompilerError(f"the kernel needs {needed} {what}, and a block has {there}")
    return compiled


@dataclass(frozen=True, kw_only=True)
class BlackwellStep(OnBlackwell, TmaStep):
    """A fused kernel for sm_100 and sm_103 in Gluon: ``steps.blackwell.kernel.fmha`` with these holes filled.

    roles: which warps do what (``steps.blackwell.variant``). emulated: which exponentials are a polynomial.
    """

    roles: Roles | Cluster | Literal["all alike"] = hole(default="all alike")
    emulated: Emulated = hole(default=Emulated())

    head_dims: ClassVar[tuple[int, ...]] = HEAD_DIMS

    def variant(self, problem: Problem, arch: str = TARGETS[0]) -> Variant:
        """The constants that ``problem`` is compiled with."""
        return make_variant(self.roles, self.emulated, problem)

    @property
    def order(self) -> Order:
        if not is_persistent(self.roles):
            return NATURAL
        return LAUNCHED if self.roles.scheduler == "dynamic" else DEALT

    def kernel(self, problem: Problem):
        return fmha

    def compute_warps(self, variant: Variant) -> int:
        return GROUP_WARPS * variant.warpgroups

    def compile_kernel(self, kernel, problem: Problem, arch: str, *constants):
        """As ``TmaStep``; raises CompilerError also where a block has no room."""
        return fitting(super().compile_kernel(kernel, problem, arch, *constants))
