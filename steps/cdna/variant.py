"""What a CDNA kernel can be made of, and the constants and layouts that it is compiled with.

AMD's words: a *wave* is what NVIDIA calls a warp, and has 64 lanes. *LDS* (local data share) is shared memory. A
*compute unit* is an SM; it has four SIMDs, and each of them issues the instructions of the waves that it holds. *MFMA*
is the matrix instruction of a wave, as ``mma.sync`` is that of a warp.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd import AMDMFMALayout

from steps.cdna.kernel import Copies, Numbering
from steps.cdna.softmax import Rescaling, Scaling
from steps.core.tiles import Tile
from steps.gluon.functions import compiled_as

LANES = 64  # of a wave
CHUNK = 8  # elements of 16 bits that a lane copies at once: 16 bytes
BANK_ROW = 128  # elements of 16 bits that lie in the 64 banks of LDS, 4 bytes in each, of gfx950 (CDNA4 ISA, LDS)
MFMA_ROWS = 32  # rows and columns of a product that one instruction computes


@dataclass(frozen=True)
class Instruction:
    """The matrix instruction v_mfma_f32_32x32xDEPTH of an architecture.

    version: its number in Triton. depth: how many elements of head_dim, or keys, one instruction sums over; for every
    row a lane holds half of them, and another lane the others.
    """

    version: int
    depth: int


MFMA = {"gfx942": Instruction(3, 8), "gfx950": Instruction(4, 16)}


@dataclass(frozen=True)
class Transfer:
    """How tiles of keys and values come to LDS.

    copies: what is copied, and when. stages: tiles of each that LDS holds. swizzle: whether chunks of 16 bytes are
    permuted within their row.
    """

    copies: Copies
    stages: int = 1
    swizzle: bool = False

    def __str__(self) -> str:
        way = "straight from memory" if self.copies.direct else "through registers"
        return f"{way}, tiles in LDS: {self.stages}{', swizzled' if self.swizzle else ''}"

    def shared(self, columns: int) -> gl.SwizzledSharedLayout:
        """Where element [row, column] of a tile with so many columns lies in LDS.

        Swizzled, chunk c of a row lies at place c XOR phase. The phase changes with every row that begins in bank 0.
        """
        if not self.swizzle:
            return gl.SwizzledSharedLayout(vec=1, per_phase=1, max_phase=1, order=[1, 0])
        rows_a_phase = max(1, BANK_ROW // columns)
        return gl.SwizzledSharedLayout(CHUNK, rows_a_phase, BANK_ROW // CHUNK // rows_a_phase, order=[1, 0])


@dataclass(frozen=True)
class Stages:
    """The iteration of a loop cut into stages, for two halves of the waves that are a stage apart.

    waves: of a block, so many that two of them share a SIMD. tiles: of K and of V that LDS holds, one of which is
    filled while both halves read others. products, softmax: priorities of the stages, 0 to 3.
    """

    waves: int
    tiles: int
    products: int
    softmax: int

    def __str__(self) -> str:
        return f"{self.waves} waves, {self.tiles} tiles in LDS, priorities {self.products} and {self.softmax}"


@dataclass(frozen=True)
class Variant:
    """What a kernel is compiled for, the pieces that it is made of, and the layouts that follow.

    Layouts say which lane of which wave holds what, and where.     Everything here is a constant in the compiled code.
    """

    tile: Tile
    head_dim: int
    group_size: int
    causal: bool
    ragged: bool  # the last tile of keys is not full
    waves: int
    instruction: Instruction
    copies: Copies
    tiles: int  # of K and of V that LDS holds
    shared: gl.SwizzledSharedLayout
    scaling: Scaling
    rescaling: Rescaling
    stages: Stages | None
    numbering: Numbering
    lse: bool = False  # the log-sum-exp of every query is stored, too

    @property
    def cache_key(self) -> str:
        """What Triton knows these constants by: functions by their source, not by their names."""
        return compiled_as(self)

    @cached_property
    def accumulator(self) -> AMDMFMALayout:
        """Scores and outputs as MFMA leaves them. Each wave has rows of its own, 32 for every instruction.

        Transposed: the instruction computes the transposed product, so that all that a lane holds is of one row, and
        two lanes share a row.
        """
        return AMDMFMALayout(
            version=self.instruction.version,
            instr_shape=[MFMA_ROWS, MFMA_ROWS, self.instruction.depth],
            transposed=True,
            warps_per_cta=[self.waves, 1],
        )

    @cached_property
    def left(self) -> gl.DotOperandLayout:
        """The first factor of a product: Q, then the weights."""
        return gl.DotOperandLayout(0, self.accumulator, self.instruction.depth // 2)

    @cached_property
    def right(self) -> gl.DotOperandLayout:
        """The second factor of a product: K transposed, then V."""
        return gl.DotOperandLayout(1, self.accumulator, self.instruction.depth // 2)

    @cached_property
    def copy(self) -> gl.BlockedLayout:
        """Copies between memory and LDS: 16 bytes a lane, neighbouring lanes along a row."""
        lanes = min(LANES, self.head_dim // CHUNK)
        return gl.BlockedLayout([1, CHUNK], [LANES // lanes, lanes], [self.waves, 1], [1, 0])
