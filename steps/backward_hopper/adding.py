"""How a tile of dQ is added to what other blocks have added: from registers, or by TMA."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from steps.backward_hopper.pipeline import position


@builtin
def async_reduce_shared_to_global(tensor_desc, coord, src, _semantic=None):
    """Ask TMA to add a tile in shared memory to one in global memory: PTX's cp.reduce.async.bulk.tensor, ``.add``.

    Gluon has no function for it; its compiler does. ``tma.store_wait`` waits for it as for a store.
    """
    from triton._C.libtriton import ir

    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, tensor_desc.handle, coord, src.handle)


@gluon.jit
def add_to_query(d_query, arrays, tiles, turn, work, padded, part: gl.constexpr, variant: gl.constexpr):
    """Add dQ [query, head_dim] of a turn's tile of queries to the sums."""
    ROWS: gl.constexpr = variant.tile.query
    head, i = position(work, turn, variant)
    if variant.adding == "pairs":
        # As wgmma leaves it a lane has two neighbouring columns, which are added together.
        first = (work.batch.to(gl.int64) * work.heads + head) * padded + i * ROWS
        row = gl.arange(0, ROWS, gl.SliceLayout(1, variant.query_sums))
        column = gl.arange(0, variant.head_dim, gl.SliceLayout(0, variant.query_sums))
        place = (arrays.sums + first * variant.head_dim) + (row[:, None] * variant.head_dim + column[None, :])
        gl.atomic_add(place, d_query, sem="relaxed", scope="gpu")
    elif variant.adding == "fours":
        # Of 16 columns a lane has two, and two that lie 8 further. The sums hold these four side by side.
        D: gl.constexpr = variant.head_dim
        d_query = d_query.reshape([ROWS, D // 16, 2, 4, 2]).permute((0, 1, 3, 2, 4)).reshape([ROWS, D])
        d_query = gl.convert_layout(d_query, variant.query_fours, assert_trivial=True)
        first = (work.batch.to(gl.int64) * work.heads + head) * padded + i * ROWS
        row = gl.arange(0, ROWS, gl.SliceLayout(1, variant.query_fours))
        column = gl.arange(0, D, gl.SliceLayout(0, variant.query_fours))
        place = (arrays.sums + first * D) + (row[:, None] * D + column[None, :])
        gl.atomic_add(place, d_query, sem="relaxed", scope="gpu")
    elif variant.adding == "reduction":
        row = i * ROWS + (part * variant.query_rows if variant.rows_apart else 0)
        column = 0 if variant.rows_apart else part * variant.query_columns
        place = tiles.d_query.index(part)
        tma.store_wait(0)
        place.reshape([variant.query_rows, variant.query_columns]).store(d_query)
        fence_async_shared()
        async_reduce_shared_to_global(arrays.sums, [work.batch, head, row, column], place)
