"""Instructions of Hopper that Gluon has no function for."""

from __future__ import annotations

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


@builtin
def async_reduce_shared_to_global(tensor_desc, coord, src, _semantic=None):
    """Ask TMA to add a tile in shared memory to one in global memory: PTX's cp.reduce.async.bulk.tensor, ``.add``.

    Gluon has no function for it; its compiler does. ``tma.store_wait`` waits for it as for a store.
    """
    from triton._C.libtriton import ir

    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, tensor_desc.handle, coord, src.handle)
