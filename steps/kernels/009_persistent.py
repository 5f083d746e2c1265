"""Attention in cuTile, with its launch, for an NVIDIA GPU of compute capability 9.0 (H100, H200).

    attention(q, k, v, scale=None) -> o

Compiled in: head_dim 128, float16, a causal mask. Batch, heads and lengths may be others, as far as the checks say; the
launch is chosen for the problem at the end. Tensors are [batch, heads, length, head_dim]. Query i sees keys 0 to i,
also where the lengths differ. Shared memory, barriers and layouts are the compiler's. There is no autograd. It needs
PyTorch and cuda-tile.

Made from step 9 persistent (Persistent blocks) of the FMHA tutorial by
python -m steps.export persistent --head-dim 128 --seq-len 4096 --dtype float16 --causal
With --head-dim 64 it writes: HEAD_DIM 64.
"""

import heapq
import itertools
import math
import sys
from functools import lru_cache, partial

import cuda.tile as ct
import torch
from triton.testing import do_bench

TILE_QUERY, HEAD_DIM, LEAST, TILE_KEY = 128, 128, -3.4028234663852886e38, 128
INVERSE_LN2 = 1.4426950408889634


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


def fmha(Q, K, V, Out, scale, order, starts):
    block = ct.bid(0)
    first = ct.load(starts, (block,), ())
    for n in range(first, ct.load(starts, (block + 1,), ())):
        # Tile of queries, head and batch of the tile of this number.
        number = ct.load(order, (n,), ())
        tiles_a_head, heads = ct.cdiv(Q.shape[2], TILE_QUERY), Q.shape[1]
        head = number // tiles_a_head
        i, head, batch = number % tiles_a_head, head % heads, head // heads
        # Attention of one tile of queries to all keys that it sees.
        seq_len_kv = K.shape[2]
        # The i-th tile of queries [query, head_dim].
        q = ct.load(Q, (batch, head, i, 0), (1, 1, TILE_QUERY, HEAD_DIM), padding_mode=ct.PaddingMode.ZERO)
        q = ct.reshape(q, (TILE_QUERY, HEAD_DIM))
        # Running maximum and sum of every row, and its output [query, head_dim], not yet normalized.
        row_max = ct.full((TILE_QUERY, 1), LEAST, ct.float32)
        row_sum = ct.zeros((TILE_QUERY, 1), ct.float32)
        accumulator = ct.zeros((TILE_QUERY, HEAD_DIM), ct.float32)
        # Which keys a tile of queries sees: tiles [0, unmasked) whole, tiles [unmasked, end) in part.
        unmasked = seq_len_kv // TILE_KEY
        end = ct.cdiv(seq_len_kv, TILE_KEY)
        unmasked = min(unmasked, (i * TILE_QUERY) // TILE_KEY)
        end = min(end, ct.cdiv((i + 1) * TILE_QUERY, TILE_KEY))
        query_index = i * TILE_QUERY + ct.arange(TILE_QUERY, dtype=ct.int32)[:, None]
        # Maxima, sums and output with all tiles of keys that a tile of queries sees.
        for j in range(end):
            # QK product: scores [query, key].
            k = load_key_transposed(K, batch, head, j)  # [head_dim, key]
            scores = ct.mma(q, k, ct.zeros((TILE_QUERY, TILE_KEY), ct.float32))
            # The compiler splits the loop here: whole tiles never ask.
            if j >= unmasked:
                # Minus infinity for keys that a query does not see.
                key_index = j * TILE_KEY + ct.arange(TILE_KEY, dtype=ct.int32)[None, :]
                scores = ct.where(key_index <= query_index, scores, -math.inf)
            # Online softmax and PV product: maxima, sums and output with one more tile of keys.
            weights, correction, row_max = softmax_exp2(scores, row_max, scale)  # [query, key], [query, 1], [query, 1]
            row_sum = (row_sum * correction) + ct.sum(weights, axis=1, keepdims=True)
            accumulator = accumulator * correction
            # The j-th tile of values, with zeros past their end: the weights there are zero, but 0 * NaN is not.
            v = ct.load(V, (batch, head, j, 0), (1, 1, TILE_KEY, HEAD_DIM), padding_mode=ct.PaddingMode.ZERO)
            accumulator = ct.mma(ct.astype(weights, V.dtype), ct.reshape(v, (TILE_KEY, HEAD_DIM)), accumulator)
        # Normalize and store; rows past the end are dropped.
        o = ct.astype(divide_approximately(accumulator, row_sum), Out.dtype)
        ct.store(Out, (batch, head, i, 0), ct.reshape(o, (1, 1, TILE_QUERY, HEAD_DIM)))


def expect(name, wanted, came, fits=None):
    """Raise ValueError unless this fits; where nothing is said of that, unless what came is what is wanted."""
    if not (came == wanted if fits is None else fits):
        raise ValueError(f"{name}: expected {wanted}, got {came}")


def deal_in_sections(lengths, firsts, lines, blocks):
    """(when the last block ends, tiles of each): a tile goes to the block that is free first, the longest early."""
    free, dealt = [(0, block) for block in range(blocks)], [[] for _ in range(blocks)]  # free: (when, which)
    for first, end in itertools.pairwise([*firsts, lines]):
        for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
            for head in range(first, end):
                when, block = heapq.heappop(free)
                dealt[block].append(head * len(lengths) + i)
                heapq.heappush(free, (when + lengths[i], block))
    return max(free)[0], dealt


@lru_cache(maxsize=32)
def deal(lines, seq_len_q, seq_len_kv, blocks, device):
    """(order, starts), in sections of heads whose keys and values fit in L2. lengths: tiles of keys, and 1 to begin."""
    lengths = [1 + -(-min(seq_len_kv, row + TILE_QUERY) // TILE_KEY) for row in range(0, seq_len_q, TILE_QUERY)]
    section = max(1, min(lines, int(8 * 2**20 / (2 * 2 * seq_len_kv * HEAD_DIM))))  # heads
    firsts = [*range(0, lines, section)]  # heads that sections begin with
    _, dealt = deal_in_sections(lengths, firsts, lines, blocks)
    starts = [0, *itertools.accumulate(map(len, dealt))]
    return tuple(torch.tensor(x, dtype=torch.int32, device=device) for x in ([*itertools.chain(*dealt)], starts))


KERNEL = ct.kernel(fmha, num_worker_warps=8)


def attention(q, k, v, scale=None):
    """softmax(scale * q @ k^T) @ v, as q. scale: above 0; None means 1 / sqrt(head_dim)."""
    shapes = {"q": [*q.shape[:3], HEAD_DIM], "k": [*q.shape[:2], *k.shape[2:3], HEAD_DIM], "v": [*k.shape]}
    for (name, shape), x in zip(shapes.items(), (q, k, v)):
        expect(name, f"torch.float16 {shape} on {q.device}", f"{x.dtype} {[*x.shape]} on {x.device}")
    expect("q", "a tensor on a GPU", f"one on {q.device}", q.device.type == "cuda")
    expect("q and k", "no length of 0", f"{[*q.shape]} and {[*k.shape]}", min(*q.shape, *k.shape) > 0)
    expect("k", f"a multiple of {TILE_KEY} keys", k.shape[2], k.shape[2] % TILE_KEY == 0)
    scale = 1 / math.sqrt(HEAD_DIM) if scale is None else scale
    expect("scale", "a number above 0", scale, scale > 0)
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    tiles = -(-q.shape[2] // TILE_QUERY)  # of queries, a head
    lines = q.shape[0] * q.shape[1]  # heads of all batches
    places = torch.cuda.get_device_properties(q.device).multi_processor_count
    blocks = min(tiles * lines, places)
    order, starts = deal(lines, q.shape[2], k.shape[2], blocks, q.device)
    grid = (blocks, 1, 1)
    arguments = (q, k, v, o, scale, order, starts)
    with torch.cuda.device(q.device):
        ct.launch(torch.cuda.current_stream(), grid, KERNEL, arguments)
    return o


def exact(q, k, v):
    """Attention in float64, a head of Q at a time."""
    o = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    for b, h in itertools.product(*map(range, q.shape[:2])):
        queries, keys, values = (x.double() for x in (q[b, h], k[b, h], v[b, h]))
        scores = queries @ keys.T / math.sqrt(HEAD_DIM)
        scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -math.inf)
        o[b, h] = scores.softmax(1) @ values
    return o


def main():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        print("this program needs an NVIDIA GPU of compute capability 9.0 (H100, H200)", file=sys.stderr)
        return 2
    q, k, v = (torch.randn((4, 32, 4096, 128), dtype=torch.float16, device="cuda") for _ in range(3))
    v += 0.5  # so that the mean of the output is not zero
    ours = partial(attention, q, k, v)
    theirs = partial(torch.nn.functional.scaled_dot_product_attention, q, k, v, is_causal=True)
    for name, mine, its, wanted in [("o", ours(), theirs(), exact(q, k, v))]:
        step = torch.finfo(mine.dtype).eps * 2.0 ** math.floor(math.log2(wanted.abs().max()))  # of rounding
        error, limit = (mine - wanted).abs().max(), 2 * (its - wanted).abs().max() + step
        judged = "right" if error <= limit else "WRONG"
        print(f"persistent: {name} {judged}, error {error:.3g}, at most {limit:.3g} is allowed")
        if judged == "WRONG":
            return 1
    mine, its = (do_bench(function, return_mode="median") for function in (ours, theirs))  # milliseconds
    told = [f"{ms:.4f} ms, {549_755_813_888 / 1e9 / ms:.1f} TFLOPS" for ms in (mine, its)]  # of the matrix products
    print(f"persistent: {told[0]}; SDPA: {told[1]}; {its / mine:.2f} times as fast")
    return 0


if __name__ == "__main__":
    sys.exit(main())
