"""The kernels of the decoding steps, in cuTile: a few queries against many keys.

K and V are read once, and one query is too little to fill a tile. What fills it are the queries of a group, which all
read the same keys: they are the rows of one tile. A block owns the rows of one kv head of one sequence, and all of its
keys or a range of them. Where several blocks have a range each, every one writes its output and the log-sum-exp of its
scores, and ``merge`` merges these partial results (Dao et al. 2023, https://pytorch.org/blog/flash-decoding/).

``variant`` (``steps.everyday.variant``) is constant when a kernel is compiled. Q, Out and the partial results have
their heads as [kv head, member of its group], which is a view of a tensor with as many heads as queries have.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import cuda.tile as ct

from steps.core.fused import Pieces
from steps.cutile.kernel import LEAST, LN2
from steps.cutile.step003_exp2 import INVERSE_LN2
from steps.everyday import words


def position(Q, variant):
    """What this block owns: its kv head, a tile of rows of that group, and its sequence."""
    tiles_a_group = ct.cdiv(Q.shape[2], variant.members)
    return ct.bid(1) // tiles_a_group, ct.bid(1) % tiles_a_group, ct.bid(2)


def load_rows(Q, kv_head, t, batch, variant):
    """The t-th tile of the queries of a group, as rows [row, head_dim]; rows without a query are zero."""
    shape = (1, 1, variant.members, variant.queries, variant.head_dim)
    q = ct.load(Q, (batch, kv_head, t, 0, 0), shape, padding_mode=ct.PaddingMode.ZERO)
    return ct.reshape(q, (variant.tile.query, variant.head_dim))


def begin(variant):
    """Maximum and sum of every row, and its output [row, head_dim], not yet normalized."""
    row_max = ct.full((variant.tile.query, 1), LEAST, ct.float32)
    row_sum = ct.zeros((variant.tile.query, 1), ct.float32)
    return row_max, row_sum, ct.zeros((variant.tile.query, variant.head_dim), ct.float32)


def range_of(split, splits, tiles):
    """The tiles [first, end) of a split: equal shares, of which the last may be shorter, or empty."""
    share = ct.cdiv(tiles, splits)
    return min(split * share, tiles), min((split + 1) * share, tiles)


def hide(scores, j, length, variant):
    """Minus infinity for the keys past the end, and for those after a query where it is one of the last."""
    key_index = j * variant.tile.key + ct.arange(variant.tile.key, dtype=ct.int32)[None, :]
    scores = ct.where(key_index < length, scores, -math.inf)
    if variant.causal:
        query = ct.arange(variant.tile.query, dtype=ct.int32)[:, None] % variant.queries
        scores = ct.where(key_index <= query + (length - variant.seq_len_q), scores, -math.inf)
    return scores


def seen_by_all(length, variant):
    """Tiles of keys that every row sees whole."""
    hidden = variant.seq_len_q - 1 if variant.causal else 0
    return (length - hidden) // variant.tile.key


def attend(q, K, V, batch, kv_head, first, end, length, scale, variant):
    """Maxima, sums and output, not yet normalized, of the rows q over the tiles [first, end) of keys."""
    row_max, row_sum, accumulator = begin(variant)
    if variant.quantized:
        q, scale, value_scale = words.prepare_queries(q, scale, batch, kv_head, variant)
    for j in range(first, end):
        if variant.quantized:
            k = words.keys_of(variant.load_value(K, batch, kv_head, j, variant), variant)
        else:
            k = variant.load_key(K, batch, kv_head, j, variant)
        scores = ct.mma(q, k, ct.zeros((variant.tile.query, variant.tile.key), ct.float32))
        v = variant.load_value(V, batch, kv_head, j, variant)
        if variant.quantized:
            v = words.values_of(v, variant)
        # The compiler splits the loop here: whole tiles never ask.
        if (variant.ragged or variant.causal) and j >= seen_by_all(length, variant):
            scores = hide(scores, j, length, variant)
            if (
                variant.page_size
            ):  # what a page holds behind the end may be anything: its weight is 0, but 0 * NaN is not
                key_index = j * variant.tile.key + ct.arange(variant.tile.key, dtype=ct.int32)[:, None]
                v = ct.where(key_index < length, v, 0)
        weights, correction, row_max = variant.softmax(scores, row_max, scale)
        row_sum = row_sum * correction + ct.sum(weights, axis=1, keepdims=True)
        accumulator = ct.mma(ct.astype(weights, v.dtype), v, accumulator * correction)
    if variant.quantized:
        accumulator = words.restore_output(accumulator, value_scale, variant)
    return row_max, row_sum, accumulator


def store_partial(Partials, LSE, split, tile, row_max, row_sum, accumulator, variant):
    """A split's output, normalized over its own keys, and its log-sum-exp: zero and minus infinity without keys.

    tile: which of all tiles of rows this is. Not by TMA, whose writes others would see later.
    """
    o = ct.where(row_sum == 0, 0.0, accumulator / row_sum)  # a sum that is NaN stays so
    lse = (row_max + ct.log2(row_sum)) * LN2
    ct.store(LSE, (split, tile), ct.reshape(lse, (1, variant.tile.query)), check_bounds=False, allow_tma=False)
    o = ct.reshape(o, (1, variant.tile.query, variant.head_dim))
    ct.store(Partials, (split, tile, 0), o, check_bounds=False, allow_tma=False)


def finish(Out, kv_head, t, batch, row_max, row_sum, accumulator, variant):
    """Normalize and store the rows that have a query."""
    if variant.lse:
        Out, LSE = Out
        lse = (row_max + ct.log2(row_sum)) * LN2
        ct.store(LSE, (batch, kv_head, t, 0), ct.reshape(lse, (1, 1, variant.members, variant.queries)))
    o = ct.astype(accumulator / row_sum, Out.dtype)
    o = ct.reshape(o, (1, 1, variant.members, variant.queries, variant.head_dim))
    ct.store(Out, (batch, kv_head, t, 0, 0), o)


def comes_last(Arrived, tile, splits):
    """Whether all other splits of these rows have stored their results. The last one sets the count to zero again.

    The addition releases what this block has stored, and acquires what the others have.
    """
    last = ct.atomic_add(Arrived, (tile,), 1, memory_order=ct.MemoryOrder.ACQ_REL) == splits - 1
    if last:
        ct.store(Arrived, (tile,), 0)
    return last


def merge_own(Partials, LSE, tile, splits, variant):
    """Maxima (over ln 2), sums and output, not yet normalized, of all splits of these rows together."""
    row_max, row_sum, accumulator = begin(variant)
    for split in range(splits):
        lse = ct.load(LSE, (split, tile), (1, variant.tile.query), check_bounds=False, allow_tma=False)
        lse = ct.reshape(lse, (variant.tile.query, 1)) * INVERSE_LN2
        shape = (1, variant.tile.query, variant.head_dim)
        partial_o = ct.load(Partials, (split, tile, 0), shape, check_bounds=False, allow_tma=False)
        now = ct.maximum(row_max, lse)
        weight, correction = ct.exp2(lse - now), ct.exp2(row_max - now)
        row_sum = row_sum * correction + weight
        accumulator = accumulator * correction + weight * ct.reshape(partial_o, (variant.tile.query, variant.head_dim))
        row_max = now
    return row_max, row_sum, accumulator


# --- the kernels; their grid: splits, rows (tiles of all groups together), batch ---


@dataclass(frozen=True)
class Splitting(Pieces):
    """Who takes which keys, and who merges.

    kernel(variant): the kernel that goes through the keys, for the interpreter and the compiler. split: several blocks
    have a range of the same keys. last_block_merges: no second kernel merges.
    """

    kernel: Callable
    split: bool = False
    last_block_merges: bool = False


def all_keys(variant):
    """A block takes all keys."""

    def fmha_decode(Q, K, V, Out, scale):
        kv_head, t, batch = position(Q, variant)
        length = K.shape[2]
        q = load_rows(Q, kv_head, t, batch, variant)
        row_max, row_sum, accumulator = attend(
            q, K, V, batch, kv_head, 0, ct.cdiv(length, variant.tile.key), length, scale, variant
        )
        finish(Out, kv_head, t, batch, row_max, row_sum, accumulator, variant)

    return fmha_decode


def ranges_of_keys(variant):
    """A block takes a range of the keys, and stores its partial result for the kernel that merges.

    With pages, their table and the sequences' lengths come behind K and V.
    """
    if variant.page_size:

        def fmha_decode(Q, K, V, Table, Lengths, Partials, LSE, scale):
            split = ct.bid(0)
            kv_head, t, batch = position(Q, variant)
            length = ct.load(Lengths, (batch,), ())
            first, end = range_of(split, ct.num_blocks(0), ct.cdiv(length, variant.tile.key))
            last = (length - 1) // variant.page_size
            q = load_rows(Q, kv_head, t, batch, variant)
            row_max, row_sum, accumulator = attend(
                q, (K, Table, last), (V, Table, last), batch, kv_head, first, end, length, scale, variant
            )
            tile = batch * ct.num_blocks(1) + ct.bid(1)
            store_partial(Partials, LSE, split, tile, row_max, row_sum, accumulator, variant)

    else:

        def fmha_decode(Q, K, V, Partials, LSE, scale):
            split = ct.bid(0)
            kv_head, t, batch = position(Q, variant)
            length = K.shape[2]
            first, end = range_of(split, ct.num_blocks(0), ct.cdiv(length, variant.tile.key))
            q = load_rows(Q, kv_head, t, batch, variant)
            row_max, row_sum, accumulator = attend(q, K, V, batch, kv_head, first, end, length, scale, variant)
            tile = batch * ct.num_blocks(1) + ct.bid(1)
            store_partial(Partials, LSE, split, tile, row_max, row_sum, accumulator, variant)

    return fmha_decode


def ranges_merged_by_the_last(variant):
    """A block takes a range of the keys, and the one that ends last merges."""

    def fmha_decode(Q, K, V, Partials, LSE, Arrived, Out, scale):
        split, splits = ct.bid(0), ct.num_blocks(0)
        kv_head, t, batch = position(Q, variant)
        length = K.shape[2]
        first, end = range_of(split, splits, ct.cdiv(length, variant.tile.key))
        q = load_rows(Q, kv_head, t, batch, variant)
        row_max, row_sum, accumulator = attend(q, K, V, batch, kv_head, first, end, length, scale, variant)
        tile = batch * ct.num_blocks(1) + ct.bid(1)
        store_partial(Partials, LSE, split, tile, row_max, row_sum, accumulator, variant)
        if comes_last(Arrived, tile, splits):
            row_max, row_sum, accumulator = merge_own(Partials, LSE, tile, splits, variant)
            finish(Out, kv_head, t, batch, row_max, row_sum, accumulator, variant)

    return fmha_decode


ALL_KEYS = Splitting(all_keys)
SPLIT_KV = Splitting(ranges_of_keys, split=True)
LAST_BLOCK_MERGES = Splitting(ranges_merged_by_the_last, split=True, last_block_merges=True)


def make_merge(at_once, piece_columns, members, queries, with_lse):
    """The kernel that merges partial results; its grid: pieces of the columns of each query, heads, batch.

    It is the online softmax once more: the log-sum-exp of a split is its score, and its output is its value. at_once:
    splits that one iteration takes; piece_columns: of a piece; powers of two. members, queries: of a tile of rows, see
    ``DecodeVariant``. A query of which no split has a key gets zeros. Without TMA: for these few bytes tileiras 13.5
    would add warps that copy and a ring of buffers, and give each thread as many registers as there are, so that one
    block filled an SM.
    """

    def merge(Partials, LSE, Out):
        if with_lse:
            Out, Whole = Out
        pieces = ct.cdiv(Out.shape[4], piece_columns)
        i, piece, head, batch = ct.bid(0) // pieces, ct.bid(0) % pieces, ct.bid(1), ct.bid(2)
        kv_head, member = head // Out.shape[2], head % Out.shape[2]
        tile = (batch * Out.shape[1] + kv_head) * ct.cdiv(Out.shape[2], members) + member // members
        row = (tile * members + member % members) * queries + i
        high, total = ct.full((1, 1), LEAST, ct.float32), ct.zeros((1, 1), ct.float32)
        o = ct.zeros((1, piece_columns), ct.float32)
        for n in range(ct.cdiv(Partials.shape[0], at_once)):
            lse = ct.load(LSE, (n, row), (at_once, 1), padding_mode=ct.PaddingMode.NEG_INF, allow_tma=False)
            shape, zero = (at_once, 1, piece_columns), ct.PaddingMode.ZERO
            partial_o = ct.load(Partials, (n, row, piece), shape, padding_mode=zero, allow_tma=False)
            partial_o = ct.reshape(partial_o, (at_once, piece_columns))
            now = ct.maximum(high, ct.max(lse, axis=0, keepdims=True))
            weight, correction = ct.exp(lse - now), ct.exp(high - now)
            total = total * correction + ct.sum(weight, axis=0, keepdims=True)
            o = o * correction + ct.sum(weight * partial_o, axis=0, keepdims=True)
            high = now
        if with_lse and piece == 0:
            ct.store(Whole, (batch, kv_head, member, i), ct.reshape(high + ct.log(total), (1, 1, 1, 1)))
        o = ct.where(total == 0, 0.0, o / total)
        o = ct.reshape(ct.astype(o, Out.dtype), (1, 1, 1, 1, piece_columns))
        ct.store(Out, (batch, kv_head, member, i, piece), o, allow_tma=False)

    return merge
