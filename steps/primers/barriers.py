"""Small kernels of the chapter on mbarriers and TMA: they run on the simulator, and compile for sm_90."""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from steps.primers.simulated import Case

ROWS = gl.constexpr(16)  # of a box
COLUMNS = gl.constexpr(64)
LAYOUT = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
SHARED = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)


@gluon.jit
def load_box(source, row, buffer, full, n):
    """Bring rows [row, row + ROWS) into a buffer in shared memory, and wait for them: use n of the barrier."""
    mbarrier.expect(full, ROWS * COLUMNS * 2)
    tma.async_load(source, [row, 0], full, buffer)
    mbarrier.wait(full, n & 1)


@gluon.jit
def double(source, target, boxes):
    """target = 2 * source, one box after another, in one buffer in shared memory."""
    buffer = gl.allocate_shared_memory(gl.float16, [ROWS, COLUMNS], source.layout)
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    fence_async_shared()  # TMA sees the barrier
    for n in range(boxes):
        load_box(source, n * ROWS, buffer, full, n)
        buffer.store(buffer.load(LAYOUT) * 2.0)
        fence_async_shared()  # TMA sees what the warps have written
        tma.async_store(target, [n * ROWS, 0], buffer)
        tma.store_wait(0)  # TMA has read the buffer: it may be filled again


def described(tensor):
    """A tensor as TMA knows it: where it is, its shape and strides, the box, and how the box lies in shared memory."""
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [ROWS.value, COLUMNS.value], SHARED)


def double_case(chance, rows=None):
    """A tensor of three boxes or more, of which the last may be cut."""
    rows = rows or chance.randint(40, 100)
    source = torch.randn(rows, COLUMNS.value, generator=torch.Generator().manual_seed(chance.getrandbits(32))).half()
    target = torch.full_like(source, float("nan"))
    boxes = -(-rows // ROWS.value)
    return Case(double, (described(source), described(target), boxes), target, source * 2)


CASES = {"double": double_case}
