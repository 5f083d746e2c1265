"""Chapter 19: the smallest Gluon kernels that show layouts, asynchronous copies, ldmatrix and mma.sync.

Each is a block's work, without the loops and masks of a step. They run on the simulator, and compile for a GPU.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from steps.gluon import names  # noqa: F401

# 256 numbers: 2 neighbours a lane, 32 lanes a warp, 4 warps.
LINE = gl.constexpr(gl.BlockedLayout([2], [32], [4], [0]))

# A tile of 16 x 32: 8 neighbours of a row a lane; 8 x 4 lanes a warp; 2 warps, one below the other.
TILE = gl.constexpr(gl.BlockedLayout([1, 8], [8, 4], [2, 1], [1, 0]))

# Rows of a tile in shared memory behind one another, as in device memory.
PLAIN = gl.constexpr(gl.SwizzledSharedLayout(vec=1, per_phase=1, max_phase=1, order=[1, 0]))

# One warp: a tile of 16 x 16 as it is copied, as mma.sync leaves it, and as its two factors.
COPY = gl.constexpr(gl.BlockedLayout([1, 8], [16, 2], [1, 1], [1, 0]))
MMA = gl.constexpr(gl.NVMMADistributedLayout([2, 0], [1, 1], [16, 8]))
LEFT = gl.constexpr(gl.DotOperandLayout(0, MMA.value, 2))
RIGHT = gl.constexpr(gl.DotOperandLayout(1, MMA.value, 2))

WARPS = {
    "add_one": 4,
    "subtract_maxima": 2,
    "by_way_of_shared": 2,
    "double": 2,
    "scores": 1,
}  # that a block of each kernel has


@gluon.jit
def add_one(source, target, number):
    """target = source + 1, 256 numbers a block."""
    place = gl.program_id(0) * 256 + gl.arange(0, 256, LINE)
    x = gl.load(source + place, mask=place < number, other=0.0)
    gl.store(target + place, x + 1.0, mask=place < number)


@gluon.jit
def subtract_maxima(source, target):
    """A tile of 16 x 32, every row minus its largest number."""
    row = gl.arange(0, 16, gl.SliceLayout(1, TILE))
    column = gl.arange(0, 32, gl.SliceLayout(0, TILE))
    place = row[:, None] * 32 + column[None, :]
    x = gl.load(source + place)
    largest = gl.max(x, 1)
    gl.store(target + place, x - largest[:, None])


@gluon.jit
def by_way_of_shared(source, target):
    """Copies a tile of 16 x 32 to shared memory, and from there to its target."""
    row = gl.arange(0, 16, gl.SliceLayout(1, TILE))
    column = gl.arange(0, 32, gl.SliceLayout(0, TILE))
    place = row[:, None] * 32 + column[None, :]
    tile = gl.allocate_shared_memory(gl.float16, [16, 32], PLAIN)

    async_copy.async_load(tile, source + place)
    async_copy.commit_group()
    async_copy.wait_group(0)
    gl.barrier()
    gl.store(target + place, tile.load(TILE))


@gluon.jit
def double(source, target):
    """Two tiles of 16 x 32, doubled by way of shared memory; the second is on its way while the first is used."""
    row = gl.arange(0, 16, gl.SliceLayout(1, TILE))
    column = gl.arange(0, 32, gl.SliceLayout(0, TILE))
    place = row[:, None] * 32 + column[None, :]
    tiles = gl.allocate_shared_memory(gl.float16, [2, 16, 32], PLAIN)

    async_copy.async_load(tiles.index(0), source + place)
    async_copy.commit_group()
    async_copy.async_load(tiles.index(1), source + 512 + place)
    async_copy.commit_group()

    async_copy.wait_group(1)
    gl.barrier()
    first = tiles.index(0).load(TILE)
    gl.store(target + place, first + first)

    async_copy.wait_group(0)
    gl.barrier()
    second = tiles.index(1).load(TILE)
    gl.store(target + 512 + place, second + second)


@gluon.jit
def scores(Q, K, S):
    """S = Q times K transposed, for 16 queries and 16 keys of head_dim 16, with one warp."""
    row = gl.arange(0, 16, gl.SliceLayout(1, COPY))
    column = gl.arange(0, 16, gl.SliceLayout(0, COPY))
    place = row[:, None] * 16 + column[None, :]
    queries = gl.allocate_shared_memory(gl.float16, [16, 16], PLAIN)
    keys = gl.allocate_shared_memory(gl.float16, [16, 16], PLAIN)
    async_copy.async_load(queries, Q + place)
    async_copy.async_load(keys, K + place)
    async_copy.commit_group()
    async_copy.wait_group(0)
    gl.barrier()

    q = queries.load(LEFT)
    k = keys.permute((1, 0)).load(RIGHT)
    s = mma_v2(q, k, gl.full([16, 16], 0.0, gl.float32, MMA))
    gl.store(S + place, gl.convert_layout(s, COPY))
