"""The kernel whose warps all do the same: a warpgroup that asks for tiles, begins products, and waits for them.

On Hopper a warpgroup begins a product, gives its registers for the sum, and waits for it. A Blackwell SM has memory of
its own for sums: tensor memory, 512 columns of 128 lanes of 32 bits. One thread begins a product with ``tcgen05.mma``.
Its second factor comes from shared memory, and the first from there or from tensor memory. Warps fetch scores from
tensor memory into registers, and store weights and rescaled outputs there. The tensor cores are twice as fast as
Hopper's and the unit for exponentials is not (``tutorial_lib.architectures``). No architecture but sm_100 and sm_103
is meant here.

``variant`` (``steps.blackwell.variant``) is constant when a kernel is compiled, so the compiler drops the branches that
are not taken. ``python -m steps.show NAME`` prints a step's kernel without them.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from steps.blackwell.columns import columns_apart, issue_output, issue_scores
from steps.blackwell.sharing import Barriers, fetch_query, fetch_tile, query_tile_of, rings, rooms, store_sums
from steps.blackwell.softmax import add_up, hide, next_maxima, weigh
from steps.gluon.softmax import LEAST, tiles_to_visit
from steps.hopper.lib import Arrays, Work, await_tile


@gluon.jit(do_not_specialize=["seq_len_kv", "heads", "tiles_a_head"])
def fmha(Q, K, V, Out, order, starts, scale, seq_len_kv, heads, tiles_a_head, variant: gl.constexpr, LSE=None):
    STAGES: gl.constexpr = variant.stages
    # --- shared memory; the output leaves from where Q was ---
    tiles = rooms(Q.dtype, variant)

    # --- tensor memory ---
    columns = columns_apart(Q.dtype, variant)

    arrays = Arrays(Q, K, V, Out)
    work = Work(order, starts, heads, tiles_a_head, seq_len_kv)
    query_full, key_full, value_full, scores_full, output_full = rings(variant)
    barriers = Barriers(query_full, key_full, value_full, scores_full, output_full)
    variant.sharing.see()

    # --- a tile of queries, a tile of keys after the other; a product is begun, and waited for at once ---
    query_tile, head = query_tile_of(gl.program_id(0), work, variant)
    whole, end = tiles_to_visit(query_tile.row, query_tile.seq_len_kv, variant)
    fetch_query(arrays, tiles, barriers, query_tile, head, 0, variant)
    for j in gl.static_range(STAGES):
        if j < end:
            fetch_tile(arrays.key, tiles.key, barriers.key_full, query_tile, j, j, variant)
            fetch_tile(arrays.value, tiles.value, barriers.value_full, query_tile, j, j, variant)
    scores_at = columns.scores.index(0)
    weights_at = columns.weights.index(0)
    output_at = columns.output.index(0)
    ROW: gl.constexpr = gl.SliceLayout(1, scores_at.get_reg_layout())
    row_max = gl.full([variant.rows], LEAST, gl.float32, ROW)
    row_sum = gl.full([variant.rows], 0.0, gl.float32, ROW)
    mbarrier.wait(barriers.query_full.index(0), 0)
    # Two loops from one text: over whole tiles, and over those that need the mask.
    for masked in gl.static_range(2 if variant.causal or variant.ragged else 1):
        for j in range(whole if masked else 0, end if masked else whole):
            # --- scores: QK product ---
            await_tile(barriers.key_full, j, STAGES)
            issue_scores(tiles, columns, barriers, 0, j, variant)
            mbarrier.wait(barriers.scores_full.index(0), j & 1)
            if j + STAGES < end:
                fetch_tile(arrays.key, tiles.key, barriers.key_full, query_tile, j + STAGES, j, variant)
            scores = scores_at.load()
            if masked:
                scores = hide(scores, query_tile.row, j * variant.tile.key, query_tile.seq_len_kv, variant)

            # --- online softmax ---
            row_max, correction = next_maxima(scores, row_max, scale, variant)
            weights = weigh(scores, row_max, scale, variant)
            row_sum = add_up(row_sum, correction, weights, variant)
            weights = gl.convert_layout(weights.to(tiles.key.dtype), weights_at.get_reg_layout())
            if j > 0:
                variant.rescaling.rescale(output_at, correction, variant)
            weights_at.store(weights)

            # --- output: PV product ---
            await_tile(barriers.value_full, j, STAGES)
            variant.sharing.meet()
            issue_output(weights_at, tiles, columns, barriers, 0, j, j > 0, variant)
            mbarrier.wait(barriers.output_full.index(0), j & 1)
            if j + STAGES < end:
                fetch_tile(arrays.value, tiles.value, barriers.value_full, query_tile, j + STAGES, j, variant)

    store_sums(LSE, row_max, row_sum, query_tile, head, work, arrays, 0, variant)
    variant.sharing.store(arrays, tiles, columns, query_tile, head, 1.0 / row_sum, 0, variant)
