"""Step 101: swizzled shared memory.

Shared memory has 32 banks of 4 bytes, and serves each bank once a clock. ldmatrix reads eight rows at once, 16 bytes
of each. With rows of 128 bytes or a multiple of it, the same columns of eight rows lie in the same four banks, and the
eight reads take turns: an 8-way bank conflict. Swizzling stores the 16-byte chunk c of row r at place c XOR (r mod 8):
the eight chunks then lie in eight different groups of banks, and one read serves them all. Nothing else changes.
"""

from triton.experimental.gluon import language as gl

from steps.core.problems import HEADLINE
from steps.gluon import step100_explicit


def swizzle(columns: int) -> gl.SwizzledSharedLayout:
    """Chunks of 8 elements, permuted anew for every row, or for every few rows where several fit in the 32 banks."""
    rows_a_phase = max(1, 64 // columns)  # 64 elements of 16 bits are 32 banks
    return gl.SwizzledSharedLayout(vec=8, per_phase=rows_a_phase, max_phase=8 // rows_a_phase, order=[1, 0])


STEP = step100_explicit.STEP.evolve(
    number=101,
    name="swizzle",
    title="Swizzled SMEM",
    change="Chunks of 16 bytes are permuted within their row, so that ldmatrix meets every bank once.",
    default_problem=HEADLINE,
    shared_layout=swizzle,
)
