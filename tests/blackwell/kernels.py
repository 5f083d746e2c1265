"""Small Gluon kernels with tensor memory for the tests of the simulator, whole and broken."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    clc,
    tcgen05_commit,
    tcgen05_mma,
    tensor_memory_descriptor_type,
)
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from steps.blackwell.softmax import exp2_by_polynomial

COLUMNS = gl.constexpr(TensorMemoryLayout((128, 128), col_stride=1))
HALF = gl.constexpr(TensorMemoryLayout((128, 64), col_stride=1))
SUMS, WEIGHTS, FEW = (
    gl.constexpr(tensor_memory_descriptor_type(dtype, shape, layout.value, shape).get_reg_layout(4))
    for dtype, shape, layout in (
        (gl.float32, [128, 128], COLUMNS),
        (gl.float16, [128, 128], COLUMNS),
        (gl.float32, [128, 64], HALF),
    )
)
LINE = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))


@gluon.jit
def barrier():
    made = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(made, count=1)
    return made


@gluon.jit
def factors(left, right):
    """Two tiles of 128 x 128, brought by TMA."""
    a = gl.allocate_shared_memory(left.dtype, left.block_shape, left.layout)
    b = gl.allocate_shared_memory(right.dtype, right.block_shape, right.layout)
    ready = barrier()
    fence_async_shared()
    mbarrier.expect(ready, left.nbytes_per_cta + right.nbytes_per_cta)
    tma.async_load(left, [0, 0], ready, a)
    tma.async_load(right, [0, 0], ready, b)
    mbarrier.wait(ready, 0)
    return a, b


@gluon.jit
def write(target, tile):
    layout: gl.constexpr = tile.type.layout
    row = gl.arange(0, 128, gl.SliceLayout(1, layout))
    column = gl.arange(0, tile.shape[1], gl.SliceLayout(0, layout))
    gl.store(target + row[:, None] * tile.shape[1] + column[None, :], tile)


@gluon.jit
def unasked(target):
    """target = 3: tiles loaded without a layout, and added to others in the layout that these must have."""
    sums = allocate_tensor_memory(gl.float32, [128, 128], COLUMNS)
    sums.store(gl.full([128, 128], 1.0, gl.float32, sums.get_reg_layout()))
    some = sums.slice(64, 64)
    some.store(some.load() + gl.full([128, 64], 0.0, gl.float32, FEW))
    write(target, sums.load() + gl.full([128, 128], 2.0, gl.float32, SUMS))


@gluon.jit
def product(left, right, target, told: gl.constexpr, waits: gl.constexpr):
    """target = left @ right. told: by the product itself, or by a commit behind it; waits: for that."""
    a, b = factors(left, right)
    done = barrier()
    sums = allocate_tensor_memory(gl.float32, [128, 128], COLUMNS)
    if told:
        tcgen05_mma(a, b, sums, use_acc=False, mbarriers=[done])
    else:
        tcgen05_mma(a, b, sums, use_acc=False, mbarriers=[])
        tcgen05_commit(done)
    if waits:
        mbarrier.wait(done, 0)
    write(target, sums.load(SUMS))
    mbarrier.wait(done, 0)


@gluon.jit
def synchronous(left, right, target):
    """target = left @ right + 1, with a product that is waited for where it is begun."""
    a, b = factors(left, right)
    sums = allocate_tensor_memory(gl.float32, [128, 128], COLUMNS, gl.full([128, 128], 1.0, gl.float32, SUMS))
    tcgen05_mma(a, b, sums)
    write(target, sums.load(SUMS))


@gluon.jit
def same_place(left, right, target, same: gl.constexpr, waits: gl.constexpr):
    """target = (left @ right) @ right + what is there: the first factor of the second product lies where sums were.

    same: the products behind it go into the same accumulator; else one goes where that factor is. waits: for the
    second before the third.
    """
    a, b = factors(left, right)
    done = barrier()
    first = allocate_tensor_memory(gl.float32, [128, 128], COLUMNS)
    second = allocate_tensor_memory(gl.float32, [128, 128], COLUMNS)
    tcgen05_mma(a, b, first, use_acc=False, mbarriers=[done])
    mbarrier.wait(done, 0)
    weights = first.reinterpret(gl.float16, [128, 128], COLUMNS)
    weights.store(gl.convert_layout(first.load(SUMS).to(gl.float16), WEIGHTS))
    tcgen05_mma(weights, b, second, use_acc=False, mbarriers=[])
    if waits:
        tcgen05_commit(done)
        mbarrier.wait(done, 1)
    tcgen05_mma(a, b, second if same else first, use_acc=same, mbarriers=[])
    tcgen05_commit(done)
    mbarrier.wait(done, 0 if waits else 1)
    write(target, second.load(SUMS))


@gluon.jit
def unfinished(left, right):
    """Ends under a product."""
    a, b = factors(left, right)
    sums = allocate_tensor_memory(gl.float32, [128, 128], COLUMNS)
    tcgen05_mma(a, b, sums, use_acc=False, mbarriers=[])


@gluon.jit
def too_many_columns():
    allocate_tensor_memory(gl.float32, [4, 128, 128], COLUMNS)
    allocate_tensor_memory(gl.float16, [128, 128], COLUMNS)


@gluon.jit
def outside(target):
    tensor = allocate_tensor_memory(gl.float32, [128, 128], COLUMNS)
    tensor.slice(64, 128)


@gluon.jit
def two_warps(target):
    allocate_tensor_memory(gl.float32, [128, 128], COLUMNS).load(SUMS)


@gluon.jit
def wrong_factors(left, right):
    """The second factor's rows are as many as the first one's, and not as its columns."""
    a, b = factors(left, right)
    sums = allocate_tensor_memory(gl.float32, [128, 128], COLUMNS)
    tcgen05_mma(a, b.slice(0, 64, 0), sums)


@gluon.jit
def slices(target):
    """Columns 0 to 63 of a tensor are 1, and those behind them 2; target gets the last of the former, and the rest."""
    tensor = allocate_tensor_memory(gl.float32, [128, 128], COLUMNS)
    tensor.slice(0, 64).store(gl.full([128, 64], 1.0, gl.float32, FEW))
    tensor.slice(64, 64).store(gl.full([128, 64], 2.0, gl.float32, FEW))
    write(target, tensor.slice(32, 64).load(FEW))


@gluon.jit
def by_polynomial(source, target):
    """target = 2^source, 1024 numbers."""
    at = gl.arange(0, 1024, LINE)
    gl.store(target + at, exp2_by_polynomial(gl.load(source + at)))


@gluon.jit
def waits_for_another(left, right, target):
    """Waits for a second phase, which no product completes."""
    a, b = factors(left, right)
    done = barrier()
    sums = allocate_tensor_memory(gl.float32, [128, 128], COLUMNS)
    tcgen05_mma(a, b, sums, use_acc=False, mbarriers=[done])
    mbarrier.wait(done, 0)
    mbarrier.wait(done, 1)
    write(target, sums.load(SUMS))


@gluon.jit
def take_blocks(target, waits: gl.constexpr, again: gl.constexpr):
    """Every block of the grid counts itself in ``target`` [z, y, x], and then those that it takes.

    waits: for the answer to its request. again: it asks once more when there is none left.
    """
    answer = gl.allocate_shared_memory(gl.int64, [2], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    ready = barrier()
    fence_async_shared()
    x = gl.program_id(0)
    y = gl.program_id(1)
    z = gl.program_id(2)
    phase = 0
    more = True
    while more:
        gl.atomic_add(target + (z * gl.num_programs(1) + y) * gl.num_programs(0) + x, 1)
        mbarrier.expect(ready, 16)
        clc.try_cancel(answer, ready)
        if waits:
            mbarrier.wait(ready, phase)
        phase ^= 1
        found = clc.load_result(answer)
        more = found.is_canceled()
        x = found.program_id(0)
        y = found.program_id(1)
        z = found.program_id(2)
    if not waits:
        mbarrier.wait(ready, 0)
    if again:
        mbarrier.expect(ready, 16)
        clc.try_cancel(answer, ready)


@gluon.jit
def hand_on(answer, ready, heard, target, keeps: gl.constexpr):
    """A role that asks for blocks until there is none. keeps: an answer until the other role has read it."""
    iteration = 0
    more = True
    while more:
        if keeps:
            mbarrier.wait(heard, iteration & 1 ^ 1)
        mbarrier.expect(ready, 16)
        clc.try_cancel(answer, ready)
        mbarrier.wait(ready, iteration & 1)
        more = clc.load_result(answer).is_canceled()
        iteration += 1


@gluon.jit
def count_blocks(answer, ready, heard, target, keeps: gl.constexpr):
    """A role that counts the block it is in, and those that it hears of."""
    x = gl.program_id(0)
    iteration = 0
    more = True
    while more:
        gl.atomic_add(target + x, 1)
        mbarrier.wait(ready, iteration & 1)
        found = clc.load_result(answer)
        more = found.is_canceled()
        x = found.program_id(0)
        if keeps:
            mbarrier.arrive(heard, count=1)
        iteration += 1


@gluon.jit
def take_blocks_for_another(target, keeps: gl.constexpr):
    """One role takes blocks, and the other counts them."""
    answer = gl.allocate_shared_memory(gl.int64, [2], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    ready = barrier()
    heard = barrier()
    fence_async_shared()
    passed = answer, ready, heard, target, keeps
    gl.warp_specialize([(count_blocks, passed), (hand_on, passed)], [1], [24])
