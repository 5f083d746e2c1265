"""A step for Hopper: the holes of the skeleton."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from steps.core.fused import hole
from steps.core.order import TAKEN, Order
from steps.core.rules import rule_for
from steps.core.step import DEFAULT_ARCH
from steps.hopper.kernel import fmha
from steps.hopper.launching import TmaStep
from steps.hopper.variant import GROUP_WARPS, ROWS, Overlap, Roles, Variant, make_variant, order_of, pieces_of
from tutorial_lib import layouts
from tutorial_lib.problem import BYTES_PER_ELEMENT, Problem


@dataclass(frozen=True, kw_only=True)
class HopperStep(TmaStep):
    """A fused kernel for sm_90 in Gluon: ``steps.hopper.kernel.fmha`` with this hole filled.

    roles: which warps do what, and all that follows from it (``steps.hopper.variant``); None: all warps do the same.
    in_pieces: products take a head_dim between powers of two as two pieces (``steps.hopper.pieces``).
    takes: of ``Problem.features`` what the kernel is asked to compute, too, where products overlap and no part visits
    the diagonal first; it is compiled in only where it is asked. Packed sequences ("lengths") also take blocks that
    stay, without pairs.
    """

    roles: Roles | None = hole(default=None)
    in_pieces: bool = hole(told=False, default=False)
    takes: tuple[str, ...] = hole(told=False, default=())

    backend: ClassVar[str] = "hopper"
    head_dims: ClassVar[tuple[int, ...]] = (32, 64, 128, 256)
    pads_head_dim: ClassVar[bool] = True

    def unsupported(self, problem: Problem, target: str) -> str | None:
        if reason := super().unsupported(problem, target):
            return reason
        if target not in ("sm_90", "cpu"):
            return f"made of wgmma, which sm_90 alone has, not {target}"
        return None

    def choices(self, problem: Problem, target: str) -> tuple[str, ...]:
        return (rule_for("hopper", self.in_tiles(problem), DEFAULT_ARCH).name,)

    def variant(self, problem: Problem, arch: str = DEFAULT_ARCH) -> Variant:
        """The constants that ``problem`` is compiled with."""
        pieces = pieces_of(problem.head_dim) if self.in_pieces else None
        return replace(make_variant(self.roles, self.in_tiles(problem)), pieces=pieces)

    @property
    def order(self) -> Order:
        return order_of(self.roles)

    def order_for(self, problem: Problem) -> Order:
        """Of packed sequences, whose lengths the GPU alone knows, nothing is dealt."""
        return TAKEN if problem.lengths is not None else self.order

    def taking_tiles(self):
        if not (self.roles and isinstance(self.roles.loop, Overlap) and self.roles.loop.stay):
            return self
        # Pairs of blocks go through the same list, and what is taken is neither dealt nor computed.
        stay = replace(self.roles.loop.stay, taken=True, pairs=None, even_end=False, computed=False)
        return replace(self, roles=replace(self.roles, loop=replace(self.roles.loop, stay=stay)))

    def shared_clocks(self, problem: Problem) -> float:
        """Clocks a K/V tile that shared memory is busy at least, at 128 bytes a clock: operands of wgmma, and copies.

        Every ``ROWS`` queries read K and V, and Q, of which some may stay in registers; the weights always do.
        """
        v = self.variant(problem)
        columns = sum(v.pieces) if v.in_pieces else v.head_dim
        held = v.head_dim // 2 if v.half_query else v.head_dim // 4 if v.quarter_query else 0
        queries = ROWS * (columns - held)
        read = v.parts * v.rows // ROWS * (2 * v.tile.key * columns + queries)
        copied = 2 * v.tile.key * v.head_dim
        return (read + copied) * BYTES_PER_ELEMENT / (layouts.BANKS * layouts.WORD)

    def kernel(self, problem: Problem):
        return fmha

    def entry(self, problem: Problem, arch: str):
        kernel, constants = super().entry(problem, arch)
        absent = ("begins_q", "begins_k", "sequences") if problem.lengths is None else ()
        return kernel, constants | dict.fromkeys(absent)

    def compute_warps(self, variant: Variant) -> int:
        return GROUP_WARPS * variant.groups
