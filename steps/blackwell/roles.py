"""The kernel whose warps have roles: who does the softmax, who rescales, who begins products, who asks for tiles.

Roles hand tensor memory to each other by mbarriers. The order of work is FlashAttention-4's
(https://github.com/Dao-AILab/flash-attention), but for one wait: see ``multiply``.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import blackwell
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from steps.blackwell.columns import issue_output, issue_scores, rescale, weights_of
from steps.blackwell.softmax import hide, next_maxima, weigh
from steps.blackwell.taking import hear_next, own_tiles, take_next
from steps.blackwell.together import (
    fetch_keys,
    fetch_part,
    fetch_values,
    part_of,
    place_of,
    store_output,
    store_sums,
)
from steps.gluon.softmax import LEAST, tiles_to_visit
from steps.hopper.lib import await_tile


@gluon.jit
def copy(arrays, tiles, barriers, work, variant: gl.constexpr):
    """A warp: asks TMA for all tiles, each as soon as its place is free."""
    PARTS: gl.constexpr = variant.parts
    STAGES: gl.constexpr = variant.stages
    turn = 0  # tiles of keys so far: tells the place in the ring, and how often it was filled
    query_turn = 0  # tiles of queries so far
    n, last = own_tiles(work, variant)
    while n < last:
        place, head = place_of(n, work, variant)
        _, end = tiles_to_visit(place.row, place.seq_len_kv, variant)
        for part in gl.static_range(PARTS):
            if variant.persistent:
                mbarrier.wait(barriers.query_empty.index(part), query_turn & 1 ^ 1)
            fetch_part(arrays, tiles, barriers, place, head, part, variant)
        for j in range(end):
            used = turn // STAGES & 1 ^ 1
            mbarrier.wait(barriers.key_empty.index(turn % STAGES), used)
            fetch_keys(arrays, tiles, barriers, place, j, turn, variant)
            mbarrier.wait(barriers.value_empty.index(turn % STAGES), used)
            fetch_values(arrays, tiles, barriers, place, j, turn, variant)
            turn += 1
        n = take_next(n, last, query_turn, work, variant)
        query_turn += 1


@gluon.jit
def multiply_part(tiles, columns, barriers, part: gl.constexpr, turn, j, end, variant: gl.constexpr):
    """Begin a part's PV product of the j-th tile and its QK product of the next, each once it may."""
    weights = weights_of(columns, part, tiles.key.dtype, variant)
    output = columns.output.index(part)
    mbarrier.wait(barriers.weights_full.index(part), turn & 1)
    issue_output(weights, tiles.value, turn, output, j > 0, barriers.output_full.index(part), variant)
    if j + 1 < end:
        queries = part_of(tiles.query, part, variant)
        scores_at = columns.scores.index(part)
        mbarrier.wait(barriers.output_full.index(part), turn & 1)
        issue_scores(queries, tiles.key, turn + 1, scores_at, barriers.scores_full.index(part), variant)


@gluon.jit
def multiply(tiles, columns, barriers, work, variant: gl.constexpr):
    """A warp: begins all products, of both parts in turn. While one part does its softmax, the other multiplies.

    The next scores come where the weights are that a PV product reads. The PTX ISA promises no order between products
    with different accumulators, so that one is waited for before the QK product begins.
    """
    PARTS: gl.constexpr = variant.parts
    STAGES: gl.constexpr = variant.stages
    turn = 0
    query_turn = 0
    n, last = own_tiles(work, variant)
    while n < last:
        place, _ = place_of(n, work, variant)
        _, end = tiles_to_visit(place.row, place.seq_len_kv, variant)
        await_tile(barriers.key_full, turn, STAGES)
        for part in gl.static_range(PARTS):
            mbarrier.wait(barriers.query_full.index(part), query_turn & 1)
            query = part_of(tiles.query, part, variant)
            scores = columns.scores.index(part)
            issue_scores(query, tiles.key, turn, scores, barriers.scores_full.index(part), variant)
        blackwell.tcgen05_commit(barriers.key_empty.index(turn % STAGES))
        for j in range(end):
            await_tile(barriers.value_full, turn, STAGES)
            if j + 1 < end:
                await_tile(barriers.key_full, turn + 1, STAGES)
            for part in gl.static_range(PARTS):
                multiply_part(tiles, columns, barriers, part, turn, j, end, variant)
            blackwell.tcgen05_commit(barriers.value_empty.index(turn % STAGES))
            if j + 1 < end:
                blackwell.tcgen05_commit(barriers.key_empty.index((turn + 1) % STAGES))
            turn += 1
        n = hear_next(n, last, query_turn, work, variant)
        query_turn += 1


@gluon.jit
def hand_over(factors, barriers, factor, turn, part: gl.constexpr):
    """Give the warpgroup that rescales a factor [query], for the turn-th time."""
    mbarrier.wait(barriers.factors_empty.index(part), turn & 1 ^ 1)
    factors.index(part).store(factor)
    mbarrier.arrive(barriers.factors_full.index(part), count=1)


@gluon.jit
def take_over(factors, barriers, turn, part: gl.constexpr, variant: gl.constexpr):
    """Take the turn-th factor [query] of a part."""
    mbarrier.wait(barriers.factors_full.index(part), turn & 1)
    factor = factors.index(part).load(gl.SliceLayout(1, variant.output))
    mbarrier.arrive(barriers.factors_empty.index(part), count=1)
    return factor


@gluon.jit
def finish(arrays, tiles, columns, barriers, place, head, factor, turn, part: gl.constexpr, variant: gl.constexpr):
    """Store a part's output, multiplied by a factor [query], behind its last PV product, which was the turn-th."""
    mbarrier.wait(barriers.output_full.index(part), turn & 1)
    store_output(arrays, tiles, columns, place, head, factor, part, variant)
    if variant.persistent:
        mbarrier.arrive(barriers.query_empty.index(part), count=1)  # the output left from where Q was


@gluon.jit
def attend(arrays, tiles, columns, factors, barriers, work, scale, LSE, part: gl.constexpr, variant: gl.constexpr):
    """A warpgroup: the softmax of a part's queries, over all tiles of keys that the block visits."""
    ROW: gl.constexpr = gl.SliceLayout(1, variant.accumulator)
    scores_at = columns.scores.index(part)
    weights_at = weights_of(columns, part, tiles.key.dtype, variant)
    output_at = columns.output.index(part)
    turn = 0
    query_turn = 0
    n, last = own_tiles(work, variant)
    while n < last:
        place, head = place_of(n, work, variant)
        whole, end = tiles_to_visit(place.row, place.seq_len_kv, variant)
        first_query = place.row + part * variant.rows
        row_max = gl.full([variant.rows], LEAST, gl.float32, ROW)
        row_sum = gl.full([variant.rows], 0.0, gl.float32, ROW)
        # Two loops from one text: over whole tiles, and over those that need the mask.
        for masked in gl.static_range(2 if variant.causal or variant.ragged else 1):
            for j in range(whole if masked else 0, end if masked else whole):
                mbarrier.wait(barriers.scores_full.index(part), turn & 1)
                scores = scores_at.load(variant.accumulator)
                if masked:
                    scores = hide(scores, first_query, j * variant.tile.key, place.seq_len_kv, variant)
                row_max, correction = next_maxima(scores, row_max, scale, variant)
                if variant.correction:  # noqa: SIM102 - a question for the compiler, and one for the GPU
                    if j > 0:
                        hand_over(factors, barriers, correction, turn - 1, part)
                weights = weigh(scores, row_max, scale, variant)
                row_sum = row_sum * correction + gl.sum(weights, 1)
                weights = gl.convert_layout(weights.to(tiles.key.dtype), variant.weights)
                if not variant.correction:  # noqa: SIM102
                    if j > 0:  # these scores were begun when the PV product before had ended: nobody writes the output
                        rescale(output_at, correction, variant)
                weights_at.store(weights)
                mbarrier.arrive(barriers.weights_full.index(part), count=1)
                turn += 1

        store_sums(LSE, row_max, row_sum, place, head, work, arrays, part, variant)
        factor = 1.0 / row_sum
        if variant.correction:
            hand_over(factors, barriers, factor, turn - 1, part)
        else:
            finish(arrays, tiles, columns, barriers, place, head, factor, turn - 1, part, variant)
        n = hear_next(n, last, query_turn, work, variant)
        query_turn += 1


@gluon.jit
def correct(arrays, tiles, columns, factors, barriers, work, variant: gl.constexpr):
    """A warpgroup: rescales the outputs of both parts, and stores them at the end."""
    PARTS: gl.constexpr = variant.parts
    turn = 0
    query_turn = 0
    n, last = own_tiles(work, variant)
    while n < last:
        place, head = place_of(n, work, variant)
        _, end = tiles_to_visit(place.row, place.seq_len_kv, variant)
        for part in gl.static_range(PARTS):
            mbarrier.arrive(barriers.weights_full.index(part), count=1)  # there is no output yet that needs it
        for _ in range(1, end):
            for part in gl.static_range(PARTS):
                factor = take_over(factors, barriers, turn, part, variant)  # of scores behind the PV product before
                if variant.threshold > 0:
                    if gl.min(factor, 0) < 1.0:  # for all rows or none: a branch is for whole warps
                        rescale(columns.output.index(part), factor, variant)
                else:
                    rescale(columns.output.index(part), factor, variant)
                mbarrier.arrive(barriers.weights_full.index(part), count=1)
            turn += 1
        for part in gl.static_range(PARTS):
            factor = take_over(factors, barriers, turn, part, variant)
            finish(arrays, tiles, columns, barriers, place, head, factor, turn, part, variant)
        turn += 1
        n = hear_next(n, last, query_turn, work, variant)
        query_turn += 1
