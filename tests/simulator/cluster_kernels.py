"""Small Gluon kernels of two CTAs for the tests of the simulator, whole and broken."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    tcgen05_mma,
    tensor_memory_descriptor_type,
)
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

HALVES = gl.constexpr(
    gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0], cga_layout=[[1, 0]])
)  # each CTA has half the rows
BOTH = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0], cga_layout=[[0, 0]]))  # each has all of it
ALONE = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
PAIR = gl.constexpr(TensorMemoryLayout((128, 128), col_stride=1, cga_layout=[[1, 0]], two_ctas=True))
EACH = gl.constexpr(TensorMemoryLayout((128, 128), col_stride=1, cga_layout=[[1, 0]]))
PAIR_OF_64 = gl.constexpr(TensorMemoryLayout((64, 128), col_stride=1, cga_layout=[[1, 0]], two_ctas=True))
OF_PAIR, OF_EACH, OF_PAIR_OF_64 = (
    gl.constexpr(tensor_memory_descriptor_type(gl.float32, [rows, 128], layout.value, [rows, 128]).get_reg_layout(4))
    for layout, rows in ((PAIR, 256), (EACH, 256), (PAIR_OF_64, 128))
)


@gluon.jit
def places(target, rows: gl.constexpr, columns: gl.constexpr, layout: gl.constexpr):
    row = gl.arange(0, rows, gl.SliceLayout(1, layout))
    column = gl.arange(0, columns, gl.SliceLayout(0, layout))
    return target + row[:, None] * columns + column[None, :]


@gluon.jit
def rows_added(source, target, layout: gl.constexpr):
    """target = source + the row's number + the sum of the row, 32 x 64 numbers."""
    tile = gl.load(places(source, 32, 64, layout))
    gl.static_assert(tile.shape[0] == 32)
    row = gl.arange(0, 32, gl.SliceLayout(1, layout))
    gl.store(places(target, 32, 64, layout), tile + (row + gl.sum(tile, 1))[:, None])


@gluon.jit
def rows_added_in_groups(source, target, layout: gl.constexpr):
    """As ``rows_added``, but a row's sum is that of its groups of 16."""
    tile = gl.load(places(source, 32, 64, layout))
    total = gl.sum(gl.sum(gl.reshape(tile, [32, 4, 16]), 2), 1)
    row = gl.arange(0, 32, gl.SliceLayout(1, layout))
    total = gl.convert_layout(total, gl.SliceLayout(1, layout))
    gl.store(places(target, 32, 64, layout), tile + (row + total)[:, None])


@gluon.jit
def own_barrier(count: gl.constexpr):
    made = gl.allocate_shared_memory(gl.int64, [2], mbarrier.MBarrierLayout([[1]]))
    mbarrier.init(made, count=count)
    return made


@gluon.jit
def joint_barrier():
    made = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout([[0]]))
    mbarrier.init(made, count=1)
    return made


@gluon.jit
def brought_to_both(source, target, meets: gl.constexpr):
    """One copy brings 32 x 64 numbers to both CTAs, twice to the same place; target has the second ones.

    meets: the CTAs meet before the second copy.
    """
    place = gl.allocate_shared_memory(source.dtype, source.block_shape, source.layout)
    ready = own_barrier(1)
    for n in range(2):
        mbarrier.expect(ready, source.nbytes_per_cta)
        tma.async_load(source, [32 * n, 0], ready, place, multicast=True)
        mbarrier.wait(ready, n)
        gl.store(places(target, 32, 64, BOTH), place.load(BOTH))
        if meets:
            fence_async_shared()
            hopper.cluster.barrier()


@gluon.jit
def of_both(left, right, target, joint: gl.constexpr, waits: gl.constexpr):
    """target = left @ right, 256 x 128 or 128 x 128 numbers, one product of two CTAs.

    joint: the first CTA waits for the factors in both; else each waits for its own. waits: for the product.
    """
    ROWS: gl.constexpr = left.block_shape[0]
    SUMS: gl.constexpr = PAIR if ROWS == 256 else PAIR_OF_64
    LOADED: gl.constexpr = OF_PAIR if ROWS == 256 else OF_PAIR_OF_64
    a = gl.allocate_shared_memory(left.dtype, left.block_shape, left.layout)
    b = gl.allocate_shared_memory(right.dtype, right.block_shape, right.layout)
    sums = allocate_tensor_memory(gl.float32, [ROWS, 128], SUMS)
    ready = joint_barrier() if joint else own_barrier(1)
    done = own_barrier(1)
    mbarrier.expect(ready, left.nbytes_per_cta + right.nbytes_per_cta)
    tma.async_load(left, [0, 0], ready, a)
    tma.async_load(right, [0, 0], ready, b)
    mbarrier.wait(ready, 0)
    tcgen05_mma(a, b, sums, use_acc=False, mbarriers=[done])
    if waits:
        mbarrier.wait(done, 0)
    gl.store(places(target, ROWS, 128, LOADED), sums.load(LOADED))
    mbarrier.wait(done, 0)


@gluon.jit
def of_each(left, right, target, told: gl.constexpr):
    """target = left @ right, each CTA multiplies its 128 rows by what came to both. told: of how many products."""
    a = gl.allocate_shared_memory(left.dtype, left.block_shape, left.layout)
    b = gl.allocate_shared_memory(right.dtype, right.block_shape, right.layout)
    sums = allocate_tensor_memory(gl.float32, [256, 128], EACH)
    ready = own_barrier(1)
    done = own_barrier(told)
    mbarrier.expect(ready, left.nbytes_per_cta + right.nbytes_per_cta)
    tma.async_load(left, [0, 0], ready, a)
    tma.async_load(right, [0, 0], ready, b, multicast=True)
    mbarrier.wait(ready, 0)
    tcgen05_mma(a, b, sums, use_acc=False, multicast=True, mbarriers=[done])
    mbarrier.wait(done, 0)
    gl.store(places(target, 256, 128, OF_EACH), sums.load(OF_EACH))


@gluon.jit
def meets():
    hopper.cluster.barrier()


@gluon.jit
def arrives_jointly():
    """At a barrier of both; the first CTA waits there."""
    both = joint_barrier()
    mbarrier.arrive(both, count=1)
    mbarrier.wait(both, 0)


@gluon.jit
def sum_of_columns():
    gl.sum(gl.full([32, 64], 1.0, gl.float32, HALVES), 0)


@gluon.jit
def halved_otherwise():
    gl.reshape(gl.full([32, 64], 1.0, gl.float32, HALVES), [2, 16, 64])


@gluon.jit
def to_all():
    gl.convert_layout(gl.full([32, 64], 1.0, gl.float32, HALVES), BOTH)


@gluon.jit
def of_one_cta():
    gl.full([32, 64], 1.0, gl.float32, ALONE)


@gluon.jit
def nothing():
    pass


@gluon.jit
def await_phase(barrier):
    mbarrier.wait(barrier, 0)


@gluon.jit
def end_phase(barrier):
    mbarrier.arrive(barrier, count=1)


@gluon.jit
def with_roles():
    done = own_barrier(1)
    gl.warp_specialize([(await_phase, (done,)), (end_phase, (done,))], [1], [24])


@gluon.jit
def places_of_64_rows(number: gl.constexpr):
    """So many places of 64 rows in each CTA, which take 64 columns."""
    allocate_tensor_memory(gl.float32, [number, 128, 128], PAIR_OF_64)


@gluon.jit
def slice_of_64_rows():
    allocate_tensor_memory(gl.float32, [128, 128], PAIR_OF_64).slice(0, 64)


@gluon.jit
def factor_of_64_rows():
    """A first factor of 64 rows in each CTA lies in tensor memory."""
    sums = allocate_tensor_memory(gl.float32, [128, 128], PAIR_OF_64)
    weights = allocate_tensor_memory(gl.float16, [128, 128], PAIR_OF_64)
    b = gl.allocate_shared_memory(gl.float16, [128, 128], gl.NVMMASharedLayout(128, 16, rank=2, cga_layout=[[0, 1]]))
    done = own_barrier(1)
    tcgen05_mma(weights, b, sums, use_acc=False, mbarriers=[done])


@gluon.jit
def reports_at_once(bytes_per_cta: gl.constexpr):
    """Each CTA announces bytes to a joint barrier as soon as it has made it, behind stores that take their time."""
    zeros = gl.full([256, 128], 0.0, gl.float32, OF_PAIR)
    allocate_tensor_memory(gl.float32, [256, 128], PAIR, zeros)
    allocate_tensor_memory(gl.float32, [256, 128], PAIR, zeros)
    ready = joint_barrier()
    mbarrier.expect(ready, bytes_per_cta)
