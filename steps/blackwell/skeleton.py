"""A step for Blackwell: the holes of the skeleton, what it is for, and what it must fit into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from steps.blackwell import correction, roles, together
from steps.blackwell.sharing import ALONE, Sharing
from steps.blackwell.softmax import EVERY_TILE, Rescaling
from steps.blackwell.taking import ONE_TILE, Schedule
from steps.blackwell.variant import GROUP_WARPS, HEAD_DIMS, KEYS, ROWS, WIDE, WIDE_KEYS, Variant
from steps.core.fused import Pieces, hole
from steps.core.order import Order
from steps.core.tiles import Tile
from steps.gluon.softmax import exp2
from steps.hopper.launching import TmaStep
from tutorial_lib.architectures import ARCHITECTURES, TENSOR_COLUMNS
from tutorial_lib.compiled import Compiled
from tutorial_lib.compiler import CompilerError
from tutorial_lib.problem import Problem

TARGETS = ("sm_100", "sm_103")
LIMITS = ARCHITECTURES[TARGETS[0]]
MOST_SHARED, MOST_COLUMNS = LIMITS.shared_bytes - LIMITS.reserved_bytes, TENSOR_COLUMNS  # of a block


@dataclass(frozen=True)
class Generation(Pieces):
    """A kernel. warpgroups: that compute a softmax; at head_dim 256 one, as the outputs of two fill tensor memory.

    registers: of a thread of every role but the first warpgroup's, which has what is left. All threads of a block share
    65536, and those of a warpgroup have the same number. The two warps that begin products and ask for tiles are in a
    warpgroup of their own, and stand at the end. wide_registers: the same at head_dim 256.
    """

    kernel: Callable
    warpgroups: int = 1
    registers: tuple[int, ...] = ()
    wide_registers: tuple[int, ...] = ()


ALL_ALIKE = Generation(together.fmha)
ROLES = Generation(roles.fmha, 2, (232, 32, 32), (80, 80))
CORRECTION = Generation(correction.fmha, 2, (192, 96, 32, 32), (176, 80, 80))


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
    """A fused kernel for sm_100 and sm_103 in Gluon, with these holes filled.

    generation: which warps do what: a kernel, which reads from top to bottom in a module of its own.
    sharing: how two blocks share keys and values, where all warps do the same.
    schedule: which tiles of queries a block computes; several where warps have roles.
    rescaling: when a row's maximum moves, and the output with it. exponential(x) -> 2^x.

    Raises ValueError for holes that do not go together.
    """

    generation: Generation = hole(default=ALL_ALIKE)
    sharing: Sharing = hole(told=False, default=ALONE)
    schedule: Schedule = hole(told=False, default=ONE_TILE)
    rescaling: Rescaling = hole(told=False, default=EVERY_TILE)
    exponential: Callable = hole(told=False, default=exp2)

    head_dims: ClassVar[tuple[int, ...]] = HEAD_DIMS

    def __post_init__(self):
        if self.generation.registers and self.sharing.ctas > 1:
            raise ValueError("blocks share keys and values where their warps have no roles")
        if not self.generation.registers and self.schedule.order.persistent:
            raise ValueError("blocks stay where their warps have roles")

    def variant(self, problem: Problem, arch: str = TARGETS[0]) -> Variant:
        """The constants that ``problem`` is compiled with."""
        wide = problem.head_dim == WIDE
        warpgroups = 1 if wide else self.generation.warpgroups
        tile = Tile(warpgroups * ROWS * self.sharing.ctas, WIDE_KEYS if wide else KEYS)
        return Variant(
            tile=tile,
            head_dim=problem.head_dim,
            group_size=problem.group_size,
            causal=problem.causal,
            ragged=problem.seq_len_kv % tile.key != 0,
            warpgroups=warpgroups,
            stages=2,
            registers=self.generation.wide_registers if wide else self.generation.registers,
            sharing=self.sharing,
            schedule=self.schedule,
            rescaling=self.rescaling,
            exponential=self.exponential,
        )

    @property
    def order(self) -> Order:
        return self.schedule.order

    def kernel(self, problem: Problem):
        return self.generation.kernel

    def compute_warps(self, variant: Variant) -> int:
        return GROUP_WARPS * variant.warpgroups

    def compile_kernel(self, kernel, problem: Problem, arch: str, *constants):
        """As ``TmaStep``; raises CompilerError also where a block has no room."""
        return fitting(super().compile_kernel(kernel, problem, arch, *constants))
