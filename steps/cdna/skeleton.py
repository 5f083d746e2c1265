"""A step for CDNA in Gluon: the holes of the skeleton, and what follows from a problem and an architecture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from triton.experimental.gluon.language import amd

from steps.cdna.kernel import QUERIES_FIRST, Numbering, fmha
from steps.cdna.softmax import EVERY_TILE, SCALE_SCORES, Rescaling, Scaling
from steps.cdna.variant import MFMA, MFMA_ROWS, Stages, Transfer, Variant
from steps.core.fused import hole
from steps.core.tiles import Tile
from steps.gluon.launching import PointerStep
from tutorial_lib import compiler
from tutorial_lib.architectures import ARCHITECTURES, KIB
from tutorial_lib.problem import BYTES_PER_ELEMENT, Problem

SIMULATED = "gfx950"  # what a block has on the CPU
WAVES = 4  # of a block: one for each SIMD of a compute unit
DIRECT = "gfx950"  # alone copies 16 bytes a lane straight into LDS; gfx942 can copy 4, which these kernels do not


def triton_is_new() -> bool:
    """Whether this is Triton 3.9 or newer, by a module that came with it."""
    return hasattr(amd, "cdna5")


@dataclass(frozen=True, kw_only=True)
class AmdStep(PointerStep):
    """A fused kernel for AMD's CDNA GPUs, in Triton or Gluon."""

    head_dims: ClassVar[tuple[int, ...]] = (32, 64, 128, 256)
    made_for: ClassVar[str] = SIMULATED
    architectures: ClassVar[tuple[str, ...]] = tuple(MFMA)
    elsewhere: ClassVar[str] = f"made for AMD's CDNA GPUs, {' and '.join(MFMA)}, not for {{}}"

    def unsupported(self, problem: Problem, target: str) -> str | None:
        if reason := super().unsupported(problem, target):
            return reason
        if target != "cpu" and not triton_is_new():
            return "needs Triton 3.9 or newer, whose stages of waves may have a wait between them"
        return None

    def compiled(self, kernel, passed: tuple, warps: int, arch: str, scores: int) -> compiler.Compiled:
        return compiler.compile_amd(kernel, passed, warps, arch, scores)


@dataclass(frozen=True, kw_only=True)
class CdnaStep(AmdStep):
    """A fused kernel for CDNA in Gluon: ``steps.cdna.kernel.fmha`` with these holes filled.

    transfer: how K and V come to LDS. scaling: what is multiplied by the scale, unless that is too large for it.
    rescaling: when a row's maximum moves, and the output with it.
    stages: how an iteration of the loop is cut for two halves of the waves; None: all waves do the same.
    numbering: how blocks are counted.
    choose(problem, arch) -> what holes are filled with otherwise for a problem on "gfx950" and the like, by name.
    """

    transfer: Transfer = hole()
    scaling: Scaling = hole(default=SCALE_SCORES)
    rescaling: Rescaling = hole(default=EVERY_TILE)
    stages: Stages | None = hole(default=None, none="none")
    numbering: Numbering = hole(default=QUERIES_FIRST)
    choose: Callable[[Problem, str], dict] | None = hole(default=None, none="none")

    backend: ClassVar[str] = "cdna"

    def __post_init__(self):
        if self.stages is not None and not (self.transfer.copies.direct and self.stages.tiles > 2):
            raise ValueError(f"stages take direct copies, and three tiles in LDS, got {self.transfer}, {self.stages}")

    def configured(self, problem: Problem, arch: str) -> CdnaStep:
        if self.choose is None:
            return self
        return replace(self, choose=None, **self.choose(problem, SIMULATED if arch == "cpu" else arch))

    def unsupported(self, problem: Problem, target: str) -> str | None:
        if reason := super().unsupported(problem, target):
            return reason
        if self.choose is not None:
            return self.configured(problem, target).unsupported(problem, target)
        if self.transfer.copies.direct and target not in (DIRECT, "cpu"):
            return f"copies 16 bytes a lane straight into LDS, which {DIRECT} alone can, not {target}"
        arch = SIMULATED if target == "cpu" else target
        needs, holds = self.lds_bytes(problem, arch), ARCHITECTURES[arch].shared_bytes
        if needs > holds:
            return f"needs {needs // KIB} KiB of LDS a block; {arch} has {holds // KIB} KiB"
        return None

    def lds_bytes(self, problem: Problem, arch: str) -> int:
        """LDS that the tiles of a block take, in bytes."""
        v = self.variant(problem, arch)
        return 2 * v.tiles * v.tile.key * v.head_dim * BYTES_PER_ELEMENT

    def variant(self, problem: Problem, arch: str = SIMULATED) -> Variant:
        """The constants that ``problem`` is compiled with on ``arch`` ("cpu": those of gfx950)."""
        if self.choose is not None:
            return self.configured(problem, arch).variant(problem, arch)
        waves = self.stages.waves if self.stages else WAVES
        moderate = problem.effective_scale**2 * problem.head_dim <= self.scaling.most**2
        keys = 32 if self.stages and problem.head_dim > 128 else 64  # what LDS has room for
        return Variant(
            tile=Tile(waves * MFMA_ROWS, keys),
            head_dim=problem.head_dim,
            group_size=problem.group_size,
            causal=problem.causal,
            ragged=problem.seq_len_kv % keys != 0,
            waves=waves,
            instruction=MFMA[SIMULATED if arch == "cpu" else arch],
            copies=self.transfer.copies,
            tiles=self.stages.tiles if self.stages else self.transfer.stages,
            shared=self.transfer.shared(problem.head_dim),
            scaling=self.scaling if moderate else SCALE_SCORES,
            rescaling=self.rescaling,
            stages=self.stages,
            numbering=self.numbering,
        )

    def kernel(self, problem: Problem) -> Callable:
        return fmha

    def number_of_warps(self, variant: Variant) -> int:
        return variant.waves

    def blocks(self, problem: Problem, variant: Variant) -> tuple[int, int, int]:
        tiles, heads, batch = super().blocks(problem, variant)
        return (heads, tiles, batch) if variant.numbering.heads_first else (tiles, heads, batch)
