"""Small kernels of the chapter on wgmma and roles: they run on the simulator, and compile for sm_90."""

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
FIRST_FACTOR = gl.constexpr(gl.DotOperandLayout(operand_index=0, parent=SUMS, k_width=2))


@gluon.jit
def no_sums():
    return gl.full([SIDE, SIDE], 0.0, gl.float32, SUMS)


@gluon.jit
def write(target, sums):
    """64 x 64 numbers to global memory, each by the lane that holds it."""
    row = gl.arange(0, SIDE, gl.SliceLayout(1, SUMS))
    column = gl.arange(0, SIDE, gl.SliceLayout(0, SUMS))
    gl.store(target + row[:, None] * SIDE + column[None, :], sums)


# --- products ---


@gluon.jit
def bring_factors(a, b, tiles):
    """One tile of a and one of b, side by side in shared memory."""
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    fence_async_shared()
    mbarrier.expect(ready, 2 * TILE_BYTES)
    tma.async_load(a, [0, 0], ready, tiles.index(0))
    tma.async_load(b, [0, 0], ready, tiles.index(1))
    mbarrier.wait(ready, 0)


@gluon.jit
def multiply(a, b, target, in_registers: gl.constexpr):
    """target = a @ b, the first factor from shared memory or from registers."""
    tiles = gl.allocate_shared_memory(gl.float16, [2, SIDE, SIDE], SHARED)
    bring_factors(a, b, tiles)
    first = tiles.index(0)
    if in_registers:
        first = first.load(FIRST_FACTOR)
    sums = warpgroup_mma(first, tiles.index(1), no_sums(), use_acc=False, is_async=True)
    sums = warpgroup_mma_wait(0, deps=[sums])
    write(target, sums)


@gluon.jit
def two_products(a, b, target):
    """target = 2 * (a @ b) + b @ a; the first product is used while the second may still run."""
    tiles = gl.allocate_shared_memory(gl.float16, [2, SIDE, SIDE], SHARED)
    bring_factors(a, b, tiles)
    one = warpgroup_mma(tiles.index(0), tiles.index(1), no_sums(), use_acc=False, is_async=True)
    two = warpgroup_mma(tiles.index(1), tiles.index(0), no_sums(), use_acc=False, is_async=True)
    one = warpgroup_mma_wait(1, deps=[one])
    doubled = one * 2.0
    two = warpgroup_mma_wait(0, deps=[two])
    write(target, doubled + two)


# --- a ring between a producer and a consumer ---


class Ring(NamedTuple):
    """STAGES places for a tile of a and one of b, and two barriers for each: filled, and given back."""

    a: object
    b: object
    ready: object
    free: object


@gluon.jit
def barriers(length: gl.constexpr):
    made = gl.allocate_shared_memory(gl.int64, [length, 1], mbarrier.MBarrierLayout())
    for n in gl.static_range(length):
        mbarrier.init(made.index(n), count=1)
    return made


@gluon.jit
def bring(a, b, ring, n):
    """The producer: tile n of a and of b, into their place in the ring."""
    stage = n % STAGES
    mbarrier.wait(ring.free.index(stage), n // STAGES & 1 ^ 1)
    mbarrier.expect(ring.ready.index(stage), 2 * TILE_BYTES)
    tma.async_load(a, [0, n * SIDE], ring.ready.index(stage), ring.a.index(stage))
    tma.async_load(b, [n * SIDE, 0], ring.ready.index(stage), ring.b.index(stage))


@gluon.jit
def take(ring, n, sums):
    """The consumer: add the product of tile n, and give its place back."""
    stage = n % STAGES
    mbarrier.wait(ring.ready.index(stage), n // STAGES & 1)
    sums = warpgroup_mma(ring.a.index(stage), ring.b.index(stage), sums, is_async=True)
    sums = warpgroup_mma_wait(0, deps=[sums])
    mbarrier.arrive(ring.free.index(stage), count=1)
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
    """target = a @ b, a tile of their common axis after the other: one warp fetches, four multiply."""
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


def multiply_case(chance, in_registers=False):
    (a, b), target = factors(chance), empty()
    return Case(multiply, (described(a), described(b), target, in_registers), target, a.float() @ b.float())


def registers_case(chance):
    return multiply_case(chance, in_registers=True)


def two_products_case(chance):
    (a, b), target = factors(chance), empty()
    return Case(
        two_products,
        (described(a), described(b), target),
        target,
        2 * (a.float() @ b.float()) + b.float() @ a.float(),
    )


def matmul_case(chance, tiles=None):
    tiles = tiles or chance.randint(7, 11)  # every place is filled three times, some four
    (a, b), target = factors(chance, tiles * SIDE.value), empty()
    return Case(matmul, (described(a), described(b), target, tiles), target, a.float() @ b.float())


CASES = {
    "multiply": multiply_case,
    "multiply from registers": registers_case,
    "two_products": two_products_case,
    "matmul": matmul_case,
}
