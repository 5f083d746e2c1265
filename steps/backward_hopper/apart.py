"""Two warpgroups, each on its own: ``loop`` has what a warpgroup does, and ``roles`` what it does at head_dim 256."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from steps.backward_hopper.lib import Arrays, Aside, own_work, produce, rings, rooms
from steps.hopper.packed import Packed


@gluon.jit(do_not_specialize=["seq_len_q", "seq_len_kv", "heads", "batches", "padded", "sequences"])
def fmha_backward(
    Q, K, V, DO, Numbers, Sums, DK, DV, scale, seq_len_q, seq_len_kv, heads, batches, padded, variant: gl.constexpr,
    Counts=None, begins_q=None, begins_k=None, sequences=None,
):  # fmt: skip
    arrays = Arrays(Q, K, V, DO, Numbers, Sums, DK, DV)
    tiles = rooms(Q.dtype, variant)
    barriers = rings(variant)
    fence_async_shared()  # TMA sees the barriers
    packed = Packed(begins_q, begins_k, sequences) if variant.packed else None
    work = own_work(seq_len_q, seq_len_kv, heads, batches, packed, variant)
    aside = Aside(Counts, None, None, None, None, None, None, None, None, seq_len_q, padded, heads, batches)

    # --- who does what; the first warpgroup's warps are those that the block began with ---
    WORKERS: gl.constexpr = variant.workers
    BUDGETS: gl.constexpr = variant.budgets
    gl.warp_specialize(
        [
            (variant.consume, (arrays, tiles, barriers, work, scale, padded, aside, 0, variant)),
            (variant.consume, (arrays, tiles, barriers, work, scale, padded, aside, 1, variant)),
            (produce, (arrays, tiles, barriers, work, aside, variant)),
        ],
        WORKERS,
        BUDGETS,
    )
