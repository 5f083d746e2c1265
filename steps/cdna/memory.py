"""Where tiles come from and go to: memory, by a pointer and 32-bit offsets (buffer instructions), and LDS."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd import cdna3
from triton.experimental.gluon.language.amd.cdna4 import async_copy


@gluon.jit
def offsets(row, column, stride, left, guard: gl.constexpr):
    """Offsets [row, column] of elements from the first row on, of which ``left`` are there.

    With guard, rows that are not there are the last one again. What is computed from them is hidden by the mask, or not
    stored; so no lane needs a mask of its own.
    """
    if guard:
        row = gl.minimum(row, left - 1)
    return row[:, None] * stride + column[None, :]


@gluon.jit
def load_queries(pointer, stride, first, limit, variant: gl.constexpr):
    """Rows [first, first + tile) of Q, from memory into registers, as the first factor of a product."""
    row = gl.arange(0, variant.tile.query, gl.SliceLayout(1, variant.left))
    column = gl.arange(0, variant.head_dim, gl.SliceLayout(0, variant.left))
    first = gl.to_tensor(first)
    return cdna3.buffer_load(pointer + first.to(gl.int64) * stride, offsets(row, column, stride, limit - first, True))


@gluon.jit
def tile_of(pointer, stride, tile_index, limit, variant: gl.constexpr):
    """Where a tile of keys or values is in memory: (pointer, offsets)."""
    row = gl.arange(0, variant.tile.key, gl.SliceLayout(1, variant.copy))
    column = gl.arange(0, variant.head_dim, gl.SliceLayout(0, variant.copy))
    first = gl.to_tensor(tile_index * variant.tile.key)
    return pointer + first.to(gl.int64) * stride, offsets(row, column, stride, limit - first, variant.ragged)


@gluon.jit
def bring(slot, pointer, stride, tile_index, limit, variant: gl.constexpr):
    """Bring a tile of keys or values to its slot in LDS, through registers."""
    source, at = tile_of(pointer, stride, tile_index, limit, variant)
    slot.store(cdna3.buffer_load(source, at))


@gluon.jit
def fetch(slot, pointer, stride, tile_index, limit, variant: gl.constexpr):
    """Begin to copy a tile of keys or values straight to its slot in LDS."""
    source, at = tile_of(pointer, stride, tile_index, limit, variant)
    async_copy.buffer_load_to_shared(slot, source, at)


@gluon.jit
def read(slot, variant: gl.constexpr):
    """A tile in LDS, as the second factor of a product."""
    return slot.load(variant.right)


@gluon.jit
def read_relaxed(slot, variant: gl.constexpr):
    """A tile in LDS, as the second factor of a product; the relaxed read says that the kernel has waited for it.

    Triton 3.9 makes the same code of an ordinary read. Before, the compiler waited in front of an ordinary read for all
    copies, those for later tiles, too, and of a relaxed one it took no note: nobody saw to it that what is read is not
    overwritten.
    """
    return async_copy.load_shared_relaxed(slot, variant.right)


@gluon.jit
def store_rows(pointer, o, row_stride, column_stride, first, limit, variant: gl.constexpr):
    """Write o [query, head_dim] to rows [first, limit), straight from the registers where the products left it."""
    row = gl.arange(0, variant.tile.query, gl.SliceLayout(1, variant.accumulator))
    column = gl.arange(0, variant.head_dim, gl.SliceLayout(0, variant.accumulator))
    first = gl.to_tensor(first)
    at = row[:, None] * row_stride + column[None, :] * column_stride
    target = pointer + first.to(gl.int64) * row_stride
    cdna3.buffer_store(o.to(pointer.dtype.element_ty), target, at, mask=(row < limit - first)[:, None])
