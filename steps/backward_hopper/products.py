"""Pieces of the backward kernels for Hopper: the products by wgmma, weights, and how dK and dV leave.

No piece knows of a step. Scores lie on their side, S^T [key, query]: the weights and dS are then, as wgmma leaves them
in registers, the first factors of dV and dK. dQ alone needs dS from all keys of a block, and so through shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from steps.backward_hopper.adding import add_to_keys
from steps.backward_hopper.lib import LN2, key_corner, nothing
from steps.core.fused import Pieces
from steps.gluon import names  # noqa: F401
from steps.gluon.softmax import exp2
from steps.hopper.lib import release
from steps.hopper.softmax import cap, factor

UNPACK = gl.constexpr("shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;")


@gluon.jit
def rows_of(ring, iteration, variant: gl.constexpr):
    """A tile of Q or dO [query, head_dim] of a ring."""
    return ring.index(iteration % variant.stages).reshape([variant.tile.query, variant.head_dim])


@gluon.jit
def keys_of(tile, variant: gl.constexpr):
    """The block's K or V [key, head_dim]."""
    return tile.reshape([variant.tile.key, variant.head_dim])


@gluon.jit
def number_of(ring, iteration, variant: gl.constexpr):
    """A number for each query, along the columns of scores [1, query]."""
    numbers = ring.index(iteration % variant.stages).reshape([variant.tile.query])
    return numbers.load(gl.SliceLayout(0, variant.scores))[None, :]


@gluon.jit
def issue_side(keys, rows, variant: gl.constexpr):
    """Begin a product [key, query]: scores from K and Q, or the weights' gradient from V and dO."""
    none = gl.full([variant.keys, variant.tile.query], 0.0, gl.float32, variant.scores)
    if variant.pieces is None:
        return warpgroup_mma(keys, rows.permute((1, 0)), none, use_acc=False, is_async=True)
    else:
        FIRST: gl.constexpr = variant.pieces[0]
        first_rows = rows.slice(0, FIRST, 1).permute((1, 0))
        first = warpgroup_mma(keys.slice(0, FIRST, 1), first_rows, none, use_acc=False, is_async=True)
        return issue_second_piece(keys, rows, first, variant)


@gluon.jit
def issue_second_piece(keys, rows, first, variant: gl.constexpr):
    """Add the product of the second piece of head_dim's columns to that of the first; behind it all are zeros."""
    FIRST: gl.constexpr = variant.pieces[0]
    SECOND: gl.constexpr = variant.pieces[1]
    return warpgroup_mma(
        keys.slice(FIRST, SECOND, 1), rows.slice(FIRST, SECOND, 1).permute((1, 0)), first, is_async=True
    )


@gluon.jit
def issue_d_query(d_scores, keys, variant: gl.constexpr):
    """Begin dQ [query, head_dim] of a tile: dS, turned, times K."""
    none = gl.full([variant.query_rows, variant.query_columns], 0.0, gl.float32, variant.query_sums)
    return warpgroup_mma(d_scores.permute((1, 0)), keys, none, use_acc=False, is_async=True)


@gluon.jit
def issue_own_d_query(tiles, iteration, warpgroup: gl.constexpr, variant: gl.constexpr):
    """Begin this warpgroup's share of an iteration's dQ: its queries, or its columns."""
    d_scores, keys = tiles.d_scores.index(iteration & 1), keys_of(tiles.key, variant)
    if warpgroup == 1 and variant.query_piece is not None:
        PIECE: gl.constexpr = variant.query_piece
        none = gl.full([variant.query_rows, PIECE], 0.0, gl.float32, variant.query_piece_sums)
        keys = keys.slice(variant.query_columns, PIECE, 1)
        return warpgroup_mma(d_scores.permute((1, 0)), keys, none, use_acc=False, is_async=True)
    else:
        if variant.rows_apart:
            d_scores = d_scores.slice(warpgroup * variant.query_rows, variant.query_rows, 1)
        else:
            keys = keys.slice(warpgroup * variant.query_columns, variant.query_columns, 1)
        return issue_d_query(d_scores, keys, variant)


@gluon.jit
def weigh(scores, lse, first_key, i, scale, work, variant: gl.constexpr):
    """The weights [key, query] again, from scores and log-sum-exps in base 2; zero where the mask hides.

    Returned twice: as they are, and as dS takes them. Under a soft cap the latter are multiplied by its derivative,
    1 - tanh^2. The mask then hides before, so that one tile is kept while it does, and not two.
    """
    if variant.softcap is None:
        weights = exp2(scores * scale - lse)
        weights = hide(weights, 0.0, first_key, i, work, variant)
        return weights, weights
    else:
        parts = hide(cap(scores, scale, variant), float("-inf"), first_key, i, work, variant)
        weights = exp2(parts * factor(scale, variant) - lse)
        return weights, weights * gl.maximum(1.0 - parts * parts, 0.0)  # of what is hidden 0 and 0


# It returns a tile [key, query] with ``hidden`` where the mask hides: 0 of weights, minus infinity of capped scores.
@gluon.jit
def hide(x, hidden: gl.constexpr, first_key, i, work, variant: gl.constexpr):
    if variant.causal or variant.ragged or variant.ragged_queries:
        masked = i < work.cut
        if variant.window:
            masked |= (i + 1) * variant.tile.query - variant.window > first_key
        if variant.ragged_queries:
            masked |= (i + 1) * variant.tile.query > work.seq_len_q
        if masked:
            key = first_key + gl.arange(0, variant.keys, gl.SliceLayout(1, variant.scores))
            query = i * variant.tile.query + gl.arange(0, variant.tile.query, gl.SliceLayout(0, variant.scores))
            if variant.ragged_queries:  # rows past the end are zeros, whose score with a key of infinity is NaN
                query = gl.where(query < work.seq_len_q, query, -1)  # sees no key
            if variant.causal or variant.ragged_queries:
                x = gl.where((key[:, None] if variant.causal else 0) <= query[None, :], x, hidden)
            if variant.window:
                x = gl.where(key[:, None] > query[None, :] - variant.window, x, hidden)
            if variant.ragged:
                x = gl.where((key < work.seq_len_kv)[:, None], x, hidden)
    return x


# --- where a warpgroup has its K ---


@dataclass(frozen=True)
class Keys(Pieces):
    """take(keys, variant): a warpgroup's K as scores take it. scores(kept, keys, query, variant): begin these.

    weights(weights, rounded): what waits for the weights' gradient. share: of how many columns one is in registers; 0:
    none.
    """

    take: Callable
    scores: Callable
    weights: Callable
    share: int


@gluon.jit
def left_in_shared(keys, variant: gl.constexpr):
    """All of K stays in shared memory."""
    return keys


@gluon.jit
def issue_scores(kept, keys, query, variant: gl.constexpr):
    """Begin scores [key, query]. K and Q lie in shared memory."""
    return issue_side(keys, query, variant)


@gluon.jit
def in_registers(keys, variant: gl.constexpr):
    """The first columns of K, or all of them, in registers."""
    return keys.slice(0, variant.kept, 1).load(variant.key_factor)


@gluon.jit
def issue_from_registers(kept, keys, query, variant: gl.constexpr):
    """Begin scores [key, query], with K from registers as far as it is kept there, else from shared memory."""
    KEPT: gl.constexpr = variant.kept
    REST: gl.constexpr = variant.added_up - KEPT
    none = gl.full([variant.keys, variant.tile.query], 0.0, gl.float32, variant.scores)
    scores = warpgroup_mma(kept, query.slice(0, KEPT, 1).permute((1, 0)), none, use_acc=False, is_async=True)
    if REST > 0:
        others = query.slice(KEPT, REST, 1).permute((1, 0))
        scores = warpgroup_mma(keys.slice(KEPT, REST, 1), others, scores, is_async=True)
    return scores


@gluon.jit
def in_float32(weights, rounded):
    """Weights wait for their gradient as they are."""
    return weights


@gluon.jit
def in_16_bits(weights, rounded):
    """Weights wait for their gradient in 16 bits: all of K would leave no registers else."""
    return rounded.to(gl.float32)


@gluon.jit
def in_bfloat16(weights, rounded):
    """As ``in_16_bits``. Two bfloat16 of a register become float32 by integer instructions: it is their upper half.

    Triton would convert them one by one. ptxas then rounds each by itself, too, as slowly as it takes exponentials, and
    keeps float32 while products are under way: it spills.
    """
    return gl.inline_asm_elementwise(UNPACK, "=r,=r,r", [rounded], dtype=gl.float32, is_pure=True, pack=2)


# --- the weights' gradient ---


@dataclass(frozen=True)
class Gradient(Pieces):
    """issue(values, d_output, row_sum, iteration, variant): begin the weights' gradient [key, query].

    d_scores(weights, d_weights, row_sum, iteration, dtype, variant): dS, rounded: the weights times what is left of
    their gradient when the row sums of dO * O (delta) are taken off.
    """

    issue: Callable
    d_scores: Callable


@gluon.jit
def issue_from_zero(values, d_output, row_sum, iteration, variant: gl.constexpr):
    """Begin the weights' gradient from zero."""
    return issue_side(values, d_output, variant)


@gluon.jit
def less_row_sums(weights, d_weights, row_sum, iteration, dtype: gl.constexpr, variant: gl.constexpr):
    """dS: the row sums are taken off now."""
    delta = number_of(row_sum, iteration, variant)
    return (weights * (d_weights - delta)).to(dtype)


@gluon.jit
def issue_from_row_sums(values, d_output, row_sum, iteration, variant: gl.constexpr):
    """Begin the weights' gradient from minus the row sums: wgmma adds to what is in its registers."""
    start = gl.full([variant.keys, variant.tile.query], 0.0, gl.float32, variant.scores)
    start -= number_of(row_sum, iteration, variant)
    if variant.pieces is None:
        return warpgroup_mma(values, d_output.permute((1, 0)), start, is_async=True)
    else:
        FIRST: gl.constexpr = variant.pieces[0]
        first_rows = d_output.slice(0, FIRST, 1).permute((1, 0))
        first = warpgroup_mma(values.slice(0, FIRST, 1), first_rows, start, is_async=True)
        return issue_second_piece(values, d_output, first, variant)


@gluon.jit
def as_it_is(weights, d_weights, row_sum, iteration, dtype: gl.constexpr, variant: gl.constexpr):
    """dS: the row sums are off already."""
    return (weights * d_weights).to(dtype)


# --- how two warpgroups exchange dS ---


@dataclass(frozen=True)
class Exchange(Pieces):
    """When the slot of an iteration's dS is empty. wait(barriers, iteration, variant): until it is. free(...): this
    warpgroup needs no more the slot of the iteration's dO, and that of dS of the iteration before. barriers: whether dS
    has mbarriers of its own.
    """

    wait: Callable
    free: Callable
    barriers: bool


@gluon.jit
def await_slot(barriers, iteration, variant: gl.constexpr):
    """Wait until both warpgroups have multiplied what was in the slot of this iteration's dS."""
    mbarrier.wait(barriers.d_scores_empty.index(iteration & 1), iteration + 1 >> 1 & 1 ^ 1)


@gluon.jit
def free_each(barriers, iteration, variant: gl.constexpr):
    """This warpgroup has multiplied dO of the iteration, and dS of the iteration before."""
    release(barriers.d_output_empty, iteration, variant.stages)
    mbarrier.arrive(barriers.d_scores_empty.index(iteration + 1 & 1), count=1)


@gluon.jit
def await_slot_with_d_output(barriers, iteration, variant: gl.constexpr):
    """Wait until the slot of dS is free: both warpgroups have released dO of the iteration before."""
    told = (iteration + variant.stages - 1) // variant.stages & 1 ^ 1
    mbarrier.wait(barriers.d_output_empty.index((iteration + 1) % variant.stages), told)


@gluon.jit
def free_together(barriers, iteration, variant: gl.constexpr):
    """As ``free_each``: one word says both."""
    release(barriers.d_output_empty, iteration, variant.stages)


@dataclass(frozen=True)
class Fence(Pieces):
    """Where a warpgroup tells that dS is stored: first(barriers, iteration), before the products, or behind(...)."""

    first: Callable
    behind: Callable


@gluon.jit
def tell_stored(barriers, iteration):
    """Tell both warpgroups that this one has stored its dS of an iteration. wgmma reads it, which takes a fence."""
    fence_async_shared()
    mbarrier.arrive(barriers.d_scores_full.index(iteration & 1), count=1)


# --- dK and dV: where a head_dim between powers of two comes in two pieces, each is a tuple of two ---


@gluon.jit
def no_sums(variant: gl.constexpr):
    """Zeros [key, head_dim] to add to."""
    if variant.sum_pieces is None:
        return gl.full([variant.keys, variant.head_dim], 0.0, gl.float32, variant.sums)
    else:
        first = gl.full([variant.keys, variant.sum_pieces[0]], 0.0, gl.float32, variant.piece_sums[0])
        return first, gl.full([variant.keys, variant.sum_pieces[1]], 0.0, gl.float32, variant.piece_sums[1])


@gluon.jit
def issue_sums(factor, rows, sums, variant: gl.constexpr):
    """Begin to add weights or dS [key, query] times dO or Q [query, head_dim]."""
    if variant.sum_pieces is None:
        return warpgroup_mma(factor, rows, sums, is_async=True)
    else:
        FIRST: gl.constexpr = variant.sum_pieces[0]
        SECOND: gl.constexpr = variant.sum_pieces[1]
        left = gl.convert_layout(factor, gl.DotOperandLayout(0, variant.piece_sums[0], 2))
        first = warpgroup_mma(left, rows.slice(0, FIRST, 1), sums[0], is_async=True)
        right = gl.convert_layout(factor, gl.DotOperandLayout(0, variant.piece_sums[1], 2))
        return first, warpgroup_mma(right, rows.slice(FIRST, SECOND, 1), sums[1], is_async=True)


@gluon.jit
def await_but_sums(product, variant: gl.constexpr):
    """Wait for a product, and not for those of dK or dV that were begun behind it."""
    return warpgroup_mma_wait(1 if variant.sum_pieces is None else 2, deps=[product])


@gluon.jit
def await_all_sums(sums, variant: gl.constexpr):
    """Wait until nothing is under way."""
    if variant.sum_pieces is None:
        return warpgroup_mma_wait(0, deps=[sums])
    else:
        first, second = warpgroup_mma_wait(0, deps=[sums[0], sums[1]])
        return first, second


@gluon.jit
def store_rounded(tile, sums, factor, variant: gl.constexpr):
    """Store dK or dV, times a number, in a tile [key, head_dim]. TMA drops what is past the end of head_dim."""
    if variant.sum_pieces is None:
        tile.store((sums * factor).to(tile.dtype))
    else:
        FIRST: gl.constexpr = variant.sum_pieces[0]
        SECOND: gl.constexpr = variant.sum_pieces[1]
        tile.slice(0, FIRST, 1).store((sums[0] * factor).to(tile.dtype))
        tile.slice(FIRST, SECOND, 1).store((sums[1] * factor).to(tile.dtype))


@gluon.jit
def await_all_warpgroups(barriers, n: gl.constexpr, phase, variant: gl.constexpr):
    """Wait until all warpgroups are here.

    n: how often they have met before.
    """
    if variant.warpgroups == 1:
        gl.barrier()
    else:
        mbarrier.arrive(barriers.done.index(n), count=1)
        mbarrier.wait(barriers.done.index(n), phase)


@gluon.jit
def store_both(
    d_key, d_value, own_keys, own_values, arrays, tiles, barriers, work, scale, warpgroup: gl.constexpr,
    variant: gl.constexpr,
):  # fmt: skip
    """dK and dV leave from where K and V were, a warpgroup's rows from its own, when all warpgroups have read these."""
    dtype: gl.constexpr = tiles.key.dtype
    phase = work.key_row // variant.tile.key & 1 if variant.key_tiles > 1 else 0
    await_all_warpgroups(barriers, 0, phase, variant)
    own_keys.store((d_key * (scale * LN2)).to(dtype))
    own_values.store(d_value.to(dtype))
    fence_async_shared()
    await_all_warpgroups(barriers, 1, phase, variant)
    if warpgroup == 0:
        tma.async_store(arrays.d_key, key_corner(work.key_row, work, variant), tiles.key)
        tma.async_store(arrays.d_value, key_corner(work.key_row, work, variant), tiles.value)


@gluon.jit
def add_both(
    d_key, d_value, own_keys, own_values, arrays, tiles, barriers, work, scale, warpgroup: gl.constexpr,
    variant: gl.constexpr,
):  # fmt: skip
    """dK and dV of a query head are added to what the others of its group add, before the scale."""
    add_to_keys(d_key, arrays.d_key, work, warpgroup, variant)
    add_to_keys(d_value, arrays.d_value, work, warpgroup, variant)


# --- the pieces, by what they do ---

SHARED = Keys(left_in_shared, issue_scores, in_float32, share=0)
HALF_KEPT = Keys(in_registers, issue_from_registers, in_float32, share=2)
ALL_KEPT = Keys(in_registers, issue_from_registers, in_16_bits, share=1)
FROM_ZERO = Gradient(issue_from_zero, less_row_sums)
FROM_ROW_SUMS = Gradient(issue_from_row_sums, as_it_is)
BY_ITSELF = Exchange(await_slot, free_each, barriers=True)
WITH_D_OUTPUT = Exchange(await_slot_with_d_output, free_together, barriers=False)
FENCE_FIRST = Fence(tell_stored, nothing)
FENCE_BEHIND = Fence(nothing, tell_stored)
