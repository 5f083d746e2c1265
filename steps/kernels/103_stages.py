"""Attention in Gluon, with its launch, for an NVIDIA GPU of compute capability 9.0 (H100, H200).

    attention(q, k, v, scale=None) -> o

Compiled in: head_dim 128, float16, a causal mask. Batch, heads and lengths may be others, as far as the checks say; the
launch is chosen for the problem at the end. Tensors are [batch, heads, length, head_dim]. Query i sees keys 0 to i,
also where the lengths differ. There is no autograd. It needs PyTorch and Triton 3.9.

Made from step 103 stages (Two stages) of the FMHA tutorial by
python -m steps.export stages --head-dim 128 --seq-len 4096 --dtype float16 --causal
With --head-dim 64 it writes: D 64; other lines in copy_panels, fmha.
"""

import itertools
import math
import sys
from functools import partial

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.testing import do_bench

HEAD_DIM, COLUMNS, TILE_QUERY, STAGES, TILE_KEY = map(gl.constexpr, (128, 64, 64, 2, 64))
LEAST = gl.constexpr(-3.4028234663852886e38)
D, TILE_Q, TILE_K = HEAD_DIM.value, TILE_QUERY.value, TILE_KEY.value
ACCUMULATOR = gl.constexpr(gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8]))
SHARED = gl.constexpr(gl.SwizzledSharedLayout(vec=8, per_phase=1, max_phase=8, order=[1, 0]))
COPY = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
RIGHT = gl.constexpr(gl.DotOperandLayout(operand_index=1, parent=ACCUMULATOR, k_width=2))
LEFT = gl.constexpr(gl.DotOperandLayout(operand_index=0, parent=ACCUMULATOR, k_width=2))


@gluon.jit
def tiles_to_visit(first_query, seq_len_kv):
    """(whole, end): tiles of keys [0, whole) need no mask, tiles [whole, end) do."""
    whole = seq_len_kv // TILE_KEY
    end = gl.cdiv(seq_len_kv, TILE_KEY)
    whole = gl.minimum(whole, first_query // TILE_KEY)
    end = gl.minimum(end, gl.cdiv(first_query + TILE_QUERY, TILE_KEY))
    return whole, end


@gluon.jit
def exp2(x):
    """2^x, with results below 2^-126 flushed to zero: MUFU.EX2 and nothing around it."""
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def hide(scores, first_query, first_key):
    """Scores [query, key] with minus infinity where a query must not see a key."""
    query = first_query + gl.arange(0, scores.shape[0], gl.SliceLayout(1, ACCUMULATOR))
    key = first_key + gl.arange(0, scores.shape[1], gl.SliceLayout(0, ACCUMULATOR))
    return gl.where(key[None, :] <= query[:, None], scores, float("-inf"))


@gluon.jit
def softmax(scores, row_max, scale):
    """One step of the online softmax in base 2: weights [query, key], correction [query], new maximum [query]."""
    new_max = gl.maximum(row_max, gl.max(scores, 1) * scale)
    return exp2(scores * scale - new_max[:, None]), exp2(row_max - new_max), new_max


@gluon.jit
def copy_rows(shared, pointer, stride, first, limit, guard: gl.constexpr):
    """Begin to copy rows [first, first + tile) to shared memory; with guard, rows from limit on become zero."""
    row = gl.arange(0, shared.shape[0], gl.SliceLayout(1, COPY))
    column = gl.arange(0, shared.shape[1], gl.SliceLayout(0, COPY))
    first = gl.to_tensor(first)
    source = (pointer + first.to(gl.int64) * stride) + (row[:, None] * stride + column[None, :])
    if guard:
        async_copy.async_load(shared, source, mask=(row < limit - first)[:, None])
    else:
        async_copy.async_load(shared, source)


@gluon.jit
def copy_panels(panels, stage, pointer, stride, tile_index, limit):
    """Begin to copy the tile_index-th tile of keys or values, panel by panel, into a stage of its ring."""
    for c in gl.static_range(HEAD_DIM // COLUMNS):
        copy_rows(panels[c].index(stage), pointer + c * COLUMNS, stride, tile_index * TILE_KEY, limit, False)


@gluon.jit(do_not_specialize=["seq_len_q", "seq_len_kv"])
def fmha(Q, K, V, Out, q_strides, k_strides, v_strides, o_strides, scale, seq_len_q, seq_len_kv):
    PANELS: gl.constexpr = HEAD_DIM // COLUMNS
    dtype: gl.constexpr = Q.dtype.element_ty
    # --- which queries are ours, and which keys they see ---
    first_query = gl.program_id(0) * TILE_QUERY
    # The four pointers, moved to this block's head.
    head = gl.program_id(1).to(gl.int64)
    batch = gl.program_id(2).to(gl.int64)
    Q += batch * q_strides[0] + head * q_strides[1]
    K += batch * k_strides[0] + head * k_strides[1]
    V += batch * v_strides[0] + head * v_strides[1]
    Out += batch * o_strides[0] + head * o_strides[1]
    row_stride = k_strides[2]  # of K and of V: the launch sees to it that they agree, and copies share their offsets
    whole, end = tiles_to_visit(first_query, seq_len_kv)
    # --- shared memory, in panels of COLUMNS columns ---
    keys = ()
    values = ()
    for _ in gl.static_range(PANELS):
        keys = keys + (gl.allocate_shared_memory(dtype, [STAGES, TILE_KEY, COLUMNS], SHARED),)
        values = values + (gl.allocate_shared_memory(dtype, [STAGES, TILE_KEY, COLUMNS], SHARED),)
    query = ()
    for c in gl.static_range(PANELS):
        panel = gl.allocate_shared_memory(keys[c].dtype, [TILE_QUERY, COLUMNS], SHARED)
        copy_rows(panel, Q + c * COLUMNS, q_strides[2], first_query, seq_len_q, True)
        query = query + (panel,)
    # --- copies that run ahead of the loop ---
    for n in gl.static_range(STAGES):
        copy_panels(keys, n, K, row_stride, gl.minimum(n, end - 1), seq_len_kv)
        copy_panels(values, n, V, row_stride, gl.minimum(n, end - 1), seq_len_kv)
        async_copy.commit_group()
    row_max = gl.full([TILE_QUERY], LEAST, gl.float32, gl.SliceLayout(1, ACCUMULATOR))
    row_sum = gl.full([TILE_QUERY], 0.0, gl.float32, gl.SliceLayout(1, ACCUMULATOR))
    accumulators = ()  # not yet normalised
    for _ in gl.static_range(PANELS):
        accumulators = accumulators + (gl.full([TILE_QUERY, COLUMNS], 0.0, gl.float32, ACCUMULATOR),)
    # Two loops from one text: over whole tiles, and over those that need the mask.
    for masked in gl.static_range(2):
        for j in range(whole if masked else 0, end if masked else whole):
            # --- wait for this tile ---
            stage = j % STAGES
            async_copy.wait_group(STAGES - 1)
            gl.barrier()
            # --- scores: QK product ---
            scores = gl.full([TILE_QUERY, TILE_KEY], 0.0, gl.float32, ACCUMULATOR)
            for c in gl.static_range(PANELS):
                k = keys[c].index(stage).permute((1, 0)).load(RIGHT)
                scores = mma_v2(query[c].load(LEFT), k, scores)
            if masked:
                scores = hide(scores, first_query, j * TILE_KEY)
            # --- online softmax ---
            weights, correction, row_max = softmax(scores, row_max, scale)
            row_sum = row_sum * correction + gl.sum(weights, 1)
            weights = gl.convert_layout(weights.to(dtype), LEFT)
            # --- output: PV product ---
            updated = ()
            for c in gl.static_range(PANELS):
                v = values[c].index(stage).load(RIGHT)
                updated = updated + (mma_v2(weights, v, accumulators[c] * correction[:, None]),)
            accumulators = updated
            # --- a later tile takes the place of this one ---
            gl.barrier()
            later = gl.minimum(j + STAGES, end - 1)
            copy_panels(keys, stage, K, row_stride, later, seq_len_kv)
            copy_panels(values, stage, V, row_stride, later, seq_len_kv)
            async_copy.commit_group()
    # --- normalise and store; rows past the end are dropped ---
    async_copy.wait_group(0)
    for c in gl.static_range(PANELS):
        o = accumulators[c] * (1.0 / row_sum)[:, None]
        # Write o [query, columns] to rows [first, limit); through shared memory, so that a lane writes 16 bytes.
        pointer = Out + c * COLUMNS * o_strides[3]
        o = gl.convert_layout(o.to(pointer.dtype.element_ty), COPY)
        row = first_query + gl.arange(0, o.shape[0], gl.SliceLayout(1, COPY))
        column = gl.arange(0, o.shape[1], gl.SliceLayout(0, COPY))
        target = pointer + row.to(gl.int64)[:, None] * o_strides[2] + column[None, :] * o_strides[3]
        gl.store(target, o, mask=(row < seq_len_q)[:, None])


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
    grid = (-(-q.shape[2] // TILE_Q), q.shape[1], q.shape[0])  # tiles of queries, heads, batch
    strides = [tuple(x.stride()) for x in (q, k, v, o)]
    arguments = (q, k, v, o, *strides, scale / math.log(2), q.shape[2], k.shape[2])  # the scale is in base 2
    with torch.cuda.device(q.device), triton.knobs.nvidia.scope():
        triton.knobs.nvidia.ptxas_blackwell = triton.knobs.nvidia.ptxas.path  # the older ptxas: it spills less
        fmha[grid](*arguments, num_warps=4, enable_fp_fusion=True)
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
        print(f"stages: {name} {judged}, error {error:.3g}, at most {limit:.3g} is allowed")
        if judged == "WRONG":
            return 1
    mine, its = (do_bench(function, return_mode="median") for function in (ours, theirs))  # milliseconds
    told = [f"{ms:.4f} ms, {549_755_813_888 / 1e9 / ms:.1f} TFLOPS" for ms in (mine, its)]  # of the matrix products
    print(f"stages: {told[0]}; SDPA: {told[1]}; {its / mine:.2f} times as fast")
    return 0


if __name__ == "__main__":
    sys.exit(main())
