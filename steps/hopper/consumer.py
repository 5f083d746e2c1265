"""What the warps that compute do: wgmma, the softmax between products, and the output.

The instructions are in the PTX ISA under "wgmma"; how products run under the softmax is FlashAttention-3's (Shah et al.
2024, https://arxiv.org/abs/2407.08608).
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from steps.gluon import names  # noqa: F401
from steps.gluon.softmax import exp2, hide, softmax, store_lse, sum_own, tiles_to_visit, with_maxima
from steps.hopper.packed import corner, hear_task
from steps.hopper.pieces import (
    await_pieces,
    await_pieces_before,
    issue_pieces,
    issue_scores_of_pieces,
    no_pieces,
    rescale_pieces,
    store_pieces,
)
from steps.hopper.pipeline import (
    Place,
    await_tile,
    fetch_both,
    hear_next,
    numbered,
    own_row,
    own_tiles,
    pass_turn,
    position,
    release,
    seen,
    take_turn,
)
from steps.hopper.softmax import add_up, by_row, cap, factor, hide_in_part, own_tiles_to_visit, raise_maxima, weigh


@gluon.jit
def issue_scores(query, keys, turn, variant: gl.constexpr):
    """Begin the QK product [query, key]. K lies in shared memory, and so does Q, or what of it is not in registers."""
    none = gl.full([variant.rows, variant.tile.key], 0.0, gl.float32, variant.accumulator)
    key = keys.index(turn % variant.stages).reshape([variant.tile.key, variant.head_dim])
    if variant.in_pieces:
        return issue_scores_of_pieces(query, key, none, variant)
    elif variant.half_query:
        HALF: gl.constexpr = variant.head_dim // 2
        held, rest = query
        scores = warpgroup_mma(held, key.slice(0, HALF, 1).permute((1, 0)), none, use_acc=False, is_async=True)
        return warpgroup_mma(rest, key.slice(HALF, HALF, 1).permute((1, 0)), scores, is_async=True)
    else:
        return warpgroup_mma(query, key.permute((1, 0)), none, use_acc=False, is_async=True)


@gluon.jit
def issue_scores_with_quarter(query, keys, turn, variant: gl.constexpr):
    """As ``issue_scores``, where a quarter of Q is in registers: a product for it, and two for what is not."""
    QUARTER: gl.constexpr = variant.head_dim // 4
    held, second, upper = query
    none = gl.full([variant.rows, variant.tile.key], 0.0, gl.float32, variant.accumulator)
    key = keys.index(turn % variant.stages).reshape([variant.tile.key, variant.head_dim])
    of_second, of_upper = key.slice(QUARTER, QUARTER, 1), key.slice(2 * QUARTER, 2 * QUARTER, 1)
    scores = warpgroup_mma(held, key.slice(0, QUARTER, 1).permute((1, 0)), none, use_acc=False, is_async=True)
    scores = warpgroup_mma(second, of_second.permute((1, 0)), scores, is_async=True)
    return warpgroup_mma(upper, of_upper.permute((1, 0)), scores, is_async=True)


@gluon.jit
def issue_output(weights, values, turn, accumulator, variant: gl.constexpr):
    """Begin to add the PV product to the output; V lies in shared memory."""
    value = values.index(turn % variant.stages).reshape([variant.tile.key, variant.head_dim])
    if variant.in_pieces:
        return issue_pieces(weights, value, accumulator, variant)
    else:
        return warpgroup_mma(weights, value, accumulator, is_async=True)


@gluon.jit
def attend(query, arrays, tiles, barriers, place, turn, scale, part: gl.constexpr, variant: gl.constexpr):
    """Attention of a part's queries to the keys that they see, a tile after the other.

    Returns (accumulator [query, head_dim], row_sum [query], turn).
    """
    TILE_KEY: gl.constexpr = variant.tile.key
    STAGES: gl.constexpr = variant.stages
    ROW: gl.constexpr = gl.SliceLayout(1, variant.accumulator)
    row_max = gl.full([variant.rows], float("-inf"), gl.float32, ROW)
    row_sum = gl.full([variant.rows], 0.0, gl.float32, ROW)
    accumulator = gl.full([variant.rows, variant.head_dim], 0.0, gl.float32, variant.output)
    first_query = place.row + part * variant.rows
    whole, end = tiles_to_visit(place.row, place.seq_len_kv, variant)
    # Two loops from one text: over whole tiles, and over those that need the mask.
    for masked in gl.static_range(2 if variant.causal or variant.ragged else 1):
        for j in range(whole if masked else 0, end if masked else whole):
            # --- scores: QK product ---
            await_tile(barriers.key_ready, turn, STAGES)
            take_turn(barriers, turn, part, variant)
            scores = issue_scores(query, tiles.key, turn, variant)
            scores = warpgroup_mma_wait(0, deps=[scores])
            pass_turn(barriers, part, variant)
            if variant.producer:
                release(barriers.key_free, turn, STAGES)
            if masked:
                scores = hide(scores, first_query, j * TILE_KEY, place.seq_len_kv, variant)

            # --- online softmax ---
            weights, correction, row_max = softmax(scores, row_max, scale)
            row_sum = row_sum * correction + gl.sum(weights, 1)
            accumulator = accumulator * by_row(correction, variant)
            weights = gl.convert_layout(weights.to(tiles.key.dtype), variant.weights)

            # --- output: PV product ---
            await_tile(barriers.value_ready, turn, STAGES)
            accumulator = issue_output(weights, tiles.value, turn, accumulator, variant)
            accumulator = warpgroup_mma_wait(0, deps=[accumulator])
            if variant.producer:
                release(barriers.value_free, turn, STAGES)
            else:
                gl.barrier()  # all warps have read this tile: fetch a later one into its place
                if j + STAGES < end:
                    fetch_both(arrays, tiles, barriers, place, j + STAGES, turn % STAGES, variant)
            turn += 1
    return accumulator, with_maxima(row_sum, row_max, variant), turn


@gluon.jit
def all_scores_read(barriers, query_turn, last, variant: gl.constexpr):
    """If this product was the last that reads this part's Q, say so: its place is free."""
    if variant.early_query:
        mbarrier.arrive(barriers.query_free.index(query_turn % variant.query_stages), count=1, pred=last)


@gluon.jit
def pass_over(barriers, place, turn, part: gl.constexpr, variant: gl.constexpr):
    """Pass over the first tile of keys, where only a later part sees it. Returns the turn of the next.

    A place may be given back only once it was filled: two arrivals of one part must not count as those of two.
    """
    if variant.diagonal_first:
        _, block_end = tiles_to_visit(place.row, place.seq_len_kv, variant)
        _, end = own_tiles_to_visit(place.row + part * variant.rows, place.seq_len_kv, block_end, variant)
        if end < block_end:
            await_tile(barriers.key_ready, turn, variant.stages)
            release(barriers.key_free, turn, variant.stages)
            await_tile(barriers.value_ready, turn, variant.stages)
            release(barriers.value_free, turn, variant.stages)
            turn += 1
    return turn


@gluon.jit
def pass_over_rest(barriers, place, turn, query_turn, part: gl.constexpr, variant: gl.constexpr):
    """Pass over all tiles of keys and values that only later parts see. Returns the turn of the last.

    For a part that needs no tile any more: a place of values would else have to wait for one that is in use.
    """
    _, block_end = tiles_to_visit(place.row, place.seq_len_kv, variant)
    first_query = own_row(place.row, query_turn, part, variant)
    _, end = own_tiles_to_visit(first_query, place.seq_len_kv, block_end, variant)
    for _ in range(end, block_end):
        take_turn(barriers, turn - query_turn, part, variant)
        pass_turn(barriers, part, variant)
        turn += 1
        await_tile(barriers.key_ready, turn, variant.stages)
        release(barriers.key_free, turn, variant.stages)
        await_tile(barriers.value_ready, turn, variant.stages)
        release(barriers.value_free, turn, variant.stages)
    return turn


@gluon.jit
def hold(barriers, turn, variant: gl.constexpr):
    """Keep what follows behind what is in front: a wait for an mbarrier that is over at once.

    ptxas orders the instructions of straight code as it likes. Over this, which is a loop, it moves nothing. The wait
    is a second one for a tile of values, which has long arrived. Where warps do not meet, one of them may give back the
    place of these values before another begins to wait here, and that one would wait for good. There it waits for an
    mbarrier where nobody arrives: parity 1 names the phase before the first, and that always counts as complete.
    """
    if variant.holds_by_nobody:
        mbarrier.wait(barriers.nobody.index(0), 1)
    else:
        await_tile(barriers.value_ready, turn, variant.stages)


@gluon.jit
def attend_overlapped(
    scores, first, query, tiles, barriers, place, turn, query_turn, scale, part: gl.constexpr, variant: gl.constexpr
):
    """Attention of a part's queries to the keys that they see, with two products begun together.

    Every turn issues the QK product of tile j and the PV product of tile j - 1, and waits for the first alone. The
    softmax of tile j comes before the wait for the second.

    scores: the QK product of the first tile, begun. The PV product of the last is begun and not waited for.

    Returns (accumulator [query, head_dim], row_sum [query], turn, and the turn of the tile whose PV product was begun).

    With the softmax ahead, first: (weights, row_max, row_sum) of the first tile, and scores count for nothing; else it
    is None. Then the PV product of the last tile is not begun, and its weights are returned in place of its turn.
    """
    STAGES: gl.constexpr = variant.stages
    ROW: gl.constexpr = gl.SliceLayout(1, variant.accumulator)
    if variant.softmax_ahead:
        weights, row_max, row_sum = first
    elif variant.window:  # a tile may hide all its keys from a row, and minus infinity less itself would be NaN
        row_max = gl.full([variant.rows], -1e38, gl.float32, ROW)
    else:
        row_max = gl.full([variant.rows], float("-inf"), gl.float32, ROW)
    if variant.in_pieces:
        accumulator = no_pieces(variant)
    else:
        accumulator = gl.full([variant.rows, variant.head_dim], 0.0, gl.float32, variant.output)
    first_query = own_row(place.row, query_turn, part, variant)
    whole, end = tiles_to_visit(place.row, place.seq_len_kv, variant)
    block_end = end
    if variant.own_end:
        whole, end = own_tiles_to_visit(first_query, place.seq_len_kv, end, variant)

    if not variant.softmax_ahead:
        # --- the first tile ---
        scores = warpgroup_mma_wait(0, deps=[scores])
        release(barriers.key_free, turn, STAGES)
        all_scores_read(barriers, query_turn, end <= 1, variant)
        scores = cap(scores, scale, variant)
        if variant.diagonal_first:
            scores = hide(scores, first_query, (end - 1) * variant.tile.key, place.seq_len_kv, variant)
        else:
            scores = hide_in_part(scores, 0, whole, first_query, place.seq_len_kv, variant)
        row_max = raise_maxima(scores, row_max, factor(scale, variant), variant)
        weights = weigh(scores, row_max, factor(scale, variant))
        row_sum = sum_own(weights) if variant.lean_sum else gl.sum(weights, 1)
        weights = gl.convert_layout(weights.to(tiles.key.dtype), variant.weights)

    for j in range(1, end):
        # --- issue: scores of this tile, output of the tile before ---
        await_tile(barriers.key_ready, turn + 1, STAGES)
        take_turn(barriers, turn - query_turn, part, variant)  # all tiles but the first of every tile of queries
        if variant.quarter_query:
            scores = issue_scores_with_quarter(query, tiles.key, turn + 1, variant)
        else:
            scores = issue_scores(query, tiles.key, turn + 1, variant)
        await_tile(barriers.value_ready, turn, STAGES)
        accumulator = issue_output(weights, tiles.value, turn, accumulator, variant)
        pass_turn(barriers, part, variant)
        scores = warpgroup_mma_wait(2 if variant.in_pieces else 1, deps=[scores])
        release(barriers.key_free, turn + 1, STAGES)
        all_scores_read(barriers, query_turn, j == end - 1, variant)

        # --- online softmax, while the output is computed ---
        scores = cap(scores, scale, variant)
        if not variant.diagonal_first:
            scores = hide_in_part(scores, j, whole, first_query, place.seq_len_kv, variant)
        new_max = raise_maxima(scores, row_max, factor(scale, variant), variant)
        if variant.late_wait == "maxima":
            hold(barriers, turn, variant)
            if variant.in_pieces:
                accumulator, row_max, new_max = await_pieces_before(accumulator, row_max, new_max)
            else:
                accumulator, new_max = warpgroup_mma_wait(0, deps=[accumulator, new_max])
        correction = exp2(row_max - new_max)
        if variant.late_wait == "correction":
            hold(barriers, turn, variant)
            if variant.in_pieces:
                accumulator, new_max, correction = await_pieces_before(accumulator, new_max, correction)
            else:
                accumulator, new_max, correction = warpgroup_mma_wait(0, deps=[accumulator, new_max, correction])
        row_max = new_max
        weights = weigh(scores, row_max, factor(scale, variant))
        row_sum = add_up(row_sum, correction, weights, variant)
        if variant.late_wait == "softmax":
            hold(barriers, turn, variant)
            accumulator, weights = warpgroup_mma_wait(0, deps=[accumulator, weights])
        if not variant.late_wait:
            # ptxas may move this wait: nothing holds it here.
            if variant.in_pieces:
                accumulator = await_pieces(accumulator, 0)
            else:
                accumulator = warpgroup_mma_wait(0, deps=[accumulator])
        release(barriers.value_free, turn, STAGES)
        if variant.in_pieces:
            accumulator = rescale_pieces(accumulator, correction, variant)
        else:
            accumulator = accumulator * by_row(correction, variant)
        weights = gl.convert_layout(weights.to(tiles.key.dtype), variant.weights)
        turn += 1

    # --- a tile that only later parts see: if there is at most one ---
    last_turn = turn
    if variant.own_end and not (variant.diagonal_first or variant.softmax_ahead) and variant.most_over <= 1:  # noqa: SIM102
        if end < block_end:
            take_turn(barriers, turn - query_turn, part, variant)
            pass_turn(barriers, part, variant)
            turn += 1
            await_tile(barriers.key_ready, turn, STAGES)
            release(barriers.key_free, turn, STAGES)

    # --- the last tile's output ---
    if variant.softmax_ahead:
        return accumulator, with_maxima(row_sum, row_max, variant), turn, weights
    else:
        await_tile(barriers.value_ready, last_turn, STAGES)
        accumulator = issue_output(weights, tiles.value, last_turn, accumulator, variant)
        return accumulator, with_maxima(row_sum, row_max, variant), turn, last_turn


@gluon.jit
def part_of(queries, query_turn, part: gl.constexpr, variant: gl.constexpr):
    """A part's queries [query, head_dim] of the query_turn-th tile of queries."""
    index = query_turn % variant.query_stages * variant.parts + part
    return queries.index(index).reshape([variant.rows, variant.head_dim])


@gluon.jit
def to_multiply(query, variant: gl.constexpr):
    """A part's queries as the QK product takes them: where they are, or with some of head_dim in registers."""
    if variant.half_query:
        HALF: gl.constexpr = variant.head_dim // 2
        held = query.slice(0, HALF, 1).load(gl.DotOperandLayout(0, variant.accumulator, 2))
        return held, query.slice(HALF, variant.pieces[1] if variant.in_pieces else HALF, 1)
    elif variant.quarter_query:
        QUARTER: gl.constexpr = variant.head_dim // 4
        held = query.slice(0, QUARTER, 1).load(gl.DotOperandLayout(0, variant.accumulator, 2))
        return held, query.slice(QUARTER, QUARTER, 1), query.slice(2 * QUARTER, 2 * QUARTER, 1)
    else:
        return query


@gluon.jit
def store(o, array, place, batch, head, row, column, variant: gl.constexpr):
    """Hand columns of the output [query, column] to TMA, by way of their place in shared memory once that is free."""
    tma.store_wait(0)
    place.reshape(o.shape).store(o)
    fence_async_shared()
    tma.async_store(array, corner(batch, head, row, column, variant), place)


@gluon.jit
def consume(arrays, tiles, barriers, work, scale, LSE, part: gl.constexpr, variant: gl.constexpr):
    """Warps that compute: a part of every tile of queries that is this block's."""
    STAGES: gl.constexpr = variant.stages
    QUERY_STAGES: gl.constexpr = variant.query_stages
    COLUMNS: gl.constexpr = variant.output_columns
    output = tiles.output.index(part)
    turn = 0  # tiles of keys so far
    query_turn = 0
    n, last = own_tiles(work, variant)
    if variant.packed:
        n, task = hear_task(0, work)
    if variant.linked:
        if variant.packed:
            if n < last:  # numbers may mean nothing, and then a block has nothing to do
                await_tile(barriers.query_ready, 0, QUERY_STAGES)
                await_tile(barriers.key_ready, 0, STAGES)
        else:
            await_tile(barriers.query_ready, 0, QUERY_STAGES)
            await_tile(barriers.key_ready, 0, STAGES)
        scores = issue_scores(part_of(tiles.query, 0, part, variant), tiles.key, 0, variant)
    while n < last:
        if variant.packed:
            head, row, batch = task
            place = Place(row, head // variant.group_size, batch, batch.length_kv)
        else:
            head, batch, i = position(numbered(work, n, variant), work)
            place = Place(i * variant.tile.query, head // variant.group_size, batch, work.seq_len_kv)
        query = part_of(tiles.query, query_turn, part, variant)
        if not variant.linked:
            await_tile(barriers.query_ready, query_turn, QUERY_STAGES)
        query = to_multiply(query, variant)
        if variant.overlap:
            if not variant.linked:
                turn = pass_over(barriers, place, turn, part, variant)
                await_tile(barriers.key_ready, turn, STAGES)
                scores = issue_scores(query, tiles.key, turn, variant)
            accumulator, row_sum, turn, last_turn = attend_overlapped(
                scores, None, query, tiles, barriers, seen(place, variant), turn, query_turn, scale, part, variant
            )
        else:
            accumulator, row_sum, turn = attend(query, arrays, tiles, barriers, place, turn, scale, part, variant)
        if variant.packed:
            n, task = hear_task(query_turn + 1, work)
        else:
            n = hear_next(n, query_turn, work, variant)
        if variant.own_output and not variant.early_query:
            release(barriers.query_free, query_turn, QUERY_STAGES)
        if variant.most_over > 1:
            if variant.in_pieces:
                accumulator = await_pieces(accumulator, 0)
            else:
                accumulator = warpgroup_mma_wait(0, deps=[accumulator])
            release(barriers.value_free, last_turn, STAGES)
            turn = pass_over_rest(barriers, place, turn, query_turn, part, variant)
        if variant.overlap:
            if variant.linked:
                # The first product for the next queries is issued behind the last for these, and runs while these are
                # stored. Behind the last queries of all it is issued in vain: a branch around it would wait for it.
                if n < last:
                    await_tile(barriers.query_ready, query_turn + 1, QUERY_STAGES)
                    await_tile(barriers.key_ready, turn + 1, STAGES)
                following = part_of(tiles.query, query_turn + 1, part, variant)
                scores = issue_scores(following, tiles.key, turn + 1, variant)
                if variant.in_pieces:
                    accumulator = await_pieces(accumulator, 2)
                else:
                    accumulator = warpgroup_mma_wait(1, deps=[accumulator])
            elif variant.most_over <= 1:
                if variant.in_pieces:
                    accumulator = await_pieces(accumulator, 0)
                else:
                    accumulator = warpgroup_mma_wait(0, deps=[accumulator])
            if variant.most_over <= 1:
                release(barriers.value_free, last_turn, STAGES)
            if variant.own_end and not variant.diagonal_first and variant.most_over <= 1:  # noqa: SIM102
                if last_turn < turn:
                    await_tile(barriers.value_ready, turn, STAGES)
                    release(barriers.value_free, turn, STAGES)
            turn += 1

        # --- normalise and store; TMA drops rows past the end ---
        if variant.lse:
            row_sum, row_max = row_sum
        if variant.lean_sum:
            row_sum = gl.convert_layout(gl.sum(row_sum, 1), gl.SliceLayout(1, variant.accumulator))
        if variant.in_pieces:
            o = rescale_pieces(accumulator, 1.0 / row_sum, variant)
        else:
            o = (accumulator * by_row(1.0 / row_sum, variant)).to(tiles.query.dtype)
        row = own_row(place.row, query_turn, part, variant)
        if variant.lse:
            if variant.packed:
                line = head.to(gl.int64) * (arrays.query.shape[1] - 1) + batch.begin  # that axis has tokens + 1
                store_lse(LSE + line, row_max, row_sum, 0, row, batch.length)
            else:
                line = batch.to(gl.int64) * work.heads + head
                store_lse(LSE, row_max, row_sum, line, row, arrays.query.shape[2])
        if variant.in_pieces:
            store_pieces(o, arrays.output, output, batch, head, row, variant)
        elif variant.half_output:
            left, right = o.reshape([variant.rows, 2, COLUMNS]).permute((0, 2, 1)).split()
            store(left, arrays.output, output, batch, head, row, 0, variant)
            store(right, arrays.output, output, batch, head, row, COLUMNS, variant)
        else:
            store(o, arrays.output, output, batch, head, row, 0, variant)
        if not variant.own_output:
            tma.store_wait(0)
            if variant.producer:
                release(barriers.query_free, query_turn, QUERY_STAGES)
        query_turn += 1
    if variant.linked:
        scores = warpgroup_mma_wait(0, deps=[scores])
    tma.store_wait(0)
