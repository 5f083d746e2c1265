"""The skeleton of the backward steps in cuTile: the kernels, with holes that each step fills otherwise.

The algorithm is FlashAttention's (Dao et al. 2022, https://arxiv.org/abs/2205.14135, and Dao 2023,
https://arxiv.org/abs/2307.08691): a block owns one tile of keys and values, walks over the tiles of queries that see
them, computes the weights of each again from the log-sum-exp of its rows, and adds up dK and dV. For dQ the blocks add
to each other's sums, or there is a kernel of its own, whose blocks own tiles of queries.

``variant`` (``steps.backward_cutile.variant``) is constant when a kernel is compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import cuda.tile as ct

from steps.core.fused import Pieces
from steps.cutile.kernel import find

INVERSE_LN2 = 1 / math.log(2)


def load_rows(X, batch, head, i, rows, head_dim):
    """The i-th tile of a tensor's rows [rows, head_dim]; rows past the end are zero."""
    x = ct.load(X, (batch, head, i, 0), (1, 1, rows, head_dim), padding_mode=ct.PaddingMode.ZERO)
    return ct.reshape(x, (rows, head_dim))


def load_numbers(X, batch, head, i, rows, padding):
    """One number for each row of the i-th tile [rows]; past the end, what the padding mode gives."""
    return ct.reshape(ct.load(X, (batch, head, i), (1, 1, rows), padding_mode=padding), (rows,))


def seen_or_infinite(lse):
    """Log-sum-exps with infinity in place of minus infinity, which stands where no key is seen."""
    return ct.where(lse > -math.inf, lse, math.inf)


def store_numbers(X, batch, head, i, x):
    """Store a number for each row of the i-th tile; what lies past the end is dropped."""
    ct.store(X, (batch, head, i), ct.reshape(x, (1, 1, *x.shape)))


def store_rows(X, batch, head, i, x):
    """Store the i-th tile of rows; what lies past the end is dropped."""
    ct.store(X, (batch, head, i, 0), ct.reshape(ct.astype(x, X.dtype), (1, 1, *x.shape)))


def seen(query_index, key_index, seq_len_kv, variant):
    """Which queries see which keys; the indices stand along two axes."""
    visible = key_index < seq_len_kv
    if variant.causal:
        visible = visible & (key_index <= query_index)
    if variant.window:
        visible = visible & (key_index > query_index - variant.window)
    return visible


def back_through_softmax(left, right, d_left, d_right, lse, row_sum, visible, masked, scale, dtype, variant):
    """(weights, dS) of one tile of scores ``left right^T``, both in the inputs' dtype.

    d_left d_right^T is the gradient of the weights. lse and row_sum hold a number for each query, along the axis of the
    queries. masked: whether the tile has scores that are hidden.
    """
    none = ct.zeros((left.shape[0], right.shape[0]), ct.float32)
    scores = ct.mma(left, ct.permute(right, (1, 0)), none)
    if variant.softcap:
        shares = ct.tanh(scores * (scale / variant.softcap))  # of the cap
        if variant.ragged_queries and masked:
            shares = ct.where(visible, shares, 0.0)
        weights = variant.weigh(shares, lse, variant.softcap)
    else:
        weights = variant.weigh(scores, lse, scale)
    if masked:
        weights = ct.where(visible, weights, 0.0)
    d_weights = ct.mma(d_left, ct.permute(d_right, (1, 0)), none)
    d_scores = weights * (d_weights - row_sum)
    if variant.softcap:
        d_scores = d_scores * (1.0 - shares * shares)
    return ct.astype(weights, dtype), ct.astype(d_scores, dtype)


# --- the small kernel for rows, and the log-sum-exp that the large ones read ---


@dataclass(frozen=True)
class Rows(Pieces):
    """What is made once of each query, and how its log-sum-exp reaches the loops.

    kernel(variant): the small kernel. load(LSE, batch, head, i, rows): log-sum-exp of the i-th tile's rows [rows];
    infinity, and so no weight, where no key is seen. in_base_2(lse): of what is loaded so.
    """

    kernel: Callable
    load: Callable
    in_base_2: Callable


def load_lse(LSE, batch, head, i, rows):
    """As the forward pass stored it; infinity past the end, too."""
    return seen_or_infinite(load_numbers(LSE, batch, head, i, rows, ct.PaddingMode.POS_INF))


def times_log2_e(lse):
    """A natural logarithm in base 2."""
    return lse * INVERSE_LN2


def load_prepared_lse(LSE, batch, head, i, rows):
    """As the small kernel made it, in base 2. Zero past the end: there Q, dO and the row sums are zero, and so is all
    that they add. Where keys are infinite, their scores are NaN there: the last tile of queries is masked."""
    return load_numbers(LSE, batch, head, i, rows, ct.PaddingMode.ZERO)


def as_loaded(lse):
    """It is in base 2 already."""
    return lse


def make_row_sums(variant):
    """D: for each query the sum of dO O over head_dim. A block has one tile of queries."""

    def row_sums(Out, DO, RowSum):
        sum_rows(Out, DO, RowSum, variant)

    return row_sums


def sum_rows(Out, DO, RowSum, variant):
    """D of the block's tile of queries."""
    i, head, batch = ct.bid(0), ct.bid(1), ct.bid(2)
    o = load_rows(Out, batch, head, i, variant.tile.query, variant.head_dim)
    do = load_rows(DO, batch, head, i, variant.tile.query, variant.head_dim)
    store_numbers(RowSum, batch, head, i, ct.sum(ct.astype(o, ct.float32) * ct.astype(do, ct.float32), axis=1))


def make_prepare(variant):
    """Both numbers of each query: D, and the log-sum-exp in base 2, as the large kernels need it."""

    def prepare(Out, DO, LSE, RowSum, Prepared):
        sum_rows(Out, DO, RowSum, variant)
        i, head, batch = ct.bid(0), ct.bid(1), ct.bid(2)
        lse = load_numbers(LSE, batch, head, i, variant.tile.query, ct.PaddingMode.ZERO)
        store_numbers(Prepared, batch, head, i, seen_or_infinite(lse) * INVERSE_LN2)

    return prepare


ROW_SUMS = Rows(make_row_sums, load_lse, times_log2_e)
PREPARED = Rows(make_prepare, load_prepared_lse, as_loaded)


def make_gradient_of_sinks(variant):
    """dsinks: for each head minus the sum over its rows of the sink's weight, exp(sink - lse), times D.

    A block has one head. The order of the sum is always the same.
    """

    def gradient_of_sinks(DSinks, Sinks, LSE, RowSum):
        head = ct.bid(0)
        sink = ct.astype(ct.load(Sinks, (head,), (1,)), ct.float32) * INVERSE_LN2
        sums = ct.zeros((variant.tile.query,), ct.float32)
        for batch in range(LSE.shape[0]):
            for i in range(ct.cdiv(LSE.shape[2], variant.tile.query)):
                # infinity past the end: the sink's weight there must be zero, however large the sink
                lse = variant.of_rows.in_base_2(load_lse(LSE, batch, head, i, variant.tile.query))
                row_sum = load_numbers(RowSum, batch, head, i, variant.tile.query, ct.PaddingMode.ZERO)
                sums = sums + ct.exp2(sink - lse) * row_sum
        ct.store(DSinks, (head,), ct.astype(-ct.sum(sums, axis=0, keepdims=True), DSinks.dtype))

    return gradient_of_sinks


def of_sequence(X, begins, which):
    """The rows of one sequence, of an array of packed sequences [1, heads, tokens, ...], as if there were no others."""
    return X.slice(2, ct.load(begins, (which,), ()), ct.load(begins, (which + 1,), ()))


# --- dK and dV, and dQ where the blocks that own keys add to it ---


def gradients_of_keys(j, kv_head, batch, Q, K, V, DO, LSE, RowSum, DQ, DK, DV, scale, variant):
    """dK and dV of one tile of keys, from all queries that see them."""
    k = load_rows(K, batch, kv_head, j, variant.tile.key, variant.head_dim)
    v = load_rows(V, batch, kv_head, j, variant.tile.key, variant.head_dim)
    d_key = ct.zeros((variant.tile.key, variant.head_dim), ct.float32)
    d_value = ct.zeros((variant.tile.key, variant.head_dim), ct.float32)
    tiles = ct.cdiv(Q.shape[2], variant.tile.query)
    first = 0
    if variant.causal:
        first = min(tiles, (j * variant.tile.key) // variant.tile.query)
    if variant.window:  # later queries see none of these keys
        end = (j + 1) * variant.tile.key - 1 + min(variant.window, Q.shape[2])  # it may be nearly 2^31
        tiles = min(tiles, ct.cdiv(end, variant.tile.query))
    heads = variant.d_query.heads(tiles - first, variant)
    for head in range(kv_head * variant.group_size, kv_head * variant.group_size + heads):
        d_key, d_value = variant.walks.over_queries(
            Q, K, DO, LSE, RowSum, DQ, batch, head, j, first, tiles, k, v, d_key, d_value, scale, variant
        )
    store_rows(DK, batch, kv_head, j, d_key * scale)
    store_rows(DV, batch, kv_head, j, d_value)


def queries_in_one_loop(Q, K, DO, LSE, RowSum, DQ, batch, head, j, first, tiles, k, v, d_key, d_value, scale, variant):
    """(d_key, d_value) with what the tiles [first, tiles) of queries of a head add."""
    for i in range(first, tiles):
        masked = (j + 1) * variant.tile.key > K.shape[2]
        if variant.causal:
            masked = masked | ((j + 1) * variant.tile.key > i * variant.tile.query + 1)
        if variant.window:
            masked = True
        if variant.ragged_queries:
            masked = masked | ((i + 1) * variant.tile.query > Q.shape[2])
        d_key, d_value = iteration_of_keys(
            Q, DO, LSE, RowSum, DQ, batch, head, i, j, k, v, d_key, d_value, K.shape[2], masked, scale, variant
        )
    return d_key, d_value


def queries_in_mask_loops(
    Q, K, DO, LSE, RowSum, DQ, batch, head, j, first, tiles, k, v, d_key, d_value, scale, variant
):
    """(d_key, d_value) with what these tiles of queries add, in loops of their own where the mask cuts them."""
    cut = first  # what the mask cuts ends here
    whole = tiles  # full tiles of queries end here
    if variant.causal:
        cut = min(tiles, ct.cdiv((j + 1) * variant.tile.key - 1, variant.tile.query))
    if variant.ragged:
        cut = tiles if (j + 1) * variant.tile.key > K.shape[2] else cut
    if variant.window:
        cut = tiles
    if variant.ragged_queries:
        whole = max(cut, min(tiles, Q.shape[2] // variant.tile.query))
    for i in range(first, cut):
        d_key, d_value = iteration_of_keys(
            Q, DO, LSE, RowSum, DQ, batch, head, i, j, k, v, d_key, d_value, K.shape[2], True, scale, variant
        )
    for i in range(cut, whole):
        d_key, d_value = iteration_of_keys(
            Q, DO, LSE, RowSum, DQ, batch, head, i, j, k, v, d_key, d_value, K.shape[2], False, scale, variant
        )
    if variant.ragged_queries:
        for i in range(whole, tiles):
            d_key, d_value = iteration_of_keys(
                Q, DO, LSE, RowSum, DQ, batch, head, i, j, k, v, d_key, d_value, K.shape[2], True, scale, variant
            )
    return d_key, d_value


def iteration_of_keys(
    Q, DO, LSE, RowSum, DQ, batch, head, i, j, k, v, d_key, d_value, seq_len_kv, masked, scale, variant
):
    """(d_key, d_value) with what the i-th tile of queries adds to them."""
    q = load_rows(Q, batch, head, i, variant.tile.query, variant.head_dim)
    do = load_rows(DO, batch, head, i, variant.tile.query, variant.head_dim)
    lse = variant.of_rows.load(LSE, batch, head, i, variant.tile.query)
    row_sum = load_numbers(RowSum, batch, head, i, variant.tile.query, ct.PaddingMode.ZERO)
    query_index = i * variant.tile.query + ct.arange(variant.tile.query, dtype=ct.int32)
    key_index = j * variant.tile.key + ct.arange(variant.tile.key, dtype=ct.int32)
    visible = seen(query_index[None, :], key_index[:, None], seq_len_kv, variant)
    if variant.ragged_queries:  # rows past the end are zeros, whose score with a key of infinity is NaN
        visible = visible & (query_index < Q.shape[2])[None, :]
    # [key, query], as dV and dK need them: of what is computed, only dS must be turned, for dQ
    weights, d_scores = back_through_softmax(
        k, q, v, do, lse[None, :], row_sum[None, :], visible, masked, scale, Q.dtype, variant
    )
    d_value = ct.mma(weights, do, d_value)
    d_key = ct.mma(d_scores, q, d_key)
    variant.d_query.add(DQ, batch, head, query_index, d_scores, k, variant)
    return d_key, d_value


@dataclass(frozen=True)
class OfQueries(Pieces):
    """Who computes dQ.

    kernel(variant): the kernel for dK and dV. add(DQ, batch, head, query_index, d_scores, k, variant): what a tile of
    keys adds to dQ. heads(tiles, variant): of a group, over which a block loops; tiles: of queries that see its keys.
    deterministic: the same inputs give the same bits.
    """

    kernel: Callable
    add: Callable
    heads: Callable
    deterministic: bool = False


def add_in_order(DQ, batch, head, query_index, d_scores, k, variant):
    """Atomic additions that order all accesses to memory beside themselves, as they do by default."""
    add_atomically(DQ, batch, head, query_index, d_scores, k, ct.MemoryOrder.ACQ_REL, variant)


def add_relaxed(DQ, batch, head, query_index, d_scores, k, variant):
    """Atomic additions that order no other access to memory."""
    add_atomically(DQ, batch, head, query_index, d_scores, k, ct.MemoryOrder.RELAXED, variant)


def add_atomically(DQ, batch, head, query_index, d_scores, k, memory_order, variant):
    """Add these keys' part of dQ to an array in float32."""
    none = ct.zeros((variant.tile.query, variant.head_dim), ct.float32)
    d_query = ct.mma(ct.permute(d_scores, (1, 0)), k, none)
    column = ct.arange(variant.head_dim, dtype=ct.int32)
    index = (batch, head, query_index[:, None], column[None, :])
    ct.atomic_add(DQ, index, d_query, memory_order=memory_order)


def add_nothing(DQ, batch, head, query_index, d_scores, k, variant):
    """dQ has a kernel of its own."""


def all_heads(tiles, variant):
    """Every head of the group. Where no query sees the keys, the loop over queries has no iterations."""
    return variant.group_size


def no_head_without_queries(tiles, variant):
    """None where no query sees the keys.

    What cuTile 1.7.0 makes for sm_90 of ordered additions in a loop without iterations, inside a loop over heads, did
    not end on an H100.
    """
    if variant.causal and variant.group_size > 1:
        return min(variant.group_size, tiles * variant.group_size)
    return variant.group_size


def make_gradients_of_keys(variant):
    """The kernel for dK and dV alone.

    Of packed sequences it takes where those of the queries and of the keys begin (``tutorial_lib.packing``).
    """
    if variant.sequences:

        def fmha_backward(Q, K, V, DO, LSE, RowSum, DK, DV, scale, begins_q, begins_k):
            which, j = find(ct.bid(0), begins_k, variant)
            Q, DO = of_sequence(Q, begins_q, which), of_sequence(DO, begins_q, which)
            LSE, RowSum = of_sequence(LSE, begins_q, which), of_sequence(RowSum, begins_q, which)
            K, V = of_sequence(K, begins_k, which), of_sequence(V, begins_k, which)
            DK, DV = of_sequence(DK, begins_k, which), of_sequence(DV, begins_k, which)
            if j * variant.rows < K.shape[2]:
                gradients_of_keys(j, ct.bid(1), 0, Q, K, V, DO, LSE, RowSum, None, DK, DV, scale, variant)

    else:

        def fmha_backward(Q, K, V, DO, LSE, RowSum, DK, DV, scale):
            j, kv_head, batch = ct.bid(0), ct.bid(1), ct.bid(2)
            gradients_of_keys(j, kv_head, batch, Q, K, V, DO, LSE, RowSum, None, DK, DV, scale, variant)

    return fmha_backward


def make_all_gradients(variant):
    """The kernel for dK, dV, and for dQ, which it adds to an array of zeros in float32."""

    def fmha_backward(Q, K, V, DO, LSE, RowSum, DQ, DK, DV, scale):
        j, kv_head, batch = ct.bid(0), ct.bid(1), ct.bid(2)
        gradients_of_keys(j, kv_head, batch, Q, K, V, DO, LSE, RowSum, DQ, DK, DV, scale, variant)

    return fmha_backward


ORDERED_ATOMICS = OfQueries(make_all_gradients, add_in_order, no_head_without_queries)
RELAXED_ATOMICS = OfQueries(make_all_gradients, add_relaxed, all_heads)
OWN_KERNEL = OfQueries(make_gradients_of_keys, add_nothing, all_heads, deterministic=True)


def make_scaled(variant):
    """What atomics have added up, times the scale and rounded. A block has one tile of queries."""

    def scaled(Sums, DQ, scale):
        i, head, batch = ct.bid(0), ct.bid(1), ct.bid(2)
        sums = load_rows(Sums, batch, head, i, variant.tile.query, variant.head_dim)
        store_rows(DQ, batch, head, i, sums * scale)

    return scaled


# --- dQ in a kernel of its own ---


def gradients_of_queries(i, head, batch, Q, K, V, DO, LSE, RowSum, DQ, scale, variant):
    """dQ of one tile of queries, from all keys that they see."""
    kv_head = head // variant.group_size
    seq_len_kv = K.shape[2]
    q = load_rows(Q, batch, head, i, variant.tile.query, variant.head_dim)
    do = load_rows(DO, batch, head, i, variant.tile.query, variant.head_dim)
    lse = variant.of_rows.load(LSE, batch, head, i, variant.tile.query)[:, None]
    row_sum = load_numbers(RowSum, batch, head, i, variant.tile.query, ct.PaddingMode.ZERO)[:, None]
    d_query = ct.zeros((variant.tile.query, variant.head_dim), ct.float32)
    end = ct.cdiv(seq_len_kv, variant.tile.key)
    if variant.causal:
        end = min(end, ct.cdiv((i + 1) * variant.tile.query, variant.tile.key))
    begin = 0
    if variant.window:
        begin = max(0, i * variant.tile.query + 1 - variant.window) // variant.tile.key
    d_query = variant.walks.over_keys(K, V, batch, kv_head, i, begin, end, q, do, lse, row_sum, d_query, scale, variant)
    store_rows(DQ, batch, head, i, d_query * scale)


def keys_in_one_loop(K, V, batch, kv_head, i, begin, end, q, do, lse, row_sum, d_query, scale, variant):
    """d_query with what the tiles [begin, end) of keys add."""
    seq_len_kv = K.shape[2]
    for j in range(begin, end):
        masked = (j + 1) * variant.tile.key > seq_len_kv
        if variant.causal:
            masked = masked | ((j + 1) * variant.tile.key > i * variant.tile.query + 1)
        if variant.window:
            masked = True
        d_query = iteration_of_queries(K, V, batch, kv_head, i, j, q, do, lse, row_sum, d_query, masked, scale, variant)
    return d_query


def keys_in_mask_loops(K, V, batch, kv_head, i, begin, end, q, do, lse, row_sum, d_query, scale, variant):
    """d_query with what these tiles of keys add, in a loop of their own where the mask cuts them."""
    cut = end  # what the mask cuts begins here
    if variant.causal:
        cut = min(cut, (i * variant.tile.query + 1) // variant.tile.key)
    if variant.ragged:
        cut = min(cut, K.shape[2] // variant.tile.key)
    if variant.window:
        cut = begin
    for j in range(begin, cut):
        d_query = iteration_of_queries(K, V, batch, kv_head, i, j, q, do, lse, row_sum, d_query, False, scale, variant)
    for j in range(cut, end):
        d_query = iteration_of_queries(K, V, batch, kv_head, i, j, q, do, lse, row_sum, d_query, True, scale, variant)
    return d_query


@dataclass(frozen=True)
class Walks(Pieces):
    """over_queries: those that see a tile of keys; over_keys: those that a tile of queries sees."""

    over_queries: Callable
    over_keys: Callable


ONE_LOOP = Walks(queries_in_one_loop, keys_in_one_loop)
MASK_LOOPS = Walks(queries_in_mask_loops, keys_in_mask_loops)


def as_numbered(number, blocks):
    """Blocks take tiles of queries in their order."""
    return number


def from_the_last(number, blocks):
    """Under a causal mask later queries see more keys: their blocks begin first."""
    return blocks - 1 - number


def make_gradients_of_queries(variant):
    """The kernel for dQ, where it has one of its own: a block has one tile of queries, and adds to nobody else's.

    Of packed sequences it takes where they begin, as the one for dK and dV does.
    """
    if variant.sequences:

        def fmha_backward_queries(Q, K, V, DO, LSE, RowSum, DQ, scale, begins_q, begins_k):
            which, i = find(variant.order(ct.bid(0), ct.num_blocks(0)), begins_q, variant)
            Q, DO = of_sequence(Q, begins_q, which), of_sequence(DO, begins_q, which)
            LSE, RowSum = of_sequence(LSE, begins_q, which), of_sequence(RowSum, begins_q, which)
            K, V = of_sequence(K, begins_k, which), of_sequence(V, begins_k, which)
            DQ = of_sequence(DQ, begins_q, which)
            if i * variant.rows < Q.shape[2]:
                gradients_of_queries(i, ct.bid(1), 0, Q, K, V, DO, LSE, RowSum, DQ, scale, variant)

    else:

        def fmha_backward_queries(Q, K, V, DO, LSE, RowSum, DQ, scale):
            i, head, batch = variant.order(ct.bid(0), ct.num_blocks(0)), ct.bid(1), ct.bid(2)
            gradients_of_queries(i, head, batch, Q, K, V, DO, LSE, RowSum, DQ, scale, variant)

    return fmha_backward_queries


def iteration_of_queries(K, V, batch, kv_head, i, j, q, do, lse, row_sum, d_query, masked, scale, variant):
    """d_query with what the j-th tile of keys adds to it."""
    k = load_rows(K, batch, kv_head, j, variant.tile.key, variant.head_dim)
    v = load_rows(V, batch, kv_head, j, variant.tile.key, variant.head_dim)
    query_index = i * variant.tile.query + ct.arange(variant.tile.query, dtype=ct.int32)
    key_index = j * variant.tile.key + ct.arange(variant.tile.key, dtype=ct.int32)
    visible = seen(query_index[:, None], key_index[None, :], K.shape[2], variant)
    _, d_scores = back_through_softmax(q, k, do, v, lse, row_sum, visible, masked, scale, K.dtype, variant)
    return ct.mma(d_scores, k, d_query)
