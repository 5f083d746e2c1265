"""Gradients of attention in cuTile, with its launch, for an NVIDIA GPU of compute capability 9.0 (H100, H200).

    gradients(q, k, v, o, lse, do, scale=None) -> dq, dk, dv

Compiled in: head_dim 128, float16, a causal mask. Batch, heads and lengths may be others, as far as the checks say; the
launch is chosen for the problem at the end. Tensors are [batch, heads, length, head_dim]. Query i sees keys 0 to i,
also where the lengths differ. Shared memory, barriers and layouts are the compiler's. There is no autograd. It needs
PyTorch and cuda-tile.

Made from step 405 two_blocks (Autotuned: two blocks per SM) of the FMHA tutorial by
python -m steps.export two_blocks --head-dim 128 --seq-len 4096 --dtype float16 --causal
With --head-dim 64 it writes: HEAD_DIM 64; other layouts OF_QUERIES; other lines in load_numbers, prepare,
iteration_of_keys, iteration_of_queries, fmha_backward_queries, gradients.
"""

import math
import sys
from functools import partial

import cuda.tile as ct
import torch
from triton.testing import do_bench

TILE_QUERY, INVERSE_LN2, GROUP_SIZE, TILE_QUERY_2, HEAD_DIM = 64, 1.4426950408889634, 1, 128, 128
TILE_KEY = 64


def load_rows(X, batch, head, i, rows):
    """The i-th tile of a tensor's rows [rows, head_dim]; rows past the end are zero."""
    x = ct.load(X, (batch, head, i, 0), (1, 1, rows, HEAD_DIM), padding_mode=ct.PaddingMode.ZERO)
    return ct.reshape(x, (rows, HEAD_DIM))


def load_numbers(X, batch, head, i, rows):
    """One number for each row of the i-th tile [rows]; past the end, what the padding mode gives."""
    return ct.reshape(ct.load(X, (batch, head, i), (1, 1, rows), padding_mode=ct.PaddingMode.ZERO), (rows,))


def store_rows(X, batch, head, i, x):
    """Store the i-th tile of rows; what lies past the end is dropped."""
    ct.store(X, (batch, head, i, 0), ct.reshape(ct.astype(x, X.dtype), (1, 1, *x.shape)))


def back_through_softmax(left, right, d_left, d_right, lse, row_sum, visible, masked, scale, dtype):
    """(weights, dS) of one tile of scores ``left right^T``, both in the inputs' dtype."""
    none = ct.zeros((left.shape[0], right.shape[0]), ct.float32)
    scores = ct.mma(left, ct.permute(right, (1, 0)), none)
    weights = ct.exp2(scores * (scale * INVERSE_LN2) - lse, flush_to_zero=True)
    if masked:
        weights = ct.where(visible, weights, 0.0)
    d_weights = ct.mma(d_left, ct.permute(d_right, (1, 0)), none)
    return ct.astype(weights, dtype), ct.astype(weights * (d_weights - row_sum), dtype)


def prepare(Out, DO, LSE, RowSum, Prepared):
    i_2, head_2, batch_2 = ct.bid(0), ct.bid(1), ct.bid(2)
    o = load_rows(Out, batch_2, head_2, i_2, TILE_QUERY)
    do = load_rows(DO, batch_2, head_2, i_2, TILE_QUERY)
    # Store a number for each row of the i-th tile; what lies past the end is dropped.
    x_2 = ct.sum(ct.astype(o, ct.float32) * ct.astype(do, ct.float32), axis=1)
    ct.store(RowSum, (batch_2, head_2, i_2), ct.reshape(x_2, (1, 1, *x_2.shape)))
    i, head, batch = ct.bid(0), ct.bid(1), ct.bid(2)
    lse = load_numbers(LSE, batch, head, i, TILE_QUERY)
    x = ct.where(lse > -math.inf, lse, math.inf) * INVERSE_LN2
    ct.store(Prepared, (batch, head, i), ct.reshape(x, (1, 1, *x.shape)))


def iteration_of_keys(Q, DO, LSE, RowSum, batch, head, i, j, k, v, d_key, d_value, seq_len_kv, masked, scale):
    """(d_key, d_value) with what the i-th tile of queries adds to them."""
    q = load_rows(Q, batch, head, i, TILE_QUERY)
    do = load_rows(DO, batch, head, i, TILE_QUERY)
    lse = load_numbers(LSE, batch, head, i, TILE_QUERY)
    row_sum = load_numbers(RowSum, batch, head, i, TILE_QUERY)
    query_index = i * TILE_QUERY + ct.arange(TILE_QUERY, dtype=ct.int32)
    key_index = j * TILE_KEY + ct.arange(TILE_KEY, dtype=ct.int32)
    # Which queries see which keys; the indices stand along two axes.
    key_index_2 = key_index[:, None]
    visible = (key_index_2 < seq_len_kv) & (key_index_2 <= query_index[None, :])
    # [key, query], as dV and dK need them: of what is computed, only dS must be turned, for dQ
    weights, d_scores = back_through_softmax(
        k, q, v, do, lse[None, :], row_sum[None, :], visible, masked, scale, Q.dtype
    )
    d_value = ct.mma(weights, do, d_value)
    d_key = ct.mma(d_scores, q, d_key)
    return d_key, d_value


def fmha_backward(Q, K, V, DO, LSE, RowSum, DK, DV, scale):
    j, kv_head, batch = ct.bid(0), ct.bid(1), ct.bid(2)
    # dK and dV of one tile of keys, from all queries that see them.
    k = load_rows(K, batch, kv_head, j, TILE_KEY)
    v = load_rows(V, batch, kv_head, j, TILE_KEY)
    d_key = ct.zeros((TILE_KEY, HEAD_DIM), ct.float32)
    d_value = ct.zeros((TILE_KEY, HEAD_DIM), ct.float32)
    tiles = ct.cdiv(Q.shape[2], TILE_QUERY)
    first = min(tiles, (j * TILE_KEY) // TILE_QUERY)
    for head in range(kv_head, kv_head + GROUP_SIZE):
        # (d_key, d_value) with what these tiles of queries add, in loops of their own where the mask cuts them.
        cut = min(tiles, ct.cdiv((j + 1) * TILE_KEY - 1, TILE_QUERY))
        for i in range(first, cut):
            d_key, d_value = iteration_of_keys(
                Q, DO, LSE, RowSum, batch, head, i, j, k, v, d_key, d_value, K.shape[2], True, scale
            )
        for i in range(cut, tiles):
            d_key, d_value = iteration_of_keys(
                Q, DO, LSE, RowSum, batch, head, i, j, k, v, d_key, d_value, K.shape[2], False, scale
            )
    store_rows(DK, batch, kv_head, j, d_key * scale)
    store_rows(DV, batch, kv_head, j, d_value)


def iteration_of_queries(K, V, batch, kv_head, i, j, q, do, lse, row_sum, d_query, masked, scale):
    """d_query with what the j-th tile of keys adds to it."""
    k = load_rows(K, batch, kv_head, j, TILE_KEY)
    v = load_rows(V, batch, kv_head, j, TILE_KEY)
    query_index = i * TILE_QUERY_2 + ct.arange(TILE_QUERY_2, dtype=ct.int32)
    key_index = j * TILE_KEY + ct.arange(TILE_KEY, dtype=ct.int32)
    # Which queries see which keys; the indices stand along two axes.
    key_index_2 = key_index[None, :]
    visible = (key_index_2 < K.shape[2]) & (key_index_2 <= query_index[:, None])
    _, d_scores = back_through_softmax(q, k, do, v, lse, row_sum, visible, masked, scale, K.dtype)
    return ct.mma(d_scores, k, d_query)


def fmha_backward_queries(Q, K, V, DO, LSE, RowSum, DQ, scale):
    number = ct.bid(0)
    blocks = ct.num_blocks(0)
    from_the_last = blocks - 1 - number
    head = ct.bid(1)
    batch = ct.bid(2)
    # dQ of one tile of queries, from all keys that they see.
    seq_len_kv = K.shape[2]
    q = load_rows(Q, batch, head, from_the_last, TILE_QUERY_2)
    do = load_rows(DO, batch, head, from_the_last, TILE_QUERY_2)
    lse = load_numbers(LSE, batch, head, from_the_last, TILE_QUERY_2)[:, None]
    row_sum = load_numbers(RowSum, batch, head, from_the_last, TILE_QUERY_2)[:, None]
    d_query = ct.zeros((TILE_QUERY_2, HEAD_DIM), ct.float32)
    end = min(ct.cdiv(seq_len_kv, TILE_KEY), ct.cdiv((from_the_last + 1) * TILE_QUERY_2, TILE_KEY))
    # d_query with what these tiles of keys add, in a loop of their own where the mask cuts them.
    cut = end  # what the mask cuts begins here
    cut = min(cut, (from_the_last * TILE_QUERY_2 + 1) // TILE_KEY)
    for j in range(0, cut):
        d_query = iteration_of_queries(K, V, batch, head, from_the_last, j, q, do, lse, row_sum, d_query, False, scale)
    for j in range(cut, end):
        d_query = iteration_of_queries(K, V, batch, head, from_the_last, j, q, do, lse, row_sum, d_query, True, scale)
    store_rows(DQ, batch, head, from_the_last, d_query * scale)


def expect(name, wanted, came, fits=None):
    """Raise ValueError unless this fits; where nothing is said of that, unless what came is what is wanted."""
    if not (came == wanted if fits is None else fits):
        raise ValueError(f"{name}: expected {wanted}, got {came}")


OF_ROWS = ct.kernel(prepare)
OF_KEYS = ct.kernel(fmha_backward, occupancy=2)
OF_QUERIES = ct.kernel(fmha_backward_queries, occupancy=1, num_worker_warps=8)


def gradients(q, k, v, o, lse, do, scale=None):
    """(dq, dk, dv) of attention. o: its output; lse: each query's log-sum-exp, natural logarithm; do: o's gradient."""
    shapes = {"q": [*q.shape[:3], HEAD_DIM], "k": [*q.shape[:2], *k.shape[2:3], HEAD_DIM], "v": [*k.shape]}
    shapes |= {"o": [*q.shape], "do": [*q.shape]}
    for (name, shape), x in zip(shapes.items(), (q, k, v, o, do)):
        expect(name, f"torch.float16 {shape} on {q.device}", f"{x.dtype} {[*x.shape]} on {x.device}")
    expect("lse", f"torch.float32 {[*q.shape[:3]]} on {q.device}", f"{lse.dtype} {[*lse.shape]} on {lse.device}")
    expect("q", "a tensor on a GPU", f"one on {q.device}", q.device.type == "cuda")
    expect("q and k", "no length of 0", f"{[*q.shape]} and {[*k.shape]}", min(*q.shape, *k.shape) > 0)
    expect("k", f"a multiple of {TILE_KEY} keys", k.shape[2], k.shape[2] % TILE_KEY == 0)
    expect("q", f"a multiple of {TILE_QUERY} queries", q.shape[2], q.shape[2] % TILE_QUERY == 0)
    scale = 1 / math.sqrt(HEAD_DIM) if scale is None else scale
    expect("scale", "a number above 0", scale, scale > 0)
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    row_sum = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    rows = (-(-q.shape[2] // 64), q.shape[1], q.shape[0])
    keys = (-(-k.shape[2] // TILE_KEY), k.shape[1], k.shape[0])
    queries = (-(-q.shape[2] // 128), q.shape[1], q.shape[0])
    with torch.cuda.device(q.device):
        stream = torch.cuda.current_stream()
        given, lse = lse, torch.empty_like(row_sum)  # in base 2
        ct.launch(stream, rows, OF_ROWS, (o, do, given, row_sum, lse))
        ct.launch(stream, keys, OF_KEYS, (q, k, v, do, lse, row_sum, dk, dv, scale))
        ct.launch(stream, queries, OF_QUERIES, (q, k, v, do, lse, row_sum, dq, scale))
    return dq, dk, dv


def exact(q, k, v, do):
    """(o, log-sum-exps, dq, dk, dv) in float64, a head of Q at a time; gradients by autograd."""
    made = []
    for *each, d_rows in zip(*(x.flatten(0, 1) for x in (q, k, v, do))):
        queries, keys, values = leaves = [x.double().requires_grad_() for x in each]
        scores = queries @ keys.T / math.sqrt(HEAD_DIM)
        scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -math.inf)
        rows = scores.softmax(1) @ values
        made.append([rows.detach(), scores.logsumexp(1).detach(), *torch.autograd.grad(rows, leaves, d_rows.double())])
    return [torch.stack(x).unflatten(0, q.shape[:2]) for x in zip(*made)]


def main():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        print("this program needs an NVIDIA GPU of compute capability 9.0 (H100, H200)", file=sys.stderr)
        return 2
    q, k, v, do = (torch.randn((4, 32, 4096, 128), dtype=torch.float16, device="cuda") for _ in range(4))
    v += 0.5  # so that the mean of the output is not zero
    o, lse, *right = exact(q, k, v, do)
    ours = partial(gradients, q, k, v, o.to(q.dtype), lse.float(), do)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    graph = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True)
    theirs = partial(torch.autograd.grad, graph, leaves, do, retain_graph=True)
    for name, mine, its, wanted in zip(("dq", "dk", "dv"), ours(), theirs(), right):
        step = torch.finfo(mine.dtype).eps * 2.0 ** math.floor(math.log2(wanted.abs().max()))  # of rounding
        error, limit = (mine - wanted).abs().max(), 2 * (its - wanted).abs().max() + step
        judged = "right" if error <= limit else "WRONG"
        print(f"two_blocks: {name} {judged}, error {error:.3g}, at most {limit:.3g} is allowed")
        if judged == "WRONG":
            return 1
    mine, its = (do_bench(function, return_mode="median") for function in (ours, theirs))  # milliseconds
    told = [f"{ms:.4f} ms, {1_374_389_534_720 / 1e9 / ms:.1f} TFLOPS" for ms in (mine, its)]  # of the matrix products
    print(f"two_blocks: {told[0]}; SDPA: {told[1]}; {its / mine:.2f} times as fast")
    return 0


if __name__ == "__main__":
    sys.exit(main())
