"""The skeleton of the cuTile steps: one fused attention kernel. Each step fills one of its holes otherwise.

The algorithm is FlashAttention's (Dao et al. 2022, https://arxiv.org/abs/2205.14135, with the loop order of Dao
2023, https://arxiv.org/abs/2307.08691): a block owns one tile of query rows, walks over the tiles of keys and
values, and keeps for every row a running maximum, a running sum and an unnormalized output, so that the scores
never leave the chip.

``variant`` (``steps.cutile.variant``) is constant when a kernel is compiled, so the compiler drops the branches that
are not taken. ``python -m steps.show NAME`` prints a step's kernel without them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import cuda.tile as ct

from steps.core.fused import Pieces

LN2 = math.log(2)  # as a number: cuTile translates no call of math's functions
LOG2E = 1 / LN2
LEAST = -3.4028234663852886e38  # of float32: a maximum begins with it, as minus infinity less itself would be NaN


def position(number, Q, variant):
    """Tile of queries, head and batch of the tile of this number."""
    if variant.together:
        tiles_a_head, heads = ct.cdiv(Q.shape[3], variant.rows), Q.shape[1]
    else:
        tiles_a_head, heads = ct.cdiv(Q.shape[2], variant.tile.query), Q.shape[1]
    head = number // tiles_a_head
    return number % tiles_a_head, head % heads, head // heads


def place_in_section(block, tiles_a_head, variant):
    """Tile of queries and head, of all batches, that a block computes: heads come in sections."""
    tiles_a_section = variant.section * tiles_a_head
    number = block % tiles_a_section
    i = number // variant.section
    if variant.causal:
        i = tiles_a_head - 1 - i  # the longest first
    return i, block // tiles_a_section * variant.section + number % variant.section


def load_query(Q, i, head, batch, variant):
    """The i-th tile of queries [query, head_dim]."""
    if variant.together:  # some queries of every head of the group
        shape = (1, 1, variant.together, variant.rows, variant.head_dim)
        q = ct.load(Q, (batch, head, 0, i, 0), shape, padding_mode=ct.PaddingMode.ZERO)
        return ct.reshape(q, (variant.tile.query, variant.head_dim))
    q = ct.load(Q, (batch, head, i, 0), (1, 1, variant.tile.query, variant.head_dim), padding_mode=ct.PaddingMode.ZERO)
    return ct.reshape(q, (variant.tile.query, variant.head_dim))


def begin(head, scale, variant):
    """Running maximum and sum of every row, and its output [query, head_dim], not yet normalized.

    A sink is a score without a value: the maximum begins with it, and the sum with its weight.
    """
    if variant.sinks:
        sink = load_sink(scale[1], head, variant)
        row_max = ct.maximum(sink, LEAST)  # a sink of minus infinity is none
        row_sum = ct.full((variant.tile.query, 1), 1.0, ct.float32)
    else:
        row_max = ct.full((variant.tile.query, 1), LEAST, ct.float32)
        row_sum = ct.zeros((variant.tile.query, 1), ct.float32)
    return row_max, row_sum, ct.zeros((variant.tile.query, variant.head_dim), ct.float32)


def load_sink(Sinks, head, variant):
    """The sink of every row's head [query, 1], in the base of the softmax."""
    if variant.together:  # head after head, each with the same queries
        sinks = ct.load(Sinks, (head, 0), (1, variant.together), padding_mode=ct.PaddingMode.ZERO)
        sinks = ct.broadcast_to(ct.reshape(sinks, (variant.together, 1)), (variant.together, variant.rows))
        sinks = ct.reshape(sinks, (variant.tile.query, 1))
    else:
        sinks = ct.broadcast_to(ct.load(Sinks, (head, 0), (1, 1)), (variant.tile.query, 1))
    return variant.base.of_sink(sinks)


def fold_scales(scale, batch, kv_head):
    """What scores of quantized Q and K, and outputs of quantized V, are multiplied by.

    scale: that of the softmax, and the scales [batch, kv_heads] of Q, K and V.
    """
    softmax_scale, query_scale, key_scale, value_scale = scale
    place = (batch, kv_head)
    scale = softmax_scale * (ct.load(query_scale, place, ()) * ct.load(key_scale, place, ()))
    return scale, ct.load(value_scale, place, ())


def tiles_to_visit(i, seq_len_kv, tile, variant):
    """Which keys a tile of queries sees: tiles [0, unmasked) whole, tiles [unmasked, end) in part."""
    unmasked = seq_len_kv // tile.key
    end = ct.cdiv(seq_len_kv, tile.key)
    if variant.causal:
        if variant.together:
            unmasked = min(unmasked, (i * variant.rows) // tile.key)
            end = min(end, ct.cdiv((i + 1) * variant.rows, tile.key))
        else:
            unmasked = min(unmasked, (i * tile.query) // tile.key)
            end = min(end, ct.cdiv((i + 1) * tile.query, tile.key))
    return unmasked, end


def narrow_tiles(i, seq_len_kv, unmasked, variant):
    """Narrow tiles [first, end) of the keys that a tile of queries sees behind its ``unmasked`` whole tiles."""
    _, end = tiles_to_visit(i, seq_len_kv, variant.narrow, variant)
    return unmasked * (variant.tile.key // variant.narrow.key), end


def left_edge(i, tile, variant):
    """Where a sliding window begins: before tile first nobody sees a key, and from tile left on it hides nothing."""
    first = max(0, i * variant.rows + 1 - variant.window) // tile.key
    left = ct.cdiv(max(0, (i + 1) * variant.rows - variant.window), tile.key)
    return first, left


def product(q, K, batch, kv_head, j, tile, latency, variant):
    """QK product: scores [query, key]."""
    k = variant.load_key(K, batch, kv_head, j, tile, variant.head_dim, latency.key)  # [head_dim, key]
    if variant.quantized:  # without fast sums this product would be added to the zeros, in float32
        scores = ct.mma(q, k, ct.zeros((tile.query, tile.key), ct.float32), use_fast_acc=True)
    else:
        scores = ct.mma(q, k, ct.zeros((tile.query, tile.key), ct.float32))
    return scores


def cap(scores, scale, variant):
    """Scores under a soft cap, as parts of it; without one they stay as they are."""
    if variant.softcap:
        return ct.tanh(scores * (scale / variant.softcap))
    else:
        return scores


def load_value(V, batch, kv_head, j, tile, latency, variant):
    """The j-th tile of values, with zeros past their end: the weights there are zero, but 0 * NaN is not."""
    v = ct.load(
        V,
        (batch, kv_head, j, 0),
        (1, 1, tile.key, variant.head_dim),
        padding_mode=ct.PaddingMode.ZERO,
        latency=latency.value,
    )
    return ct.reshape(v, (tile.key, variant.head_dim))


def factor(scale, variant):
    """What the softmax multiplies scores by: the scale, or the soft cap that they are parts of."""
    if variant.softcap:
        return variant.softcap
    else:
        return scale


def query_indices(i, variant):
    """Index of every query of the i-th tile, [query, 1]."""
    if variant.together:  # head after head, each with the same queries
        return i * variant.rows + (ct.arange(variant.tile.query, dtype=ct.int32) % variant.rows)[:, None]
    return i * variant.tile.query + ct.arange(variant.tile.query, dtype=ct.int32)[:, None]


def hide(scores, query_index, j, tile, seq_len_kv, variant):
    """Minus infinity for keys that a query does not see."""
    key_index = j * tile.key + ct.arange(tile.key, dtype=ct.int32)[None, :]
    if variant.causal:
        scores = ct.where(key_index <= query_index, scores, -math.inf)
    if variant.window:
        scores = ct.where(key_index > query_index - variant.window, scores, -math.inf)
    if variant.ragged:
        scores = ct.where(key_index < seq_len_kv, scores, -math.inf)
    return scores


def add_in_float32(weights, values, accumulator):
    """PV product: the output so far, with one more tile of values."""
    return ct.mma(weights, values, accumulator)


def add_in_tensor_cores(weights, values, accumulator):
    """The same in fp8, where the tensor cores add up the tiles, too."""
    return ct.mma(weights, values, accumulator, use_fast_acc=True)


def absorb(scores, V, batch, kv_head, j, tile, latency, row_max, row_sum, accumulator, scale, variant):
    """Online softmax and PV product: maxima, sums and output with one more tile of keys."""
    scale = factor(scale, variant)
    weights, correction, row_max = variant.softmax(scores, row_max, scale)  # [query, key], [query, 1], [query, 1]
    pieces = ct.static_eval(weights if isinstance(weights, tuple) else (weights,))  # [query, key / pieces] each
    row_sum = row_sum * correction
    for piece in ct.static_iter(pieces):
        row_sum = row_sum + ct.sum(piece, axis=1, keepdims=True)
    accumulator = accumulator * correction

    v = load_value(V, batch, kv_head, j, tile, latency, variant)
    for n, piece in ct.static_iter(enumerate(pieces)):
        values = v
        if ct.static_eval(isinstance(weights, tuple)):
            values = ct.extract(v, (n, 0), (piece.shape[1], variant.head_dim))
        accumulator = variant.add_up(ct.astype(piece, V.dtype), values, accumulator)
    return row_max, row_sum, accumulator


def with_maxima(row_sum, row_max, variant):
    """The rows' sums, and where the log-sum-exp is asked for, too, their maxima."""
    if variant.lse:
        return row_sum, row_max
    else:
        return row_sum


@dataclass(frozen=True)
class Base(Pieces):
    """Of the softmax's exponentials. of_sink(sinks): sinks as its scores are.

    log_sum_exp(row_max, row_sum): the natural logarithm of the sum of exponentials of a row's scaled scores [query, 1].
    """

    of_sink: Callable
    log_sum_exp: Callable


def sinks_in_base_2(sinks):
    """Sinks, as scores in base 2."""
    return sinks * LOG2E


def log_sum_exp2(row_max, row_sum):
    """The natural logarithm of the sum of exponentials of a row's scaled scores [query, 1], from base 2."""
    return (row_max + ct.log2(row_sum)) * LN2


def sinks_as_given(sinks):
    """Sinks, as scores in base e."""
    return sinks


def log_sum_exp(row_max, row_sum):
    """The natural logarithm of the sum of exponentials of a row's scaled scores [query, 1]."""
    return row_max + ct.log(row_sum)


BASE_2 = Base(sinks_in_base_2, log_sum_exp2)
BASE_E = Base(sinks_as_given, log_sum_exp)


def store_whole(Out, o, q, i, head, batch, scale, variant):
    """Store a tile of the output. The compiler lets it leave through the buffer of Q in shared memory."""
    ct.store(Out, (batch, head, i, 0), ct.reshape(o, (1, 1, variant.tile.query, variant.head_dim)))


def store_halves(Out, o, q, i, head, batch, scale, variant):
    """Store a tile of the output in two halves, through a buffer of its own."""
    half = (variant.tile.query, variant.head_dim // 2)
    left, right = ct.extract(o, (0, 0), half), ct.extract(o, (0, 1), half)
    # The scale is never negative: nothing changes. But Q is read again, so its room is not free for the output.
    left = ct.where(scale < 0, ct.extract(q, (0, 0), half), left)
    ct.store(Out, (batch, head, i, 0), ct.reshape(left, (1, 1, *half)))
    ct.store(Out, (batch, head, i, 1), ct.reshape(right, (1, 1, *half)))


def finish(Out, i, head, batch, q, row_sum, accumulator, scale, variant):
    """Normalize and store; rows past the end are dropped."""
    if variant.lse:
        Out, LSE = Out
        row_sum, row_max = row_sum
        lse = variant.base.log_sum_exp(row_max, row_sum)
        if variant.together:
            ct.store(LSE, (batch, head, 0, i), ct.reshape(lse, (1, 1, variant.together, variant.rows)))
        else:
            ct.store(LSE, (batch, head, i), ct.reshape(lse, (1, 1, variant.tile.query)))
    o = ct.astype(variant.divide(accumulator, row_sum), Out.dtype)
    if variant.together:
        shape = (1, 1, variant.together, variant.rows, variant.head_dim)
        ct.store(Out, (batch, head, 0, i, 0), ct.reshape(o, shape))
    else:
        variant.store(Out, o, q, i, head, batch, scale, variant)


def attend(i, head, batch, Q, K, V, Out, scale, variant):
    """Attention of one tile of queries to all keys that it sees."""
    kv_head = head // variant.group_size
    seq_len_kv = K.shape[2]
    q = load_query(Q, i, head, batch, variant)
    row_max, row_sum, accumulator = begin(head, scale, variant)
    if variant.sinks:
        scale = scale[0]
    if variant.quantized:
        scale, value_scale = fold_scales(scale, batch, kv_head)
    unmasked, end = tiles_to_visit(i, seq_len_kv, variant.tile, variant)
    query_index = query_indices(i, variant)

    if variant.window:
        row_max, row_sum, accumulator = attend_in_window(
            q, K, V, i, batch, kv_head, seq_len_kv, unmasked, query_index, row_max, row_sum, accumulator, scale, variant
        )
    else:
        row_max, row_sum, accumulator = variant.walk(
            q, K, V, i, batch, kv_head, unmasked, end, query_index, row_max, row_sum, accumulator, scale, variant
        )
    if variant.quantized:
        accumulator = accumulator * value_scale
    finish(Out, i, head, batch, q, with_maxima(row_sum, row_max, variant), accumulator, scale, variant)


def in_one_loop(q, K, V, i, batch, kv_head, unmasked, end, query_index, row_max, row_sum, accumulator, scale, variant):
    """Maxima, sums and output with all tiles of keys that a tile of queries sees."""
    seq_len_kv = K.shape[2]
    tile, hints = variant.tile, variant.latency
    for j in range(end):
        scores = product(q, K, batch, kv_head, j, tile, hints, variant)
        scores = cap(scores, scale, variant)
        # The compiler splits the loop here: whole tiles never ask.
        if (variant.causal or variant.ragged) and j >= unmasked:
            scores = hide(scores, query_index, j, tile, seq_len_kv, variant)
        row_max, row_sum, accumulator = absorb(
            scores, V, batch, kv_head, j, tile, hints, row_max, row_sum, accumulator, scale, variant
        )
    return row_max, row_sum, accumulator


def in_two_loops(q, K, V, i, batch, kv_head, unmasked, end, query_index, row_max, row_sum, accumulator, scale, variant):
    """The same, with a loop of its own for the keys that the mask cuts, in narrower tiles."""
    seq_len_kv = K.shape[2]
    tile, hints = variant.tile, variant.mask_loop.latency
    for j in range(unmasked):
        scores = product(q, K, batch, kv_head, j, tile, hints, variant)
        scores = cap(scores, scale, variant)
        row_max, row_sum, accumulator = absorb(
            scores, V, batch, kv_head, j, tile, hints, row_max, row_sum, accumulator, scale, variant
        )
    narrow = variant.narrow
    first, end = narrow_tiles(i, seq_len_kv, unmasked, variant)
    for j in range(first, end):
        scores = product(q, K, batch, kv_head, j, narrow, variant.latency, variant)
        scores = cap(scores, scale, variant)
        scores = hide(scores, query_index, j, narrow, seq_len_kv, variant)
        row_max, row_sum, accumulator = absorb(
            scores, V, batch, kv_head, j, narrow, variant.latency, row_max, row_sum, accumulator, scale, variant
        )
    return row_max, row_sum, accumulator


def attend_in_window(
    q, K, V, i, batch, kv_head, seq_len_kv, whole_end, query_index, row_max, row_sum, accumulator, scale, variant
):
    """Under a sliding window tiles of keys that nobody sees are skipped.

    The tiles [left, whole_end) that all queries see come first, then those that the left edge cuts, then those that the
    diagonal cuts. A window may be so short that an edge cuts every tile.
    """
    tile, hints, edge = variant.tile, variant.whole_latency, variant.edge
    _, left = left_edge(i, tile, variant)
    cut_first, _ = left_edge(i, edge, variant)
    _, cut_end = tiles_to_visit(i, seq_len_kv, edge, variant)
    for j in range(left, whole_end):
        scores = product(q, K, batch, kv_head, j, tile, hints, variant)
        scores = cap(scores, scale, variant)
        row_max, row_sum, accumulator = absorb(
            scores, V, batch, kv_head, j, tile, hints, row_max, row_sum, accumulator, scale, variant
        )
    for j in range(cut_first, min(left * (tile.key // edge.key), cut_end)):
        row_max, row_sum, accumulator = absorb_cut(
            q, K, V, batch, kv_head, j, query_index, row_max, row_sum, accumulator, scale, variant
        )
    for j in range(max(left, whole_end) * (tile.key // edge.key), cut_end):
        row_max, row_sum, accumulator = absorb_cut(
            q, K, V, batch, kv_head, j, query_index, row_max, row_sum, accumulator, scale, variant
        )
    return row_max, row_sum, accumulator


def absorb_cut(q, K, V, batch, kv_head, j, query_index, row_max, row_sum, accumulator, scale, variant):
    """Maxima, sums and output with the j-th tile of keys, which the mask cuts."""
    tile, hints = variant.edge, variant.latency
    scores = product(q, K, batch, kv_head, j, tile, hints, variant)
    scores = cap(scores, scale, variant)
    scores = hide(scores, query_index, j, tile, K.shape[2], variant)
    return absorb(scores, V, batch, kv_head, j, tile, hints, row_max, row_sum, accumulator, scale, variant)


def find(number, begins, variant):
    """Which sequence the tile of this number belongs to, and which of its tiles it is: a binary search.

    Sequence s has the numbers from begins[s] // query + s on: as many as it has tiles, or one more, for nothing.
    """
    which, width = 0, variant.sequences // 2
    while width > 0:
        later = min(which + width, begins.shape[0] - 2)
        if ct.load(begins, (later,), ()) // variant.rows + later <= number:
            which = later
        width = width // 2
    return which, number - (ct.load(begins, (which,), ()) // variant.rows + which)


def attend_packed(number, head, Q, K, V, Out, scale, begins_q, begins_k, variant):
    """Attention of one tile of queries of a sequence that stands behind others, which are as if they were not there."""
    which, i = find(number, begins_q, variant)
    query, query_end = ct.load(begins_q, (which,), ()), ct.load(begins_q, (which + 1,), ())
    key, key_end = ct.load(begins_k, (which,), ()), ct.load(begins_k, (which + 1,), ())
    if i * variant.rows < query_end - query:
        axis = 3 if variant.together else 2
        K, V = K.slice(2, key, key_end), V.slice(2, key, key_end)
        Q = Q.slice(axis, query, query_end)
        if variant.lse:
            Out = Out[0].slice(axis, query, query_end), Out[1].slice(axis, query, query_end)
        else:
            Out = Out.slice(axis, query, query_end)
        attend(i, head, 0, Q, K, V, Out, scale, variant)


# --- which block computes which tiles ---


@dataclass(frozen=True)
class Scheduler(Pieces):
    """kernel(variant): the skeleton as a plain Python function, for the interpreter and the compiler.

    Its arguments: Q, K, V, Out, scale; where lists is 2, also order, starts (``steps.core.order``). For packed
    sequences where those of the queries and of the keys begin (``tutorial_lib.packing``). Where a tile holds queries of
    all heads of a group, Q and Out are [batch, kv_heads, group_size, query, head_dim]. With sinks, scale is the scale
    and an array of them: [heads, 1], or where a tile holds a group, [kv_heads, group_size]. With Q, K and V in fp8
    scale is the scale and theirs (``fold_scales``).
    in_order: whether blocks have one axis, along which an order says what they compute.
    """

    kernel: Callable
    in_order: bool = False
    lists: int = 0


def block_a_tile(variant):
    """A block for each tile of queries of each head."""

    def fmha(Q, K, V, Out, scale):
        attend(ct.bid(0), ct.bid(1), ct.bid(2), Q, K, V, Out, scale, variant)

    return fmha


def block_a_tile_in_sections(variant):
    """A block for each tile, numbered so that heads come in sections, and the longest tiles first."""

    def fmha(Q, K, V, Out, scale):
        heads = Q.shape[1]
        tiles_a_head = ct.cdiv(Q.shape[2], variant.tile.query)
        i, head = place_in_section(ct.bid(0), tiles_a_head, variant)
        attend(i, head % heads, head // heads, Q, K, V, Out, scale, variant)

    return fmha


def blocks_with_lists(variant):
    """Persistent blocks, each with a list of tiles."""

    def fmha(Q, K, V, Out, scale, order, starts):
        block = ct.bid(0)
        first = ct.load(starts, (block,), ())
        for n in range(first, ct.load(starts, (block + 1,), ())):
            i, head, batch = position(ct.load(order, (n,), ()), Q, variant)
            attend(i, head, batch, Q, K, V, Out, scale, variant)

    return fmha


def blocks_that_count(variant):
    """Persistent blocks: of n, each takes every n-th tile."""

    def fmha(Q, K, V, Out, scale):
        if variant.together:
            tiles = ct.cdiv(Q.shape[3], variant.rows) * Q.shape[1] * Q.shape[0]
        else:
            tiles = ct.cdiv(Q.shape[2], variant.tile.query) * Q.shape[1] * Q.shape[0]
        for n in range(ct.bid(0), tiles, ct.num_blocks(0)):
            i, head, batch = position(n, Q, variant)
            attend(i, head, batch, Q, K, V, Out, scale, variant)

    return fmha


def block_a_packed_tile(variant):
    """A block for each tile of packed sequences."""

    def fmha(Q, K, V, Out, scale, begins_q, begins_k):
        attend_packed(ct.bid(0), ct.bid(1), Q, K, V, Out, scale, begins_q, begins_k, variant)

    return fmha


NATURAL_ORDER = Scheduler(block_a_tile)
SECTIONS = Scheduler(block_a_tile_in_sections, in_order=True)
LISTS = Scheduler(blocks_with_lists, in_order=True, lists=2)
COUNTING = Scheduler(blocks_that_count, in_order=True)
PACKED = Scheduler(block_a_packed_tile)
