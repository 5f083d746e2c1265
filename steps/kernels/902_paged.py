"""Attention to keys in pages in cuTile, with its launch, for an NVIDIA GPU of compute capability 9.0 (H100, H200).

    paged(q, k_pages, v_pages, page_table, lengths, scale=None) -> o

Compiled in: head_dim 128, bfloat16, a causal mask, 8 query heads for each head of keys and values, pages of 64. Batch,
heads and lengths may be others, as far as the checks say; the launch is chosen for the problem at the end. Shared
memory, barriers and layouts are the compiler's. There is no autograd. It needs PyTorch and cuda-tile.

Made from step 902 paged (Keys and values read from pages) of the FMHA tutorial by
python -m steps.export paged --head-dim 128 --seq-len 1 --seq-len-kv 32768 --dtype bfloat16 --causal
With --head-dim 64 it writes: TILE_KEY 128; PIECE_COLUMNS 64; HEAD_DIM 64; COLUMNS 64; other lines in fmha_decode; not
as functions of their own: load_key_from_pages, load_value_from_pages; also small_page (The n-th page of a sequence
[page_size, column]; behind its last page once more that: the table ends there); also from_small_pages (The j-th tile of
keys or values [key, column], of two or four pages).
"""

import itertools
import math
import sys
from functools import lru_cache, partial

import cuda.tile as ct
import torch
from torch.nn.functional import scaled_dot_product_attention
from triton.testing import do_bench

TILE_KEY, PAGE_SIZE, PIECE_COLUMNS, MEMBERS, QUERIES, AT_ONCE, HEAD_DIM = 64, 64, 128, 8, 2, 4, 128
LEAST, TILE_QUERY, LN2, LATENCY_KEY = -3.4028234663852886e38, 16, 0.6931471805599453, 8
COLUMNS, LATENCY_VALUE, INVERSE_LN2 = 128, 8, 1.4426950408889634
GROUP = 8  # query heads for each head of keys and values


def load_key_from_pages(K, batch, kv_head, j):
    """The j-th tile of keys, transposed: [head_dim, key]."""
    Pages, Table, _ = K
    # Of a page that is no smaller than a tile: its number, and which of its tiles the j-th of a sequence is.
    tiles_a_page = PAGE_SIZE // TILE_KEY
    number, within = ct.load(Table, (batch, j // tiles_a_page), ()), j % tiles_a_page
    shape = (1, 1, HEAD_DIM, TILE_KEY)
    k = ct.load(Pages, (number, kv_head, 0, within), shape, order=(0, 2, 3, 1), latency=LATENCY_KEY)
    return ct.reshape(k, (HEAD_DIM, TILE_KEY))


def load_value_from_pages(V, batch, kv_head, j):
    """The j-th tile of values, or of keys or values as words: [key, column]."""
    Pages, Table, _ = V
    # Of a page that is no smaller than a tile: its number, and which of its tiles the j-th of a sequence is.
    tiles_a_page = PAGE_SIZE // TILE_KEY
    number, within = ct.load(Table, (batch, j // tiles_a_page), ()), j % tiles_a_page
    v = ct.load(Pages, (number, within, kv_head, 0), (1, TILE_KEY, 1, COLUMNS), latency=LATENCY_VALUE)
    return ct.reshape(v, (TILE_KEY, COLUMNS))


def fmha_decode(Q, K, V, Table, Lengths, Partials, LSE, scale):
    split = ct.bid(0)
    # What this block owns: its kv head, a tile of rows of that group, and its sequence.
    tiles_a_group = ct.cdiv(Q.shape[2], MEMBERS)
    kv_head, t, batch = ct.bid(1) // tiles_a_group, ct.bid(1) % tiles_a_group, ct.bid(2)
    length = ct.load(Lengths, (batch,), ())
    # The tiles [first, end) of a split: equal shares, of which the last may be shorter, or empty.
    splits = ct.num_blocks(0)
    tiles = ct.cdiv(length, TILE_KEY)
    share = ct.cdiv(tiles, splits)
    first, end = min(split * share, tiles), min((split + 1) * share, tiles)
    last = (length - 1) // PAGE_SIZE
    # The t-th tile of the queries of a group, as rows [row, head_dim]; rows without a query are zero.
    q = ct.load(Q, (batch, kv_head, t, 0, 0), (1, 1, MEMBERS, QUERIES, HEAD_DIM), padding_mode=ct.PaddingMode.ZERO)
    q = ct.reshape(q, (TILE_QUERY, HEAD_DIM))
    # Maxima, sums and output, not yet normalized, of the rows q over the tiles [first, end) of keys.
    row_max = ct.full((TILE_QUERY, 1), LEAST, ct.float32)
    row_sum = ct.zeros((TILE_QUERY, 1), ct.float32)
    accumulator = ct.zeros((TILE_QUERY, HEAD_DIM), ct.float32)
    for j in range(first, end):
        k = load_key_from_pages((K, Table, last), batch, kv_head, j)
        scores = ct.mma(q, k, ct.zeros((TILE_QUERY, TILE_KEY), ct.float32))
        v = load_value_from_pages((V, Table, last), batch, kv_head, j)
        # The compiler splits the loop here: whole tiles never ask.
        if j >= (length // TILE_KEY):
            # Minus infinity for the keys past the end, and for those after a query where it is one of the last.
            key_index_2 = j * TILE_KEY + ct.arange(TILE_KEY, dtype=ct.int32)[None, :]
            scores = ct.where(key_index_2 < length, scores, -math.inf)
            key_index = j * TILE_KEY + ct.arange(TILE_KEY, dtype=ct.int32)[:, None]
            v = ct.where(key_index < length, v, 0)
        # As step 2's softmax, in base 2: weights [query, key], correction [query, 1], new maximum (over ln 2).
        scale_2 = scale * INVERSE_LN2  # of a whole row: the maximum can be taken before scaling, because scale > 0
        new_max = ct.maximum(row_max, ct.max(scores, axis=1, keepdims=True) * scale_2)
        weights = ct.exp2(scores * scale_2 - new_max, flush_to_zero=True)
        correction = ct.exp2(row_max - new_max, flush_to_zero=True)
        row_max = new_max
        row_sum = row_sum * correction + ct.sum(weights, axis=1, keepdims=True)
        accumulator = ct.mma(ct.astype(weights, v.dtype), v, accumulator * correction)
    tile = batch * ct.num_blocks(1) + ct.bid(1)
    # A split's output, normalized over its own keys, and its log-sum-exp: zero and minus infinity without keys.
    o = ct.where(row_sum == 0, 0.0, accumulator / row_sum)  # a sum that is NaN stays so
    lse = (row_max + ct.log2(row_sum)) * LN2
    ct.store(LSE, (split, tile), ct.reshape(lse, (1, TILE_QUERY)), check_bounds=False, allow_tma=False)
    o = ct.reshape(o, (1, TILE_QUERY, HEAD_DIM))
    ct.store(Partials, (split, tile, 0), o, check_bounds=False, allow_tma=False)


def merge(Partials, LSE, Out):
    pieces = ct.cdiv(Out.shape[4], PIECE_COLUMNS)
    i, piece, head, batch = ct.bid(0) // pieces, ct.bid(0) % pieces, ct.bid(1), ct.bid(2)
    kv_head, member = head // Out.shape[2], head % Out.shape[2]
    tile = (batch * Out.shape[1] + kv_head) * ct.cdiv(Out.shape[2], MEMBERS) + member // MEMBERS
    row = (tile * MEMBERS + member % MEMBERS) * QUERIES + i
    high, total = ct.full((1, 1), LEAST, ct.float32), ct.zeros((1, 1), ct.float32)
    o = ct.zeros((1, PIECE_COLUMNS), ct.float32)
    for n in range(ct.cdiv(Partials.shape[0], AT_ONCE)):
        lse = ct.load(LSE, (n, row), (AT_ONCE, 1), padding_mode=ct.PaddingMode.NEG_INF, allow_tma=False)
        shape, zero = (AT_ONCE, 1, PIECE_COLUMNS), ct.PaddingMode.ZERO
        partial_o = ct.load(Partials, (n, row, piece), shape, padding_mode=zero, allow_tma=False)
        partial_o = ct.reshape(partial_o, (AT_ONCE, PIECE_COLUMNS))
        now = ct.maximum(high, ct.max(lse, axis=0, keepdims=True))
        weight, correction = ct.exp(lse - now), ct.exp(high - now)
        total = total * correction + ct.sum(weight, axis=0, keepdims=True)
        o = o * correction + ct.sum(weight * partial_o, axis=0, keepdims=True)
        high = now
    o = ct.where(total == 0, 0.0, o / total)
    o = ct.reshape(ct.astype(o, Out.dtype), (1, 1, 1, 1, PIECE_COLUMNS))
    ct.store(Out, (batch, kv_head, member, i, piece), o, allow_tma=False)


def expect(name, wanted, came, fits=None):
    """Raise ValueError unless this fits; where nothing is said of that, unless what came is what is wanted."""
    if not (came == wanted if fits is None else fits):
        raise ValueError(f"{name}: expected {wanted}, got {came}")


KERNEL = ct.kernel(fmha_decode, occupancy=2)
MERGE = ct.kernel(merge, occupancy=8)


@lru_cache(maxsize=256)
def number_of_splits(seq_len_kv, groups, device):
    """How many blocks share the keys. To begin and end takes as long as 4 tiles of them, to merge 10."""
    tiles = -(-seq_len_kv // TILE_KEY)
    at_a_time = 2 * torch.cuda.get_device_properties(device).multi_processor_count

    def takes(splits):
        return -(-groups * splits // at_a_time) * (-(-tiles // splits) + 4) + 10 * (splits > 1)

    return min(range(1, tiles + 1), key=lambda splits: (takes(splits), splits))


def paged(q, k_pages, v_pages, page_table, lengths, scale=None):
    """Attention of a sequence's last queries to keys and values in pages, as q.

    k_pages and v_pages: [pages, PAGE_SIZE, kv_heads, head_dim]. page_table: int32 [batch, pages of the longest],
    the numbers of a sequence's pages. lengths: int32 [batch], keys of each sequence. Nobody checks what they hold.
    """
    pages = [*k_pages.shape[:1], PAGE_SIZE, *k_pages.shape[2:3], HEAD_DIM]
    shapes = {"q": [*q.shape[:2], 1, HEAD_DIM], "k_pages": pages, "v_pages": pages}
    for (name, shape), x in zip(shapes.items(), (q, k_pages, v_pages)):
        expect(name, f"torch.bfloat16 {shape} on {q.device}", f"{x.dtype} {[*x.shape]} on {x.device}")
    expect("q", "a tensor on a GPU", f"one on {q.device}", q.device.type == "cuda")
    heads = GROUP * k_pages.shape[2]
    expect("q", f"{GROUP} heads for each of k_pages', {heads}", q.shape[1], q.shape[1] == heads)
    rows = [(x.dtype, *x.shape[:1]) for x in (page_table, lengths)]
    expect("page_table and lengths", [(torch.int32, q.shape[0])] * 2, rows)
    return decode(q, (k_pages, v_pages, page_table, lengths), k_pages.shape[2], page_table.shape[1] * PAGE_SIZE, scale)


def decode(q, sources, kv_heads, seq_len_kv, scale):
    """Attention of q. sources: what the kernel reads beside it."""
    scale = 1 / math.sqrt(HEAD_DIM) if scale is None else scale
    expect("scale", "a number above 0", scale, scale > 0)
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    groups = kv_heads * -(-GROUP // MEMBERS)  # tiles of rows of a sequence
    by_group = (kv_heads, GROUP)  # heads, as the kernels see them
    q, out = q.unflatten(1, by_group), o.unflatten(1, by_group)
    splits = number_of_splits(seq_len_kv, q.shape[0] * groups, q.device)
    kept = (splits, q.shape[0] * groups * TILE_QUERY)
    partials = torch.empty((*kept, HEAD_DIM), dtype=torch.float32, device=q.device)
    lse = torch.empty(kept, dtype=torch.float32, device=q.device)
    arguments = (q, *sources, partials, lse, scale)
    with torch.cuda.device(q.device):
        ct.launch(torch.cuda.current_stream(), (splits, groups, q.shape[0]), KERNEL, arguments)
        pieces = -(-o.shape[3] // COLUMNS)  # of the columns of a query, a block each
        merging = (q.shape[3] * pieces, o.shape[1], q.shape[0])
        ct.launch(torch.cuda.current_stream(), merging, MERGE, (partials, lse, out))
    return o


def hidden(queries, keys):
    """Which keys a query does not see, [queries, keys]."""
    behind = torch.arange(keys, device="cuda") - torch.arange(queries, device="cuda")[:, None]
    return behind > keys - queries  # queries are the last of their sequence


def gathered(pages, table):
    """Pages in the order of a table, [batch, kv_heads, tokens, head_dim]: a copy."""
    return pages[table.long()].flatten(1, 2).transpose(1, 2).contiguous()


def exact(q, k, v):
    """Attention in float64, a head of Q at a time."""
    o = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    for b, h in itertools.product(*map(range, q.shape[:2])):
        queries, keys, values = (x.double() for x in (q[b, h], k[b, h // GROUP], v[b, h // GROUP]))
        scores = queries @ keys.T / math.sqrt(HEAD_DIM)
        scores = scores.masked_fill(hidden(*scores.shape), -math.inf)
        o[b, h] = scores.softmax(1) @ values
    return o


def pytorch(q, k_pages, v_pages, table, lengths):
    """What PyTorch makes of it: pages are gathered first, and a mask hides what is behind a sequence's end."""
    k, v = gathered(k_pages, table), gathered(v_pages, table)
    end = lengths[:, None].expand(-1, q.shape[2])
    end = end - torch.arange(q.shape[2] - 1, -1, -1, device="cuda")
    mask = torch.arange(k.shape[2], device="cuda") < end[:, None, :, None]
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def main():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        print("this program needs an NVIDIA GPU of compute capability 9.0 (H100, H200)", file=sys.stderr)
        return 2
    shapes = (8, 64, 1, 128), (4096, 64, 8, 128), (4096, 64, 8, 128)
    q, k, v = (torch.randn(shape, dtype=torch.bfloat16, device="cuda") for shape in shapes)
    v += 0.5  # so that the mean of the output is not zero
    table = torch.randperm(k.shape[0], device="cuda").int().view(q.shape[0], -1)
    lengths = torch.tensor([32768, 30720, 28672, 26624, 24576, 22528, 20480, 18432], dtype=torch.int32, device="cuda")
    each = zip(q, gathered(k, table), gathered(v, table), lengths.tolist())
    right = torch.cat([exact(a[None], b[None, :, :n], c[None, :, :n]) for a, b, c, n in each])
    ours, theirs = partial(paged, q, k, v, table, lengths), partial(pytorch, q, k, v, table, lengths)
    for name, mine, its, wanted in [("o", ours(), theirs(), right)]:
        step = torch.finfo(mine.dtype).eps * 2.0 ** math.floor(math.log2(wanted.abs().max()))  # of rounding
        error, limit = (mine - wanted).abs().max(), 2 * (its - wanted).abs().max() + step
        judged = "right" if error <= limit else "WRONG"
        print(f"paged: {name} {judged}, error {error:.3g}, at most {limit:.3g} is allowed")
        if judged == "WRONG":
            return 1
    mine, its = (do_bench(function, return_mode="median") for function in (ours, theirs))  # milliseconds
    told = [f"{ms:.4f} ms, {6_710_886_400 / 1e9 / ms:.1f} TFLOPS" for ms in (mine, its)]  # of the matrix products
    print(f"paged: {told[0]}; PyTorch: {told[1]}; {its / mine:.2f} times as fast")
    return 0


if __name__ == "__main__":
    sys.exit(main())
