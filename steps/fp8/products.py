"""Pieces of the fp8 kernels: how V and the weights come to the PV product, and how its sums are kept.

wgmma reads a second factor from shared memory. In 16 bits its rows or its columns may lie there as rows; in 8 bits each
column must lie as a row, as the product runs along it ("K-major": PTX ISA, "Asynchronous Warpgroup Level Matrix
Instructions"). K lies so for the QK product. V does not for the PV product, and must be transposed on its way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma

from steps.core.fused import Pieces
from steps.fp8.transpose import key_at, key_in_order
from steps.hopper.dependent import await_kernels_before

FOUR_TO_E4M3 = gl.constexpr(
    "{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, $2, $1; cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;"
    " mov.b32 $0, {low, high}; }"
)

# --- how V and the weights come to the PV product ---


@dataclass(frozen=True)
class Values(Pieces):
    """keep(weights, variant): the weights as the loop hands them on. left(kept, variant): these as the first factor.

    right(tile, variant): a tile of V as the second. ready(): wait until V is there as the kernel reads it. place(batch,
    head, row): where TMA finds the tile of keys that begins at ``row``. order: in which keys stand in V transposed
    (``steps.fp8.transpose``), whose tiles are [head_dim, key]; None: V is converted to bfloat16, and tiles are
    [key, head_dim].
    """

    keep: Callable
    left: Callable
    right: Callable
    ready: Callable
    place: Callable
    order: Callable | None

    @property
    def transposed(self) -> bool:
        """Whether the kernel reads V transposed, in fp8."""
        return self.order is not None

    @property
    def bits(self) -> int:
        """Of an element of V as the kernel reads it."""
        return 8 if self.transposed else 16


@gluon.jit
def keep_bfloat16(weights, variant: gl.constexpr):
    """Weights [query, key] in bfloat16, as wgmma takes them."""
    return gl.convert_layout(weights.to(gl.bfloat16), variant.weights)


@gluon.jit
def as_kept(kept, variant: gl.constexpr):
    """Weights that are the first factor already."""
    return kept


@gluon.jit
def keep_all(weights, variant: gl.constexpr):
    """Weights [query, key] in float32. Bytes that a loop hands on Triton 3.9 would keep one a register."""
    return weights


@gluon.jit
def exchanged(weights, variant: gl.constexpr):
    """Weights [query, key] in e4m3. Lanes exchange some: of 16 columns a lane has two pairs, and wgmma wants a four."""
    return gl.convert_layout(weights.to(gl.float8e4nv), variant.weights)


@gluon.jit
def keep_fours(weights, variant: gl.constexpr):
    """Weights [query, key] in e4m3, as int32 [query, key / 4], in the order in which V was transposed.

    Of 16 columns, halves of fours of pairs, a lane has a pair of each half. Taken as fours of halves of pairs they are
    the four neighbours that wgmma wants of the lane: nothing moves. An int32 holds such a four.
    """
    ordered = weights.reshape([weights.shape[0], weights.shape[1] // 16, 2, 4, 2]).permute((0, 1, 3, 2, 4))
    even, odd = ordered.reshape([weights.shape[0], weights.shape[1] // 4, 2, 2]).split()
    first, third = even.split()
    second, fourth = odd.split()
    fours = [first, second, third, fourth]
    return gl.inline_asm_elementwise(FOUR_TO_E4M3, "=r,f,f,f,f", fours, dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def fours(kept, variant: gl.constexpr):
    """Weights [query, key] in e4m3 from int32 [query, key / 4]: the same bits, so that LLVM leaves nothing of it."""
    halves = gl.join(kept.to(gl.int16), (kept >> 16).to(gl.int16))
    quarters = gl.join(halves.to(gl.int8), (halves >> 8).to(gl.int8))
    weights = quarters.reshape([kept.shape[0], 4 * kept.shape[1]]).to(gl.float8e4nv, bitcast=True)
    return gl.convert_layout(weights, variant.weights, assert_trivial=True)


@gluon.jit
def as_it_lies(tile, variant: gl.constexpr):
    """A tile [key, head_dim] of V."""
    return tile.reshape([variant.tile.key, variant.head_dim])


@gluon.jit
def turned(tile, variant: gl.constexpr):
    """A tile [key, head_dim] of V, of which memory has the transpose."""
    return tile.reshape([variant.head_dim, variant.tile.key]).permute((1, 0))


@gluon.jit
def there_already():
    """The kernel began when V was there."""


@gluon.jit
def in_rows(batch, head, row):
    """Where keys are rows."""
    return [batch, head, row, 0]


@gluon.jit
def in_columns(batch, head, row):
    """Where keys are columns."""
    return [batch, head, 0, row]


# --- how sums of PV products are kept ---


@dataclass(frozen=True)
class ProductSums(Pieces):
    """issue(weights, value, total, variant): begin the product, and return it.

    add(total, product, before, correction): the new total, from the product that has ended; before: the correction of
    the tile before, [query, 1], and correction that of the tile whose softmax just ended. end(total, product, before):
    the sum behind the last product.
    """

    issue: Callable
    add: Callable
    end: Callable


@gluon.jit
def issue_into_total(weights, value, total, variant: gl.constexpr):
    """The tensor cores add the product to the total."""
    return warpgroup_mma(weights, value, total, is_async=True)


@gluon.jit
def rescaled(total, product, before, correction):
    """The total, which the tensor cores have added up, for the new maxima."""
    return product * correction


@gluon.jit
def complete(total, product, before):
    """The tensor cores have added up all."""
    return product


@gluon.jit
def issue_alone(weights, value, total, variant: gl.constexpr):
    """The tensor cores add up one tile of keys."""
    none = gl.full([variant.rows, variant.head_dim], 0.0, gl.float32, variant.output)
    return warpgroup_mma(weights, value, none, use_acc=False, is_async=True)


@gluon.jit
def added(total, product, before, correction):
    """The total in float32, and one tile's product added to it: one fused multiply-add, as many as rescaling takes.

    The product is of weights under newer maxima than the total: ``before`` brings that to them. ``correction`` comes
    with the next product.
    """
    return total * before + product


@gluon.jit
def added_last(total, product, before):
    """The total, and the product of the last tile."""
    return total * before + product


IN_TENSOR_CORES = ProductSums(issue_into_total, rescaled, complete)
IN_TWO_LEVELS = ProductSums(issue_alone, added, added_last)
IN_BFLOAT16 = Values(keep_bfloat16, as_kept, as_it_lies, there_already, in_rows, None)
TRANSPOSED = Values(keep_all, exchanged, turned, await_kernels_before, in_columns, key_in_order)
PERMUTED = Values(keep_fours, fours, turned, await_kernels_before, in_columns, key_at)
