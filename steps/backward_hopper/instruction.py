"""Instructions of Hopper that Gluon has no function for."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin

# The threads poll, as a barrier of mbarrier's kind does not reach to other blocks. What TMA does next comes after the
# load in the order of memory, as the proxy fence says. [PTX ISA: ld.acquire, fence.proxy.async]
AWAIT = gl.constexpr(
    "{ .reg .pred wrong; .reg .b32 seen;"
    " again: ld.acquire.gpu.global.b32 seen, [$1]; setp.ne.b32 wrong, seen, $2; @wrong bra again;"
    " fence.proxy.async.global; mov.b32 $0, seen; }"
)
# Gluon's store_wait waits until TMA has read shared memory; this, until it has written global memory, too.
# [PTX ISA: cp.async.bulk.wait_group]
WRITTEN = gl.constexpr("cp.async.bulk.wait_group 0; mov.b32 $0, 0;")
WRITTEN_BUT_TWO = gl.constexpr("cp.async.bulk.wait_group 2; mov.b32 $0, 0;")  # the last two may be under way

# A kernel that was launched to begin early waits until all kernels before it have ended, and what they have written is
# there. And a block lets the next kernel begin; it does when all blocks have, or have ended. [PTX ISA: griddepcontrol]
AWAIT_KERNELS_BEFORE = gl.constexpr("griddepcontrol.wait; mov.b32 $0, 0;")
LET_NEXT_BEGIN = gl.constexpr("griddepcontrol.launch_dependents; mov.b32 $0, 0;")


@gluon.jit
def await_kernels_before(variant: gl.constexpr):
    """Wait until all kernels before this one have ended, where this one may begin early."""
    if variant.early:
        gl.inline_asm_elementwise(AWAIT_KERNELS_BEFORE, "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def let_next_begin(variant: gl.constexpr):
    """Let the next kernel begin, where that may begin early, as soon as blocks of it find room."""
    if variant.early:
        gl.inline_asm_elementwise(LET_NEXT_BEGIN, "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@builtin
def async_reduce_shared_to_global(tensor_desc, coord, src, _semantic=None):
    """Ask TMA to add a tile in shared memory to one in global memory: PTX's cp.reduce.async.bulk.tensor, ``.add``.

    Gluon has no function for it; its compiler does. ``tma.store_wait`` waits for it as for a store.
    """
    from triton._C.libtriton import ir

    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, tensor_desc.handle, coord, src.handle)
