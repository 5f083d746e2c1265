"""The loop of the Hopper kernels whose products overlap: the PV product of a tile runs under the softmax of the next.

How products run under the softmax is FlashAttention-3's (Shah et al. 2024, https://arxiv.org/abs/2407.08608).
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma_wait

from steps.gluon import names  # noqa: F401
from steps.gluon.softmax import tiles_to_visit
from steps.hopper.lib import await_tile, own_row, release
from steps.hopper.products import issue_output, no_output
from steps.hopper.rest import attend_to_rest
from steps.hopper.softmax import cap, factor, no_maxima, raise_maxima, weigh, with_sink


@gluon.jit
def tiles_of_warpgroup(query_tile, query_iteration, warpgroup: gl.constexpr, variant: gl.constexpr):
    """A warpgroup's first query, row, and its tiles of keys, (whole, end). block_end: where those of its block end."""
    row = own_row(query_tile.row, query_iteration, warpgroup, variant)
    whole, block_end = tiles_to_visit(query_tile.row, query_tile.seq_len_kv, variant)
    whole, end = variant.ends.tiles(row, query_tile.seq_len_kv, whole, block_end, variant)
    return row, whole, end, block_end


@gluon.jit
def first_weights(scores, row_max, sink, dtype: gl.constexpr, scale, variant: gl.constexpr):
    """(weights, sums) of the first tile of keys.

    The sink is in the sums.
    """
    weights = weigh(scores, row_max, factor(scale, variant))
    row_sum = with_sink(variant.sums.first(weights), sink, row_max, variant)
    return gl.convert_layout(weights.to(dtype), variant.weights), row_sum


@gluon.jit
def attend_overlapped(
    issued, query, tiles, barriers, query_tile, sink, iteration, query_iteration, scale, warpgroup: gl.constexpr,
    variant: gl.constexpr,
):  # fmt: skip
    """Attention of a warpgroup's queries to the keys that they see.

    issued: the QK product of the first tile. The PV product of the last is begun and not waited for. sink: of
    ``sink_of``.

    Returns (accumulator [query, value_dim], sums, iteration, and the iteration of the tile whose PV product was begun).
    """
    STAGES: gl.constexpr = variant.stages
    row_max = no_maxima(sink, variant)
    accumulator = no_output(variant)
    row, whole, end, block_end = tiles_of_warpgroup(query_tile, query_iteration, warpgroup, variant)

    # --- the first tile ---
    first_scores = warpgroup_mma_wait(0, deps=[issued])
    release(barriers.key_empty, iteration, STAGES)
    variant.free.product(barriers, query_iteration, end <= 1, variant)
    first_scores = cap(first_scores, scale, variant)
    first_scores = variant.walk.first(first_scores, 0, whole, end, row, query_tile.seq_len_kv, variant)
    row_max = raise_maxima(first_scores, row_max, factor(scale, variant), variant)
    weights, row_sum = first_weights(first_scores, row_max, sink, tiles.key.dtype, scale, variant)

    # --- all others, and the last tile's output ---
    accumulator, row_sum, iteration, weights = attend_to_rest(
        weights, row_max, row_sum, accumulator, query, tiles, barriers, query_tile, row, whole, end, iteration,
        query_iteration, scale, warpgroup, variant,
    )  # fmt: skip
    last_iteration = iteration
    iteration = variant.ends.pass_key(barriers, iteration, query_iteration, end, block_end, warpgroup, variant)
    await_tile(barriers.value_full, last_iteration, STAGES)
    accumulator = issue_output(weights, tiles.value, last_iteration, accumulator, variant)
    return accumulator, row_sum, iteration, last_iteration
