"""A head_dim that is no power of two, as two pieces that are: 192 as 128 and 64 columns.

The sizes of tensors are powers of two. A tile in shared memory has the next one, and TMA fills what is past the end of
head_dim with zeros. The products here take the columns of two pieces, and not those that are zeros in all rows.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    tma,
    warpgroup_mma,
)


@gluon.jit
def issue_scores_of_pieces(left, right, key, none, variant: gl.constexpr):
    """Begin the QK product [query, key]: two products, of which the second adds to the first."""
    FIRST: gl.constexpr = variant.pieces[0]
    SECOND: gl.constexpr = variant.pieces[1]
    scores = warpgroup_mma(left, key.slice(0, FIRST, 1).permute((1, 0)), none, use_acc=False, is_async=True)
    return warpgroup_mma(right, key.slice(FIRST, SECOND, 1).permute((1, 0)), scores, is_async=True)


@gluon.jit
def no_pieces(variant: gl.constexpr):
    """Zeros [query, columns of a piece], two tensors to add PV products to."""
    first = gl.full([variant.rows, variant.value_pieces[0]], 0.0, gl.float32, variant.outputs[0])
    return first, gl.full([variant.rows, variant.value_pieces[1]], 0.0, gl.float32, variant.outputs[1])


@gluon.jit
def issue_pieces(weights, value, accumulator, variant: gl.constexpr):
    """Begin to add the PV product to both pieces of the output."""
    FIRST: gl.constexpr = variant.value_pieces[0]
    SECOND: gl.constexpr = variant.value_pieces[1]
    first, second = accumulator
    left = gl.convert_layout(weights, gl.DotOperandLayout(0, variant.outputs[0], 2))
    first = warpgroup_mma(left, value.slice(0, FIRST, 1), first, is_async=True)
    right = gl.convert_layout(weights, gl.DotOperandLayout(0, variant.outputs[1], 2))
    return first, warpgroup_mma(right, value.slice(FIRST, SECOND, 1), second, is_async=True)


@gluon.jit
def rescale_pieces(accumulator, factor, variant: gl.constexpr):
    """Both pieces times one number a row."""
    first, second = accumulator
    left = gl.convert_layout(factor, gl.SliceLayout(1, variant.outputs[0]))[:, None]
    right = gl.convert_layout(factor, gl.SliceLayout(1, variant.outputs[1]))[:, None]
    return first * left, second * right


@gluon.jit
def store_pieces(accumulator, array, slot, batch, head, row, variant: gl.constexpr):
    """Hand the output to TMA, which drops the columns that are past the end of head_dim."""
    FIRST: gl.constexpr = variant.value_pieces[0]
    SECOND: gl.constexpr = variant.value_pieces[1]
    first, second = accumulator
    tile = slot.reshape([variant.rows, variant.output_columns])
    tma.store_wait(0)
    tile.slice(0, FIRST, 1).store(first.to(slot.dtype))
    if variant.output_columns < variant.value_dim:
        fence_async_shared()
        tma.async_store(array, [batch, head, row, 0], slot)
        tma.store_wait(0)
        tile.slice(0, SECOND, 1).store(second.to(slot.dtype))
        fence_async_shared()
        tma.async_store(array, [batch, head, row, FIRST], slot)
    else:
        tile.slice(FIRST, SECOND, 1).store(second.to(slot.dtype))
        fence_async_shared()
        tma.async_store(array, [batch, head, row, 0], slot)
