"""The skeleton of the backward steps in cuTile: the kernels, with holes that each step fills otherwise.

The algorithm is FlashAttention's (Dao et al. 2022, https://arxiv.org/abs/2205.14135, and Dao 2023,
https://arxiv.org/abs/2307.08691): a block owns one tile of keys and values, walks over the tiles of queries that see
them, computes the weights of each again from the log-sum-exp of its rows, and adds up dK and dV. For dQ the blocks add
to each other's sums, or there is a kernel of its own, whose blocks own tiles of queries.

``variant`` (``steps.backward_cutile.variant``) is constant when a kernel is compiled.
"""

from __future__ import annotations

import math

import cuda.tile as ct

from steps.cutile.kernel import find

INVERSE_LN2 = 1 / math.log(2)


def load_rows(X, batch, head, i, rows, head_dim):
    """The i-th tile of a tensor's rows [rows, head_dim]; rows past the end are zero."""
    x = ct.load(X, (batch, head, i, 0), (1, 1, rows, head_dim), padding_mode=ct.PaddingMode.ZERO)
    return ct.reshape(x, (rows, head_dim))


def load_numbers(X, batch, head, i, rows, padding):
    """One number for each row of the i-th tile [rows]; past the end, what the padding mode gives."""
    return ct.reshape(ct.load(X, (batch, head, i), (1, 1, rows), padding_mode=padding), (rows,))


def load_lse(LSE, batch, head, i, rows, variant):
    """Log-sum-exp of the i-th tile's rows [rows]; infinity, and so no weight, where no key is seen.

    Past the end it is infinity, too, or where it is prepared zero: there Q, dO and the row sums are zero, and so is all
    that they add. Where keys are infinite, their scores are NaN there: the last tile of queries is masked.
    """
    if variant.prepared:
        return load_numbers(LSE, batch, head, i, rows, ct.PaddingMode.ZERO)
    return seen_or_infinite(load_numbers(LSE, batch, head, i, rows, ct.PaddingMode.POS_INF))


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
                lse = seen_or_infinite(load_numbers(LSE, batch, head, i, variant.tile.query, ct.PaddingMode.POS_INF))
                if not variant.prepared:
                    lse = lse * INVERSE_LN2
                row_sum = load_numbers(RowSum, batch, head, i, variant.tile.query, ct.PaddingMode.ZERO)
                sums = sums + ct.exp2(sink - lse) * row_sum
        ct.store(DSinks, (head,), ct.astype(-ct.sum(sums, axis=0, keepdims=True), DSinks.dtype))

    return gradient_of_sinks


def of_sequence(X, begins, which):
    """The rows of one sequence, of an array of packed sequences [1, heads, tokens, ...], as if there were no others."""
    return X.slice(2, ct.load(begins, (which,), ()), ct.load(begins, (which + 1,), ()))


def gradients_of_keys(j, kv_head, batch, Q, K, V, DO, LSE, RowSum, DQ, DK, DV, scale, variant):
    """dK and dV of one tile of keys, from all queries that see them; with atomics also these keys' part of dQ."""
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
    heads = variant.group_size
    if variant.leaves_unseen:
        heads = min(heads, (tiles - first) * heads)
    for head in range(kv_head * variant.group_size, kv_head * variant.group_size + heads):
        if variant.mask_loops:
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
                        Q, DO, LSE, RowSum, DQ, batch, head, i, j, k, v, d_key, d_value, K.shape[2], True, scale,
                        variant,
                    )  # fmt: skip
        else:
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
    store_rows(DK, batch, kv_head, j, d_key * scale)
    store_rows(DV, batch, kv_head, j, d_value)


def iteration_of_keys(
    Q, DO, LSE, RowSum, DQ, batch, head, i, j, k, v, d_key, d_value, seq_len_kv, masked, scale, variant
):
    """(d_key, d_value) with what the i-th tile of queries adds to them; and, with atomics, what the keys add to dQ."""
    q = load_rows(Q, batch, head, i, variant.tile.query, variant.head_dim)
    do = load_rows(DO, batch, head, i, variant.tile.query, variant.head_dim)
    lse = load_lse(LSE, batch, head, i, variant.tile.query, variant)
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
    if variant.atomics:
        none = ct.zeros((variant.tile.query, variant.head_dim), ct.float32)
        d_query = ct.mma(ct.permute(d_scores, (1, 0)), k, none)
        column = ct.arange(variant.head_dim, dtype=ct.int32)
        index = (batch, head, query_index[:, None], column[None, :])
        ct.atomic_add(DQ, index, d_query, memory_order=variant.atomics)
    return d_key, d_value


def make_gradients_of_keys(variant):
    """The kernel for dK and dV, and with ``variant.atomics`` for dQ, which it adds to an array of zeros in float32.

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

    elif variant.atomics:

        def fmha_backward(Q, K, V, DO, LSE, RowSum, DQ, DK, DV, scale):
            j, kv_head, batch = ct.bid(0), ct.bid(1), ct.bid(2)
            gradients_of_keys(j, kv_head, batch, Q, K, V, DO, LSE, RowSum, DQ, DK, DV, scale, variant)

    else:

        def fmha_backward(Q, K, V, DO, LSE, RowSum, DK, DV, scale):
            j, kv_head, batch = ct.bid(0), ct.bid(1), ct.bid(2)
            gradients_of_keys(j, kv_head, batch, Q, K, V, DO, LSE, RowSum, None, DK, DV, scale, variant)

    return fmha_backward


def make_scaled(variant):
    """What atomics have added up, times the scale and rounded. A block has one tile of queries."""

    def scaled(Sums, DQ, scale):
        i, head, batch = ct.bid(0), ct.bid(1), ct.bid(2)
        sums = load_rows(Sums, batch, head, i, variant.tile.query, variant.head_dim)
        store_rows(DQ, batch, head, i, sums * scale)

    return scaled


def gradients_of_queries(i, head, batch, Q, K, V, DO, LSE, RowSum, DQ, scale, variant):
    """dQ of one tile of queries, from all keys that they see."""
    kv_head = head // variant.group_size
    seq_len_kv = K.shape[2]
    q = load_rows(Q, batch, head, i, variant.tile.query, variant.head_dim)
    do = load_rows(DO, batch, head, i, variant.tile.query, variant.head_dim)
    lse = load_lse(LSE, batch, head, i, variant.tile.query, variant)[:, None]
    row_sum = load_numbers(RowSum, batch, head, i, variant.tile.query, ct.PaddingMode.ZERO)[:, None]
    d_query = ct.zeros((variant.tile.query, variant.head_dim), ct.float32)
    end = ct.cdiv(seq_len_kv, variant.tile.key)
    if variant.causal:
        end = min(end, ct.cdiv((i + 1) * variant.tile.query, variant.tile.key))
    begin = 0
    if variant.window:
        begin = max(0, i * variant.tile.query + 1 - variant.window) // variant.tile.key
    if variant.mask_loops:
        cut = end  # what the mask cuts begins here
        if variant.causal:
            cut = min(cut, (i * variant.tile.query + 1) // variant.tile.key)
        if variant.ragged:
            cut = min(cut, seq_len_kv // variant.tile.key)
        if variant.window:
            cut = begin
        for j in range(begin, cut):
            d_query = iteration_of_queries(
                K, V, batch, kv_head, i, j, q, do, lse, row_sum, d_query, False, scale, variant
            )
        for j in range(cut, end):
            d_query = iteration_of_queries(
                K, V, batch, kv_head, i, j, q, do, lse, row_sum, d_query, True, scale, variant
            )
    else:
        for j in range(begin, end):
            masked = (j + 1) * variant.tile.key > seq_len_kv
            if variant.causal:
                masked = masked | ((j + 1) * variant.tile.key > i * variant.tile.query + 1)
            if variant.window:
                masked = True
            d_query = iteration_of_queries(
                K, V, batch, kv_head, i, j, q, do, lse, row_sum, d_query, masked, scale, variant
            )
    store_rows(DQ, batch, head, i, d_query * scale)


def make_gradients_of_queries(variant):
    """The kernel for dQ, where it has one of its own: a block has one tile of queries, and adds to nobody else's.

    Of packed sequences it takes where they begin, as the one for dK and dV does.
    """
    if variant.sequences:

        def fmha_backward_queries(Q, K, V, DO, LSE, RowSum, DQ, scale, begins_q, begins_k):
            number = ct.bid(0)
            if variant.longest_first:
                number = ct.num_blocks(0) - 1 - number  # under a causal mask later queries see more keys
            which, i = find(number, begins_q, variant)
            Q, DO = of_sequence(Q, begins_q, which), of_sequence(DO, begins_q, which)
            LSE, RowSum = of_sequence(LSE, begins_q, which), of_sequence(RowSum, begins_q, which)
            K, V = of_sequence(K, begins_k, which), of_sequence(V, begins_k, which)
            DQ = of_sequence(DQ, begins_q, which)
            if i * variant.rows < Q.shape[2]:
                gradients_of_queries(i, ct.bid(1), 0, Q, K, V, DO, LSE, RowSum, DQ, scale, variant)

    else:

        def fmha_backward_queries(Q, K, V, DO, LSE, RowSum, DQ, scale):
            i, head, batch = ct.bid(0), ct.bid(1), ct.bid(2)
            if variant.longest_first:
                i = ct.num_blocks(0) - 1 - i
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
