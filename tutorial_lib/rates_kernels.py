"""The kernels of ``tutorial_lib.rates``; a module of its own, as Triton is loaded only where there is a GPU."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)


@gluon.jit
def keep(out, values):
    """Something comes of the work, so that no compiler leaves it out; what is stored is never read."""
    total = gl.sum(gl.sum(values, 1), 0)
    gl.store(out, total)


@gluon.jit
def mma_sync(out, number, iterations):
    """Every warp has 32 rows; the 32 products of an iteration do not wait for each other."""
    ACCUMULATOR: gl.constexpr = gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[8, 1], instr_shape=[16, 8])
    LEFT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=ACCUMULATOR, k_width=2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(operand_index=1, parent=ACCUMULATOR, k_width=2)
    a = gl.full([256, 32], number, gl.float32, LEFT).to(gl.float16)
    b = gl.full([32, 64], number, gl.float32, RIGHT).to(gl.float16)
    accumulator = gl.full([256, 64], 0.0, gl.float32, ACCUMULATOR)
    for _ in range(iterations):
        accumulator = mma_v2(a, b, accumulator)
    keep(out, accumulator)


@gluon.jit
def wgmma(out, number, iterations, COLUMNS: gl.constexpr, FROM_REGISTERS: gl.constexpr):
    """A warpgroup with 64 rows: while it waits and issues again, the products of the SM's other block run."""
    ACCUMULATOR: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, COLUMNS, 16]
    )
    LEFT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=ACCUMULATOR, k_width=2)
    SHARED: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    b = gl.allocate_shared_memory(gl.float16, [COLUMNS, 128], SHARED)
    if FROM_REGISTERS:
        a = gl.full([64, 128], number, gl.float32, LEFT).to(gl.float16)
    else:
        a = gl.allocate_shared_memory(gl.float16, [64, 128], SHARED)
    accumulator = gl.full([64, COLUMNS], number, gl.float32, ACCUMULATOR)
    for _ in range(iterations):
        accumulator = warpgroup_mma(a, b.permute((1, 0)), accumulator, is_async=True)
        accumulator = warpgroup_mma_wait(0, deps=[accumulator])
    keep(out, accumulator)


@gluon.jit
def ex2(out, number, iterations):
    """16 numbers a lane, of 16 warps."""
    LANES: gl.constexpr = gl.BlockedLayout([1, 16], [32, 1], [16, 1], [1, 0])
    values = gl.full([512, 16], number, gl.float32, LANES)
    for _ in range(iterations):
        values = gl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [values], dtype=gl.float32, is_pure=True, pack=1
        )
    keep(out, values)


@gluon.jit
def fma(out, number, iterations):
    """16 numbers a lane, of 16 warps."""
    LANES: gl.constexpr = gl.BlockedLayout([1, 16], [32, 1], [16, 1], [1, 0])
    values = gl.full([512, 16], number, gl.float32, LANES)
    for _ in range(iterations):
        values = gl.fma(values, values, values)
    keep(out, values)


@gluon.jit
def block(source, target, tiles):
    """A tile comes by TMA and goes. The four places leave no room for a second block on the SM: they take turns."""
    places = gl.allocate_shared_memory(gl.float16, [4, 128, 128], source.layout)
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    fence_async_shared()
    row = gl.program_id(0) % tiles * 128
    mbarrier.expect(ready, 128 * 128 * 2)
    tma.async_load(source, [row, 0], ready, places.index(0))
    mbarrier.wait(ready, 0)
    mbarrier.invalidate(ready)
    tma.async_store(target, [row, 0], places.index(0))
    tma.store_wait(0)
