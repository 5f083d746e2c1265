"""An instruction of Hopper that Gluon has no function for."""

from __future__ import annotations

from triton.experimental.gluon.language._core import builtin


@builtin
def async_reduce_shared_to_global(tensor_desc, coord, src, _semantic=None):
    """Ask TMA to add a tile in shared memory to one in global memory: PTX's cp.reduce.async.bulk.tensor, ``.add``.

    Gluon has no function for it; its compiler does. ``tma.store_wait`` waits for it as for a store.
    """
    from triton._C.libtriton import ir

    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, tensor_desc.handle, coord, src.handle)
