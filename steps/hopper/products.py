"""Pieces of the Hopper kernels: the products by wgmma, and how the output leaves. No piece knows of a step.

The instructions are in the PTX ISA under "wgmma". A head_dim between powers of two may come in two pieces
(``steps.hopper.pieces``); then the accumulator is a tuple of two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from steps.core.fused import Pieces
from steps.gluon import names  # noqa: F401
from steps.gluon.softmax import store_lse
from steps.hopper.lib import await_tile, in_place_of_queries, own_row, query_of, release, room_of_its_own
from steps.hopper.packed import corner
from steps.hopper.panels import issue_scores_of_panels, panels_in
from steps.hopper.pieces import issue_pieces, issue_scores_of_pieces, no_pieces, rescale_pieces, store_pieces
from steps.hopper.softmax import by_row

# --- QK: where a warpgroup's queries are ---


@dataclass(frozen=True)
class Queries(Pieces):
    """take(query, variant): a warpgroup's queries as the QK product takes them. multiply(query, keys, iteration,
    variant): it.

    held: one of so many equal pieces of head_dim is held in registers; 0: none.
    """

    take: Callable
    multiply: Callable
    held: int = 0


@gluon.jit
def left_in_shared(query, variant: gl.constexpr):
    """All of Q stays in shared memory."""
    return query


@gluon.jit
def issue_scores(query, keys, iteration, variant: gl.constexpr):
    """Begin the QK product [query, key]. K and Q lie in shared memory."""
    none = gl.full([variant.rows, variant.tile.key], 0.0, gl.float32, variant.accumulator)
    if variant.in_panels:
        key = panels_in(keys, iteration % variant.stages, variant.tile.key, variant)
        return issue_scores_of_panels(query, key, none, variant)
    else:
        key = keys.index(iteration % variant.stages).reshape([variant.tile.key, variant.head_dim])
        if variant.in_pieces:
            FIRST: gl.constexpr = variant.pieces[0]
            left, right = query.slice(0, FIRST, 1), query.slice(FIRST, variant.pieces[1], 1)
            return issue_scores_of_pieces(left, right, key, none, variant)
        else:
            return warpgroup_mma(query, key.permute((1, 0)), none, use_acc=False, is_async=True)


@gluon.jit
def half_in_registers(query, variant: gl.constexpr):
    """(the first half of head_dim of Q, in registers; the rest, in shared memory)"""
    HALF: gl.constexpr = variant.head_dim // 2
    held = query.slice(0, HALF, 1).load(gl.DotOperandLayout(0, variant.accumulator, 2))
    return held, query.slice(HALF, variant.pieces[1] if variant.in_pieces else HALF, 1)


@gluon.jit
def issue_scores_with_half(query, keys, iteration, variant: gl.constexpr):
    """As ``issue_scores``, where half of Q is in registers: a product for it, and one for what is not."""
    none = gl.full([variant.rows, variant.tile.key], 0.0, gl.float32, variant.accumulator)
    key = keys.index(iteration % variant.stages).reshape([variant.tile.key, variant.head_dim])
    held, rest = query
    if variant.in_pieces:
        return issue_scores_of_pieces(held, rest, key, none, variant)
    else:
        HALF: gl.constexpr = variant.head_dim // 2
        scores = warpgroup_mma(held, key.slice(0, HALF, 1).permute((1, 0)), none, use_acc=False, is_async=True)
        return warpgroup_mma(rest, key.slice(HALF, HALF, 1).permute((1, 0)), scores, is_async=True)


@gluon.jit
def quarter_in_registers(query, variant: gl.constexpr):
    """(the first quarter of head_dim of Q, in registers; the second, and the upper half, in shared memory)"""
    QUARTER: gl.constexpr = variant.quarter
    held = query.slice(0, QUARTER, 1).load(gl.DotOperandLayout(0, variant.accumulator, 2))
    return held, query.slice(QUARTER, QUARTER, 1), query.slice(2 * QUARTER, 2 * QUARTER, 1)


@gluon.jit
def issue_scores_with_quarter(query, keys, iteration, variant: gl.constexpr):
    """As ``issue_scores``, where a quarter of Q is in registers: a product for it, and two for what is not."""
    QUARTER: gl.constexpr = variant.quarter
    lower, second, upper = query
    none = gl.full([variant.rows, variant.tile.key], 0.0, gl.float32, variant.accumulator)
    key = keys.index(iteration % variant.stages).reshape([variant.tile.key, variant.head_dim])
    of_second, of_upper = key.slice(QUARTER, QUARTER, 1), key.slice(2 * QUARTER, 2 * QUARTER, 1)
    scores = warpgroup_mma(lower, key.slice(0, QUARTER, 1).permute((1, 0)), none, use_acc=False, is_async=True)
    scores = warpgroup_mma(second, of_second.permute((1, 0)), scores, is_async=True)
    return warpgroup_mma(upper, of_upper.permute((1, 0)), scores, is_async=True)


# --- PV: the output while it is computed ---


@gluon.jit
def no_output(variant: gl.constexpr):
    """Zeros [query, value_dim] to add PV products to."""
    if variant.output_in_pieces:
        return no_pieces(variant)
    else:
        return gl.full([variant.rows, variant.value_dim], 0.0, gl.float32, variant.output)


@gluon.jit
def issue_output(weights, values, iteration, accumulator, variant: gl.constexpr):
    """Begin to add the PV product to the output; V lies in shared memory."""
    value = values.index(iteration % variant.stages).reshape([variant.tile.key, variant.value_dim])
    if variant.output_in_pieces:
        return issue_pieces(weights, value, accumulator, variant)
    else:
        return warpgroup_mma(weights, value, accumulator, is_async=True)


@gluon.jit
def await_output(accumulator, scores_under_way: gl.constexpr, variant: gl.constexpr):
    """Wait for the PV product, until no more than so many QK products, begun behind it, are under way."""
    UNDER_WAY: gl.constexpr = (
        2 if variant.in_pieces else variant.panels if variant.in_panels else 1
    ) * scores_under_way
    if variant.output_in_pieces:
        first, second = accumulator
        return warpgroup_mma_wait(UNDER_WAY, deps=[first, second])
    else:
        return warpgroup_mma_wait(UNDER_WAY, deps=[accumulator])


@gluon.jit
def await_scores(scores, variant: gl.constexpr):
    """Wait for the QK product, and not for the PV product that was begun behind it: there are two of pieces."""
    return warpgroup_mma_wait(2 if variant.output_in_pieces else 1, deps=[scores])


@gluon.jit
def link(
    accumulator,
    tiles,
    barriers,
    iteration,
    last_iteration,
    query_iteration,
    more,
    warpgroup: gl.constexpr,
    variant: gl.constexpr,
):
    """Begin the first QK product for the next queries, if there are ``more``, and wait for the last PV product alone.

    iteration: of the last tile of keys that was fetched for these queries; last_iteration: of the last that this
    warpgroup used.
    Returns (scores, accumulator).
    """
    STAGES: gl.constexpr = variant.stages
    # The first product for the next queries is issued after the last for these, and runs while these are
    # stored. After the very last queries it is wasted: with a branch around it the compiler would wait at once.
    if more:
        await_tile(barriers.query_full, query_iteration + 1, variant.query_stages)
        await_tile(barriers.key_full, iteration + 1, STAGES)
    following = query_of(tiles.query, query_iteration + 1, warpgroup, variant)
    scores = issue_scores(following, tiles.key, iteration + 1, variant)
    accumulator = await_output(accumulator, 1, variant)
    if variant.most_over <= 1:
        release(barriers.value_empty, last_iteration, STAGES)
    return scores, accumulator


@gluon.jit
def rescale(accumulator, factor, variant: gl.constexpr):
    """The output times one number a row."""
    if variant.output_in_pieces:
        return rescale_pieces(accumulator, factor, variant)
    else:
        return accumulator * by_row(factor, variant)


# --- the output leaves ---


@dataclass(frozen=True)
class OutputTo(Pieces):
    """room(queries, variant): the output's buffer in shared memory. store(o, arrays, ...): it goes there, and TMA on.

    at_once: in how many pieces its columns leave, one after the other.
    """

    room: Callable
    store: Callable
    at_once: int = 1


@gluon.jit
def normalised(accumulator, row_sum, dtype: gl.constexpr, variant: gl.constexpr):
    """The output [query, value_dim], divided by the sums of its rows."""
    if variant.output_in_pieces:
        return rescale_pieces(accumulator, 1.0 / row_sum, variant)
    else:
        return (accumulator * by_row(1.0 / row_sum, variant)).to(dtype)


@gluon.jit
def store(o, array, slot, batch, head, row, column, variant: gl.constexpr):
    """Hand columns of the output [query, column] to TMA, by way of their buffer in shared memory once that is free."""
    tma.store_wait(0)
    slot.reshape(o.shape).store(o)
    fence_async_shared()
    tma.async_store(array, corner(batch, head, row, column, variant), slot)


@gluon.jit
def store_whole(o, array, slot, batch, head, row, variant: gl.constexpr):
    """Hand the output to TMA, which drops rows past the end."""
    if variant.output_in_pieces:
        store_pieces(o, array, slot, batch, head, row, variant)
    else:
        store(o, array, slot, batch, head, row, 0, variant)


@gluon.jit
def store_halves(o, array, slot, batch, head, row, variant: gl.constexpr):
    """Hand the output to TMA in two halves, one after the other, as there is room for one alone."""
    if variant.output_in_pieces:
        store_pieces(o, array, slot, batch, head, row, variant)
    else:
        COLUMNS: gl.constexpr = variant.output_columns
        left, right = o.reshape([variant.rows, 2, COLUMNS]).permute((0, 2, 1)).split()
        store(left, array, slot, batch, head, row, 0, variant)
        store(right, array, slot, batch, head, row, COLUMNS, variant)


@gluon.jit
def store_lse_of(LSE, row_max, row_sum, arrays, work, head, batch, row, variant: gl.constexpr):
    """Write the log-sum-exp of a warpgroup's rows."""
    if variant.packed:
        line = head.to(gl.int64) * (arrays.query.shape[1] - 1) + batch.begin  # that axis has tokens + 1
        store_lse(LSE + line, row_max, row_sum, 0, row, batch.length)
    else:
        line = batch.to(gl.int64) * work.heads + head
        store_lse(LSE, row_max, row_sum, line, row, arrays.query.shape[2])


@gluon.jit
def store_normalised(
    accumulator, row_sum, output, LSE, arrays, work, query_tile, head, batch, query_iteration, warpgroup: gl.constexpr,
    variant: gl.constexpr,
):  # fmt: skip
    """Normalise and store a warpgroup's output; TMA drops rows past the end. output: its buffer in shared memory."""
    if variant.lse:
        row_sum, row_max = row_sum
    row_sum = variant.sums.end(row_sum, variant)
    o = normalised(accumulator, row_sum, output.dtype, variant)
    row = own_row(query_tile.row, query_iteration, warpgroup, variant)
    if variant.lse:
        store_lse_of(LSE, row_max, row_sum, arrays, work, head, batch, row, variant)
    variant.output_to.store(o, arrays.output, output, batch, head, row, variant)


SHARED = Queries(left_in_shared, issue_scores)
HALF_HELD = Queries(half_in_registers, issue_scores_with_half, held=2)
QUARTER_HELD = Queries(quarter_in_registers, issue_scores_with_quarter, held=4)
TO_QUERIES = OutputTo(in_place_of_queries, store_whole)
TO_ITS_OWN = OutputTo(room_of_its_own, store_whole)
IN_HALVES = OutputTo(room_of_its_own, store_halves, at_once=2)
