"""Attention in cuTile, with its launch, for an NVIDIA GPU of compute capability 9.0 (H100, H200).

    attention(q, k, v, scale=None) -> o

Compiled in: head_dim 128, bfloat16, no mask, 8 query heads for each head of keys and values. Batch, heads and lengths
may be others, as far as the checks say; the launch is chosen for the problem at the end. Tensors are [batch, heads,
length, head_dim]. Shared memory, barriers and layouts are the compiler's. There is no autograd. It needs PyTorch and
cuda-tile.

Made from step 905 pack_gqa (A group in a tile) of the FMHA tutorial by
python -m steps.export pack_gqa --head-dim 128 --seq-len 16 --seq-len-kv 8192 --dtype bfloat16 --no-causal
With --head-dim 64 it writes: HEAD_DIM 64.
"""

import itertools
import math
import sys
from functools import partial

import cuda.tile as ct
import torch
from triton.testing import do_bench

ROWS, TOGETHER, HEAD_DIM, TILE_QUERY, LEAST = 16, 8, 128, 128, -3.4028234663852886e38
TILE_KEY, INVERSE_LN2 = 128, 1.4426950408889634
TILE_Q = 16  # queries of a tile
GROUP = 8  # query heads for each head of keys and values


def softmax_exp2(scores, row_max, scale):
    """As step 2's softmax, in base 2: weights [query, key], correction [query, 1], new maximum (over ln 2)."""
    scale = scale * INVERSE_LN2  # of a whole row: the maximum can be taken before scaling, because scale > 0
    new_max = ct.maximum(row_max, ct.max(scores, axis=1, keepdims=True) * scale)
    weights = ct.exp2(scores * scale - new_max, flush_to_zero=True)
    correction = ct.exp2(row_max - new_max, flush_to_zero=True)
    return weights, correction, new_max


def load_key_transposed(K, batch, head, j):
    """The j-th tile of keys, its axes swapped by the load itself: [head_dim, key]."""
    k = ct.load(
        K, (batch, head, 0, j), (1, 1, HEAD_DIM, TILE_KEY), order=(0, 1, 3, 2), padding_mode=ct.PaddingMode.ZERO
    )
    return ct.reshape(k, (HEAD_DIM, TILE_KEY))


def divide_approximately(accumulator, row_sum):
    """Output rows [query, head_dim], divided within about 2 units in the last place of float32."""
    return ct.truediv(accumulator, row_sum, flush_to_zero=True, rounding_mode=ct.RoundingMode.APPROX)


def fmha(Q, K, V, Out, scale):
    for n in range(ct.bid(0), ct.cdiv(Q.shape[3], ROWS) * Q.shape[1] * Q.shape[0], ct.num_blocks(0)):
        # Tile of queries, head and batch of the tile of this number.
        tiles_a_head, heads = ct.cdiv(Q.shape[3], ROWS), Q.shape[1]
        head = n // tiles_a_head
        i, head, batch = n % tiles_a_head, head % heads, head // heads
        # Attention of one tile of queries to all keys that it sees.
        seq_len_kv = K.shape[2]
        # The i-th tile of queries [query, head_dim].
        shape = (1, 1, TOGETHER, ROWS, HEAD_DIM)
        q = ct.load(Q, (batch, head, 0, i, 0), shape, padding_mode=ct.PaddingMode.ZERO)
        q = ct.reshape(q, (TILE_QUERY, HEAD_DIM))
        # Running maximum and sum of every row, and its output [query, head_dim], not yet normalized.
        row_max = ct.full((TILE_QUERY, 1), LEAST, ct.float32)
        row_sum = ct.zeros((TILE_QUERY, 1), ct.float32)
        accumulator = ct.zeros((TILE_QUERY, HEAD_DIM), ct.float32)
        end = ct.cdiv(seq_len_kv, TILE_KEY)
        query_index = i * ROWS + (ct.arange(TILE_QUERY, dtype=ct.int32) % ROWS)[:, None]
        # Maxima, sums and output with all tiles of keys that a tile of queries sees.
        for j in range(end):
            # QK product: scores [query, key].
            k = load_key_transposed(K, batch, head, j)  # [head_dim, key]
            scores = ct.mma(q, k, ct.zeros((TILE_QUERY, TILE_KEY), ct.float32))
            # Online softmax and PV product: maxima, sums and output with one more tile of keys.
            weights, correction, row_max = softmax_exp2(scores, row_max, scale)  # [query, key], [query, 1], [query, 1]
            row_sum = (row_sum * correction) + ct.sum(weights, axis=1, keepdims=True)
            accumulator = accumulator * correction
            # The j-th tile of values, with zeros past their end: the weights there are zero, but 0 * NaN is not.
            v = ct.load(V, (batch, head, j, 0), (1, 1, TILE_KEY, HEAD_DIM), padding_mode=ct.PaddingMode.ZERO)
            accumulator = ct.mma(ct.astype(weights, V.dtype), ct.reshape(v, (TILE_KEY, HEAD_DIM)), accumulator)
        # Normalize and store; rows past the end are dropped.
        o = ct.astype(divide_approximately(accumulator, row_sum), Out.dtype)
        ct.store(Out, (batch, head, 0, i, 0), ct.reshape(o, shape))


def expect(name, wanted, came, fits=None):
    """Raise ValueError unless this fits; where nothing is said of that, unless what came is what is wanted."""
    if not (came == wanted if fits is None else fits):
        raise ValueError(f"{name}: expected {wanted}, got {came}")


KERNEL = ct.kernel(fmha, num_worker_warps=8)


def attention(q, k, v, scale=None):
    """softmax(scale * q @ k^T) @ v, as q. scale: above 0; None means 1 / sqrt(head_dim)."""
    shapes = {"q": [*q.shape[:3], HEAD_DIM], "k": [*q.shape[:1], *k.shape[1:3], HEAD_DIM], "v": [*k.shape]}
    for (name, shape), x in zip(shapes.items(), (q, k, v)):
        expect(name, f"torch.bfloat16 {shape} on {q.device}", f"{x.dtype} {[*x.shape]} on {x.device}")
    expect("q", "a tensor on a GPU", f"one on {q.device}", q.device.type == "cuda")
    expect("q and k", "no length of 0", f"{[*q.shape]} and {[*k.shape]}", min(*q.shape, *k.shape) > 0)
    expect("q", f"{GROUP} heads for each of k's {k.shape[1]}", q.shape[1], q.shape[1] == GROUP * k.shape[1])
    expect("k", f"a multiple of {TILE_KEY} keys", k.shape[2], k.shape[2] % TILE_KEY == 0)
    scale = 1 / math.sqrt(HEAD_DIM) if scale is None else scale
    expect("scale", "a number above 0", scale, scale > 0)
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    tiles = -(-q.shape[2] // TILE_Q)  # of queries, a head
    lines = q.shape[0] * k.shape[1]  # heads of all batches
    places = torch.cuda.get_device_properties(q.device).multi_processor_count
    blocks = min(tiles * lines, places)
    groups = (k.shape[1], GROUP)
    by_group = q.unflatten(1, groups), k, v, o.unflatten(1, groups)
    grid = (blocks, 1, 1)
    arguments = (*by_group, scale)
    with torch.cuda.device(q.device):
        ct.launch(torch.cuda.current_stream(), grid, KERNEL, arguments)
    return o


def exact(q, k, v):
    """Attention in float64, a head of Q at a time."""
    o = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    for b, h in itertools.product(*map(range, q.shape[:2])):
        queries, keys, values = (x.double() for x in (q[b, h], k[b, h // GROUP], v[b, h // GROUP]))
        scores = queries @ keys.T / math.sqrt(HEAD_DIM)
        o[b, h] = scores.softmax(1) @ values
    return o


def main():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        print("this program needs an NVIDIA GPU of compute capability 9.0 (H100, H200)", file=sys.stderr)
        return 2
    shapes = (16, 64, 16, 128), (16, 8, 8192, 128), (16, 8, 8192, 128)
    q, k, v = (torch.randn(shape, dtype=torch.bfloat16, device="cuda") for shape in shapes)
    v += 0.5  # so that the mean of the output is not zero
    ours = partial(attention, q, k, v)
    theirs = partial(torch.nn.functional.scaled_dot_product_attention, q, k, v, is_causal=False, enable_gqa=True)
    for name, mine, its, wanted in [("o", ours(), theirs(), exact(q, k, v))]:
        step = torch.finfo(mine.dtype).eps * 2.0 ** math.floor(math.log2(wanted.abs().max()))  # of rounding
        error, limit = (mine - wanted).abs().max(), 2 * (its - wanted).abs().max() + step
        judged = "right" if error <= limit else "WRONG"
        print(f"pack_gqa: {name} {judged}, error {error:.3g}, at most {limit:.3g} is allowed")
        if judged == "WRONG":
            return 1
    mine, its = (do_bench(function, return_mode="median") for function in (ours, theirs))  # milliseconds
    told = [f"{ms:.4f} ms, {68_719_476_736 / 1e9 / ms:.1f} TFLOPS" for ms in (mine, its)]  # of the matrix products
    print(f"pack_gqa: {told[0]}; SDPA: {told[1]}; {its / mine:.2f} times as fast")
    return 0


if __name__ == "__main__":
    sys.exit(main())
