"""Attention in Gluon, with its launch, for an AMD GPU gfx950 (MI350).

    attention(q, k, v, scale=None) -> o

Compiled in: head_dim 128, float16, a causal mask. Batch, heads and lengths may be others, as far as the checks say; the
launch is chosen for the problem at the end. Tensors are [batch, heads, length, head_dim]. Query i sees keys 0 to i,
also where the lengths differ. There is no autograd. It needs PyTorch and Triton 3.9.

Made from step 704 xcd_swizzle (XCD swizzle) of the FMHA tutorial by
python -m steps.export xcd_swizzle --head-dim 128 --seq-len 4096 --dtype float16 --causal
With --head-dim 64 it writes: HEAD_DIM 64; other layouts SHARED, COPY.
"""

import itertools
import math
import sys
from functools import partial

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language import amd
from triton.experimental.gluon.language.amd import cdna3
from triton.experimental.gluon.language.amd.cdna4 import async_copy
from triton.testing import do_bench

TILES, TILE_KEY, HEAD_DIM, TILE_QUERY, LEAST = map(gl.constexpr, (3, 64, 128, 256, -3.4028234663852886e38))
STAGES_PRODUCTS, STAGES_SOFTMAX = map(gl.constexpr, (1, 0))
D, TILE_Q, TILE_K = HEAD_DIM.value, TILE_QUERY.value, TILE_KEY.value
ACCUMULATOR = gl.constexpr(amd.AMDMFMALayout(version=4, instr_shape=[32, 32, 16], transposed=True,
    warps_per_cta=[8, 1]))  # fmt: skip
SHARED = gl.constexpr(gl.SwizzledSharedLayout(vec=8, per_phase=1, max_phase=16, order=[1, 0]))
COPY = gl.constexpr(gl.BlockedLayout([1, 8], [4, 16], [8, 1], [1, 0]))
LEFT = gl.constexpr(gl.DotOperandLayout(operand_index=0, parent=ACCUMULATOR, k_width=8))
RIGHT = gl.constexpr(gl.DotOperandLayout(operand_index=1, parent=ACCUMULATOR, k_width=8))


@gluon.jit
def offsets(row, column, stride, left, guard: gl.constexpr):
    """Offsets [row, column] of elements from the first row on, of which ``left`` are there."""
    if guard:
        row = gl.minimum(row, left - 1)
    return row[:, None] * stride + column[None, :]


@gluon.jit
def load_queries(pointer, stride, first, limit):
    """Rows [first, first + tile) of Q, from memory into registers, as the first factor of a product."""
    row = gl.arange(0, TILE_QUERY, gl.SliceLayout(1, LEFT))
    column = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, LEFT))
    first = gl.to_tensor(first)
    return cdna3.buffer_load(pointer + first.to(gl.int64) * stride, offsets(row, column, stride, limit - first, True))


@gluon.jit
def fetch(slot, pointer, stride, tile_index, limit):
    """Begin to copy a tile of keys or values straight to its slot in LDS."""
    row = gl.arange(0, TILE_KEY, gl.SliceLayout(1, COPY))
    column = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, COPY))
    first = gl.to_tensor(tile_index * TILE_KEY)
    source, at = pointer + first.to(gl.int64) * stride, offsets(row, column, stride, limit - first, False)
    async_copy.buffer_load_to_shared(slot, source, at)


@gluon.jit
def store_rows(pointer, o, row_stride, column_stride, first, limit):
    """Write o [query, head_dim] to rows [first, limit), straight from the registers where the products left it."""
    row = gl.arange(0, TILE_QUERY, gl.SliceLayout(1, ACCUMULATOR))
    column = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, ACCUMULATOR))
    first = gl.to_tensor(first)
    at = row[:, None] * row_stride + column[None, :] * column_stride
    target = pointer + first.to(gl.int64) * row_stride
    cdna3.buffer_store(o.to(pointer.dtype.element_ty), target, at, mask=(row < limit - first)[:, None])


@gluon.jit
def softmax(scores, row_max, scale):
    """One step of the online softmax in base 2: weights [query, key], correction [query], new maximum [query]."""
    highest = gl.max(scores, 1) * scale
    new_max = gl.maximum(row_max, highest)
    scores = scores * scale
    return gl.exp2(scores - new_max[:, None]), gl.exp2(row_max - new_max), new_max


@gluon.jit
def to_head(pointer, strides, head, batch):
    """A pointer, moved to a head of a batch."""
    return pointer + batch.to(gl.int64) * strides[0] + head.to(gl.int64) * strides[1]


@gluon.jit(do_not_specialize=["seq_len_q", "seq_len_kv"])
def fmha(Q, K, V, Out, q_strides, k_strides, v_strides, o_strides, scale, seq_len_q, seq_len_kv):
    ROWS: gl.constexpr = gl.SliceLayout(1, ACCUMULATOR)
    dtype: gl.constexpr = Q.dtype.element_ty
    # --- which queries are ours, and which keys they see ---
    first_query = gl.program_id(1) * TILE_QUERY
    head = gl.program_id(0)
    batch = gl.program_id(2)
    Q = to_head(Q, q_strides, head, batch)
    K = to_head(K, k_strides, head, batch)
    V = to_head(V, v_strides, head, batch)
    Out = to_head(Out, o_strides, head, batch)
    k_stride = k_strides[2]
    v_stride = v_strides[2]
    # (whole, end): tiles of keys [0, whole) need no mask, tiles [whole, end) do.
    whole = seq_len_kv // TILE_KEY
    end = gl.cdiv(seq_len_kv, TILE_KEY)
    whole = gl.minimum(whole, first_query // TILE_KEY)
    end = gl.minimum(end, gl.cdiv(first_query + TILE_QUERY, TILE_KEY))
    # --- Q in registers, K and V in LDS ---
    q = load_queries(Q, q_strides[2], first_query, seq_len_q)
    keys = gl.allocate_shared_memory(dtype, [TILES, TILE_KEY, HEAD_DIM], SHARED)
    values = gl.allocate_shared_memory(dtype, [TILES, TILE_KEY, HEAD_DIM], SHARED)
    # --- copies that run ahead of the loop; a tile past the end is the last one again, which nobody reads ---
    AHEAD: gl.constexpr = TILES - 1
    # Begin to copy the first tiles.
    for n in gl.static_range(2):
        fetch(keys.index(n), K, k_stride, gl.minimum(n, end - 1), seq_len_kv)
        fetch(values.index(n), V, v_stride, gl.minimum(n, end - 1), seq_len_kv)
        async_copy.commit_group()
    async_copy.wait_group(AHEAD - 1)  # in the loop, an iteration waits for the tile of the next one
    row_max, row_sum = gl.full([TILE_QUERY], LEAST, gl.float32, ROWS), gl.full([TILE_QUERY], 0.0, gl.float32, ROWS)
    accumulator = gl.full([TILE_QUERY, HEAD_DIM], 0.0, gl.float32, ACCUMULATOR)  # not yet normalised
    # Two loops from one text: over whole tiles, and over those that need the mask.
    for masked in gl.static_range(2):
        for j in range(whole if masked else 0, end if masked else whole):
            with amd.warp_pipeline_stage("scores", priority=STAGES_PRODUCTS):
                k = async_copy.load_shared_relaxed(keys.index(j % TILES).permute((1, 0)), RIGHT)
                scores = cdna3.mfma(q, k, gl.full([TILE_QUERY, TILE_KEY], 0.0, gl.float32, ACCUMULATOR))
            with amd.warp_pipeline_stage("softmax", priority=STAGES_SOFTMAX):
                # Into the slot of the iteration before, which both halves have left.
                later = gl.minimum(j + AHEAD, end - 1)
                fetch(keys.index((j + AHEAD) % TILES), K, k_stride, later, seq_len_kv)
                fetch(values.index((j + AHEAD) % TILES), V, v_stride, later, seq_len_kv)
                async_copy.commit_group()
                if masked:
                    # Scores [query, key] with minus infinity where a query must not see a key.
                    query = first_query + gl.arange(0, scores.shape[0], gl.SliceLayout(1, ACCUMULATOR))
                    key = j * TILE_KEY + gl.arange(0, scores.shape[1], gl.SliceLayout(0, ACCUMULATOR))
                    scores = gl.where(key[None, :] <= query[:, None], scores, float("-inf"))
                weights, correction, row_max = softmax(scores, row_max, scale)
                row_sum = row_sum * correction + gl.sum(weights, 1)
                weights = gl.convert_layout(weights.to(dtype), LEFT)
                accumulator = accumulator * correction[:, None]
            # For the next iteration's tile. All waves meet once, for this wait and for the end of the stage.
            async_copy.wait_group(AHEAD - 1)
            with amd.warp_pipeline_stage("output", priority=STAGES_PRODUCTS):
                v = async_copy.load_shared_relaxed(values.index(j % TILES), RIGHT)
                accumulator = cdna3.mfma(weights, v, accumulator)
    # --- normalise and store; rows past the end are dropped ---
    async_copy.wait_group(0)  # what still comes would come to the LDS of another block
    store_rows(Out, accumulator * (1.0 / row_sum)[:, None], o_strides[2], o_strides[3], first_query, seq_len_q)


def expect(name, wanted, came, fits=None):
    """Raise ValueError unless this fits; where nothing is said of that, unless what came is what is wanted."""
    if not (came == wanted if fits is None else fits):
        raise ValueError(f"{name}: expected {wanted}, got {came}")


def copyable(x):
    """x, or a copy of it where its rows cannot be copied 16 bytes at a time."""
    even = all(stride % 16 == 0 for stride, length in zip(x.stride()[:3], x.shape) if length > 1)
    near = x.stride(2) < 2**23  # offsets inside a tile have 32 bits
    fits = even and near and x.stride(3) == 1 and x.data_ptr() % 16 == 0
    return x if fits else x.clone(memory_format=torch.contiguous_format)


def attention(q, k, v, scale=None):
    """softmax(scale * q @ k^T) @ v, as q. scale: above 0; None means 1 / sqrt(head_dim)."""
    shapes = {"q": [*q.shape[:3], D], "k": [*q.shape[:2], *k.shape[2:3], D], "v": [*k.shape]}
    for (name, shape), x in zip(shapes.items(), (q, k, v)):
        expect(name, f"torch.float16 {shape} on {q.device}", f"{x.dtype} {[*x.shape]} on {x.device}")
    expect("q", "a tensor on a GPU", f"one on {q.device}", q.device.type == "cuda")
    expect("q and k", "no length of 0", f"{[*q.shape]} and {[*k.shape]}", min(*q.shape, *k.shape) > 0)
    expect("k", f"a multiple of {TILE_K} keys", k.shape[2], k.shape[2] % TILE_K == 0)
    scale = 1 / math.sqrt(D) if scale is None else scale
    expect("scale", "a number above 0", scale, scale > 0)
    q, k, v = copyable(q), copyable(k), copyable(v)
    if k.stride(2) != v.stride(2):  # the kernel takes one stride for the rows of both
        k, v = (x.clone(memory_format=torch.contiguous_format) for x in (k, v))
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    grid = (q.shape[1], -(-q.shape[2] // TILE_Q), q.shape[0])  # heads, tiles of queries, batch
    strides = [tuple(x.stride()) for x in (q, k, v, o)]
    arguments = (q, k, v, o, *strides, scale / math.log(2), q.shape[2], k.shape[2])  # the scale is in base 2
    with torch.cuda.device(q.device):
        fmha[grid](*arguments, num_warps=8, enable_fp_fusion=True)
    return o


def exact(q, k, v):
    """Attention in float64, a head of Q at a time."""
    o = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    for b, h in itertools.product(*map(range, q.shape[:2])):
        queries, keys, values = (x.double() for x in (q[b, h], k[b, h], v[b, h]))
        scores = queries @ keys.T / math.sqrt(D)
        scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -math.inf)
        o[b, h] = scores.softmax(1) @ values
    return o


def main():
    if not torch.cuda.is_available() or "gfx950" not in torch.cuda.get_device_properties().gcnArchName:
        print("this program needs an AMD GPU gfx950 (MI350)", file=sys.stderr)
        return 2
    q, k, v = (torch.randn((4, 32, 4096, 128), dtype=torch.float16, device="cuda") for _ in range(3))
    v += 0.5  # so that the mean of the output is not zero
    ours = partial(attention, q, k, v)
    theirs = partial(torch.nn.functional.scaled_dot_product_attention, q, k, v, is_causal=True)
    for name, mine, its, wanted in [("o", ours(), theirs(), exact(q, k, v))]:
        step = torch.finfo(mine.dtype).eps * 2.0 ** math.floor(math.log2(wanted.abs().max()))  # of rounding
        error, limit = (mine - wanted).abs().max(), 2 * (its - wanted).abs().max() + step
        judged = "right" if error <= limit else "WRONG"
        print(f"xcd_swizzle: {name} {judged}, error {error:.3g}, at most {limit:.3g} is allowed")
        if judged == "WRONG":
            return 1
    mine, its = (do_bench(function, return_mode="median") for function in (ours, theirs))  # milliseconds
    told = [f"{ms:.4f} ms, {549_755_813_888 / 1e9 / ms:.1f} TFLOPS" for ms in (mine, its)]  # of the matrix products
    print(f"xcd_swizzle: {told[0]}; SDPA: {told[1]}; {its / mine:.2f} times as fast")
    return 0


if __name__ == "__main__":
    sys.exit(main())
