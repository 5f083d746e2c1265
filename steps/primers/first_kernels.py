"""The smallest Gluon kernel that shows layouts, an asynchronous copy, ldmatrix and mma.sync: one tile of scores.

It is a block's work, without the loops and masks of a step. It runs on the simulator, and compiles for a GPU.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from steps.gluon import names  # noqa: F401

# Rows of a tile in shared memory behind one another, as in device memory.
PLAIN = gl.constexpr(gl.SwizzledSharedLayout(vec=1, per_phase=1, max_phase=1, order=[1, 0]))

# One warp: a tile of 16 x 16 as it is copied, as mma.sync leaves it, and as its two factors.
COPY = gl.constexpr(gl.BlockedLayout([1, 8], [16, 2], [1, 1], [1, 0]))
MMA = gl.constexpr(gl.NVMMADistributedLayout([2, 0], [1, 1], [16, 8]))
LEFT = gl.constexpr(gl.DotOperandLayout(0, MMA.value, 2))
RIGHT = gl.constexpr(gl.DotOperandLayout(1, MMA.value, 2))


@gluon.jit
def scores(Q, K, S):
    """S = Q times K transposed, for 16 queries and 16 keys of head_dim 16, with one warp."""
    row = gl.arange(0, 16, gl.SliceLayout(1, COPY))
    column = gl.arange(0, 16, gl.SliceLayout(0, COPY))
    offset = row[:, None] * 16 + column[None, :]
    queries = gl.allocate_shared_memory(gl.float16, [16, 16], PLAIN)
    keys = gl.allocate_shared_memory(gl.float16, [16, 16], PLAIN)
    async_copy.async_load(queries, Q + offset)
    async_copy.async_load(keys, K + offset)
    async_copy.commit_group()
    async_copy.wait_group(0)
    gl.barrier()

    q = queries.load(LEFT)
    k = keys.permute((1, 0)).load(RIGHT)
    s = mma_v2(q, k, gl.full([16, 16], 0.0, gl.float32, MMA))
    gl.store(S + offset, gl.convert_layout(s, COPY))
