"""Small Gluon kernels for the tests of the simulator, whole and broken."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from steps.backward_hopper.lib import AWAIT, async_reduce_shared_to_global

LAYOUT = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
OF_EIGHT_WARPS = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [8, 1], [1, 0]))
PRODUCT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [8, 1], [16, 64, 16]))  # of eight warps: two warpgroups
OTHER = gl.constexpr(gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0]))
PLAIN = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))


@gluon.jit
def add_one(source, target, n):
    """target = source + 1, 64 numbers a block."""
    at = gl.program_id(0) * 64 + gl.arange(0, 64, gl.SliceLayout(1, LAYOUT))
    gl.store(target + at, gl.load(source + at, mask=at < n, other=0.0) + 1.0, mask=at < n)


@gluon.jit
def divide(quotients, remainders, ceilings, count):
    """What ``//``, ``%`` and ``cdiv`` by 2 make of -3, -2, … one by one, and of the same as a tile behind them."""
    for n in range(count):
        x = n - 3
        gl.store(quotients + n, x // 2)
        gl.store(remainders + n, x % 2)
        gl.store(ceilings + n, gl.cdiv(x, 2))
    at = gl.arange(0, 16, gl.SliceLayout(1, LAYOUT))
    gl.store(quotients + count + at, (at - 3) // 2)
    gl.store(remainders + count + at, (at - 3) % 2)


@gluon.jit
def await_block(counts, which):
    """Block 0 counts itself when ``which`` blocks have, block 1 at once."""
    gl.inline_asm_elementwise(
        AWAIT, "=r,l,r", [counts, which * (1 - gl.program_id(0))], dtype=gl.int32, is_pure=False, pack=1
    )
    gl.atomic_add(counts, 1, sem="release", scope="gpu")


@gluon.jit
def looked_into(x):
    print("the sum is", gl.sum(x, 0))
    breakpoint()


@gluon.jit
def calls_what_is_looked_into(source):
    looked_into(gl.load(source + gl.arange(0, 64, gl.SliceLayout(1, LAYOUT))))


@gluon.jit
def copy(source, target, waits: gl.constexpr):
    """16 x 64 numbers by way of shared memory, with cp.async; without the wait it reads what has not come."""
    row = gl.arange(0, 16, gl.SliceLayout(1, LAYOUT))
    column = gl.arange(0, 64, gl.SliceLayout(0, LAYOUT))
    at = row[:, None] * 64 + column[None, :]
    place = gl.allocate_shared_memory(gl.float16, [16, 64], PLAIN)
    async_copy.async_load(place, source + at)
    async_copy.commit_group()
    if waits:
        async_copy.wait_group(0)
    gl.store(target + at, place.load(LAYOUT))


@gluon.jit
def by_tma(source, target, waits: gl.constexpr, fences: gl.constexpr, bytes_expected: gl.constexpr):
    """A box from one tensor to another with TMA, plus one."""
    place = gl.allocate_shared_memory(source.dtype, source.block_shape, source.layout)
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    fence_async_shared()
    mbarrier.expect(ready, bytes_expected)
    tma.async_load(source, [0, 0], ready, place)
    if waits:
        mbarrier.wait(ready, 0)
    place.store(place.load(LAYOUT) + 1.0)
    if fences:
        fence_async_shared()
    tma.async_store(target, [0, 0], place)
    tma.store_wait(0)


@gluon.jit
def mixed_layouts(target):
    """Adds tiles that other lanes hold."""
    one = gl.full([16, 64], 1.0, gl.float32, LAYOUT)
    two = gl.full([16, 64], 2.0, gl.float32, OTHER)
    gl.store(target, gl.sum(gl.sum(one + two, 1), 0))


@gluon.jit
def outside(source, target):
    """Reads behind the end."""
    gl.store(target, gl.load(source + 1000))


@gluon.jit
def unknown(target):
    """Uses what the simulator does not have."""
    gl.atomic_xchg(target, 1.0)


@gluon.jit
def too_much(target):
    """More shared memory than there is."""
    gl.allocate_shared_memory(gl.float16, [1024, 128], PLAIN)


@gluon.jit
def give(ready, place):
    place.store(gl.full([16, 64], 3.0, gl.float16, LAYOUT))
    mbarrier.arrive(ready, count=1)


@gluon.jit
def take(ready, place, target, parity: gl.constexpr):
    mbarrier.wait(ready, parity)
    gl.store(target, gl.sum(gl.sum(place.load(LAYOUT).to(gl.float32), 1), 0))


@gluon.jit
def two_roles(target, parity: gl.constexpr):
    """One role writes, the other reads: with parity 0 behind it, with parity 1 at once."""
    place = gl.allocate_shared_memory(gl.float16, [16, 64], PLAIN)
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    gl.warp_specialize([(take, (ready, place, target, parity)), (give, (ready, place))], [4], [24])


@gluon.jit
def place_filled_again(left, right, target, early: gl.constexpr, late: gl.constexpr, stores: gl.constexpr):
    """Two warpgroups multiply by a tile; then another tile comes into its place, and they multiply by that.

    early, late: barriers behind the product's begin, and behind the wait for it. stores: ordinary ones write the other
    tile, which is all ones; else TMA brings it.
    """
    a = gl.allocate_shared_memory(left.dtype, left.block_shape, left.layout)
    b = gl.allocate_shared_memory(right.dtype, right.block_shape, right.layout)
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    fence_async_shared()
    mbarrier.expect(ready, left.nbytes_per_cta + right.nbytes_per_cta)
    tma.async_load(left, [0, 0], ready, a)
    tma.async_load(right, [0, 0], ready, b)
    mbarrier.wait(ready, 0)
    if not stores:
        mbarrier.expect(ready, right.nbytes_per_cta)
    product = gl.full([128, 64], 0.0, gl.float32, PRODUCT)
    product = warpgroup_mma(a, b, product, is_async=True)
    if early:
        gl.barrier()
    product = warpgroup_mma_wait(0, deps=[product])
    if late:
        gl.barrier()
    if stores:
        b.store(gl.full([64, 64], 1.0, gl.float16, OF_EIGHT_WARPS))
        fence_async_shared()
    else:
        tma.async_load(right, [64, 0], ready, b)
        mbarrier.wait(ready, 1)
    product = warpgroup_mma(a, b, product, is_async=True)
    product = warpgroup_mma_wait(0, deps=[product])
    a.store(product.to(gl.float16))
    fence_async_shared()
    tma.async_store(target, [0, 0], a)
    tma.store_wait(0)


@gluon.jit
def multiply(a, b, ready, free, target, early: gl.constexpr):
    mbarrier.wait(ready, 0)
    product = gl.full([128, 64], 0.0, gl.float32, PRODUCT)
    product = warpgroup_mma(a, b, product, is_async=True)
    if early:
        gl.barrier()
    product = warpgroup_mma_wait(0, deps=[product])
    mbarrier.arrive(free, count=1)
    rows = gl.arange(0, 128, gl.SliceLayout(1, PRODUCT))
    columns = gl.arange(0, 64, gl.SliceLayout(0, PRODUCT))
    gl.store(target + rows[:, None] * 64 + columns[None, :], product)


@gluon.jit
def refill(left, right, a, b, ready, free):
    mbarrier.expect(ready, left.nbytes_per_cta + right.nbytes_per_cta)
    tma.async_load(left, [0, 0], ready, a)
    tma.async_load(right, [0, 0], ready, b)
    mbarrier.wait(free, 0)
    mbarrier.expect(ready, right.nbytes_per_cta)
    tma.async_load(right, [64, 0], ready, b)
    mbarrier.wait(ready, 1)


@gluon.jit
def given_back(left, right, target, early: gl.constexpr):
    """A role of two warpgroups multiplies by a tile and gives its place back; another role lets TMA fill it again.

    early: a barrier behind the product's begin.
    """
    a = gl.allocate_shared_memory(left.dtype, left.block_shape, left.layout)
    b = gl.allocate_shared_memory(right.dtype, right.block_shape, right.layout)
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    mbarrier.init(free, count=1)
    fence_async_shared()
    gl.warp_specialize(
        [(multiply, (a, b, ready, free, target, early)), (refill, (left, right, a, b, ready, free))], [4], [24]
    )


@gluon.jit
def waits_for_ever():
    """Nobody arrives."""
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=2)
    mbarrier.arrive(ready, count=1)
    mbarrier.wait(ready, 0)


@gluon.jit
def add_atomically(target):
    """Every block adds 1 to the first 64 numbers, of which the last are left out."""
    at = gl.arange(0, 64, gl.SliceLayout(1, LAYOUT))
    gl.atomic_add(target + at, gl.full([64], 1.0, gl.float32, gl.SliceLayout(1, LAYOUT)), mask=at < 60, sem="relaxed")


@gluon.jit
def reduce(target, fences: gl.constexpr, waits: gl.constexpr):
    """TMA adds a tile of ones twice; the place is written again in between."""
    place = gl.allocate_shared_memory(gl.float16, target.block_shape, target.layout)
    for _ in range(2):
        place.store(gl.full([16, 64], 1.0, gl.float16, LAYOUT))
        if fences:
            fence_async_shared()
        async_reduce_shared_to_global(target, [0, 0], place)
        if waits:
            tma.store_wait(0)
    tma.store_wait(0)


@gluon.jit
def older_barrier():
    gl.thread_barrier()
    gl.barrier()
