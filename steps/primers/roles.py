"""A small kernel with a producer and a consumer: it runs on the simulator, and compiles for sm_90."""

from typing import NamedTuple

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from steps.primers.simulated import Case

SIDE = gl.constexpr(64)  # rows, columns and depth of a tile
TILE_BYTES = gl.constexpr(SIDE.value * SIDE.value * 2)
STAGES = gl.constexpr(3)
SHARED = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2))
SUMS = gl.constexpr(gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16]))


@gluon.jit
def no_sums():
    return gl.full([SIDE, SIDE], 0.0, gl.float32, SUMS)


@gluon.jit
def write(target, sums):
    """64 x 64 numbers to global memory, each by the lane that holds it."""
    row = gl.arange(0, SIDE, gl.SliceLayout(1, SUMS))
    column = gl.arange(0, SIDE, gl.SliceLayout(0, SUMS))
    gl.store(target + row[:, None] * SIDE + column[None, :], sums)


# --- a ring between a producer and a consumer ---


class Ring(NamedTuple):
    """STAGES slots for a tile of a and one of b, and two barriers for each: filled, and given back."""

    a: object
    b: object
    full: object
    empty: object


@gluon.jit
def barriers(length: gl.constexpr):
    made = gl.allocate_shared_memory(gl.int64, [length, 1], mbarrier.MBarrierLayout())
    for n in gl.static_range(length):
        mbarrier.init(made.index(n), count=1)
    return made


@gluon.jit
def bring(a, b, ring, n):
    """The producer: tile n of a and of b, into their slot of the ring."""
    stage = n % STAGES
    mbarrier.wait(ring.empty.index(stage), n // STAGES & 1 ^ 1)
    mbarrier.expect(ring.full.index(stage), 2 * TILE_BYTES)
    tma.async_load(a, [0, n * SIDE], ring.full.index(stage), ring.a.index(stage))
    tma.async_load(b, [n * SIDE, 0], ring.full.index(stage), ring.b.index(stage))


@gluon.jit
def take(ring, n, sums):
    """The consumer: add the product of tile n, and give its slot back."""
    stage = n % STAGES
    mbarrier.wait(ring.full.index(stage), n // STAGES & 1)
    sums = warpgroup_mma(ring.a.index(stage), ring.b.index(stage), sums, is_async=True)
    sums = warpgroup_mma_wait(0, deps=[sums])
    mbarrier.arrive(ring.empty.index(stage), count=1)
    return sums


@gluon.jit
def produce(a, b, ring, tiles):
    for n in range(tiles):
        bring(a, b, ring, n)


@gluon.jit
def consume(target, ring, tiles):
    sums = no_sums()
    for n in range(tiles):
        sums = take(ring, n, sums)
    write(target, sums)


@gluon.jit
def matmul(a, b, target, tiles):
    """target = a @ b, one tile of their common axis after another: one warp fetches, four multiply."""
    ring = Ring(
        gl.allocate_shared_memory(gl.float16, [STAGES, SIDE, SIDE], SHARED),
        gl.allocate_shared_memory(gl.float16, [STAGES, SIDE, SIDE], SHARED),
        barriers(STAGES),
        barriers(STAGES),
    )
    fence_async_shared()  # TMA sees the barriers
    gl.warp_specialize(
        [
            (consume, (target, ring, tiles)),  # the four warps that the block began with
            (produce, (a, b, ring, tiles)),
        ],
        [1],  # warps of every function but the first
        [24],  # registers of a thread of those
    )


# --- how they are launched ---


def described(tensor):
    """A tensor as TMA knows it."""
    box = [SIDE.value, SIDE.value]
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), box, SHARED.value)


def factors(chance, depth=64):
    some = torch.Generator().manual_seed(chance.getrandbits(32))
    return [torch.randn(shape, generator=some).half() for shape in ((SIDE.value, depth), (depth, SIDE.value))]


def empty():
    return torch.full((SIDE.value, SIDE.value), float("nan"))


def matmul_case(chance, tiles=None):
    tiles = tiles or chance.randint(7, 11)  # every slot is filled three times, some four
    (a, b), target = factors(chance, tiles * SIDE.value), empty()
    return Case(matmul, (described(a), described(b), target, tiles), target, a.float() @ b.float())


CASES = {"matmul": matmul_case}
