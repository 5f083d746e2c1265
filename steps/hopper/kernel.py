"""The skeleton of the Hopper steps: TMA fetches tiles, and warp groups multiply straight from shared memory.

A Hopper SM has two engines that the skeleton of ``steps/gluon`` cannot use. TMA copies a whole tile when one thread
asks it to, and reports to an mbarrier in shared memory. ``wgmma`` lets four warps together multiply 64 rows by a tile
that stays in shared memory, and returns at once: the result is waited for later. What follows from them, warps with
roles, products that run under the softmax, blocks that never end, is FlashAttention-3's (Shah et al. 2024,
https://arxiv.org/abs/2407.08608). No architecture but sm_90 has wgmma.

``variant`` (``steps.hopper.variant``) is constant when a kernel is compiled, so the compiler drops the branches that
are not taken. ``python -m steps.show NAME`` prints a step's kernel without them.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from steps.hopper.ahead import consume_ahead
from steps.hopper.consumer import consume
from steps.hopper.packed import Packed
from steps.hopper.pairs import meet
from steps.hopper.pipeline import (
    Arrays,
    Barriers,
    Tiles,
    Work,
    barrier_ring,
    begin,
    drop_meetings,
    produce,
    room_for_number,
)


@gluon.jit(do_not_specialize=["seq_len_kv", "heads", "tiles_a_head", "sequences"])
def fmha(
    Q,
    K,
    V,
    Out,
    order,
    starts,
    scale,
    seq_len_kv,
    heads,
    tiles_a_head,
    variant: gl.constexpr,
    LSE=None,
    begins_q=None,
    begins_k=None,
    sequences=None,
):
    PARTS: gl.constexpr = variant.parts
    STAGES: gl.constexpr = variant.stages
    QUERY_STAGES: gl.constexpr = variant.query_stages
    QUERIES: gl.constexpr = [QUERY_STAGES * PARTS] + variant.outer + [variant.rows, variant.head_dim]  # noqa: RUF005
    KEYS: gl.constexpr = [STAGES] + variant.outer + [variant.tile.key, variant.head_dim]  # noqa: RUF005
    OUTPUTS: gl.constexpr = [PARTS] + variant.outer + [variant.rows, variant.output_columns]  # noqa: RUF005
    dtype: gl.constexpr = Q.dtype

    # --- shared memory ---
    queries = gl.allocate_shared_memory(dtype, QUERIES, variant.shared)
    keys = gl.allocate_shared_memory(dtype, KEYS, variant.shared)
    values = gl.allocate_shared_memory(dtype, KEYS, variant.shared)
    outputs = gl.allocate_shared_memory(dtype, OUTPUTS, variant.shared) if variant.own_output else queries
    tiles = Tiles(queries, keys, values, outputs)
    # A barrier without use is not made: the compiler would give its place to something else, too.
    barriers = Barriers(
        barrier_ring(QUERY_STAGES, 1),
        barrier_ring(QUERY_STAGES, PARTS) if variant.producer else None,
        barrier_ring(STAGES, 1),
        barrier_ring(STAGES, PARTS) if variant.producer else None,
        barrier_ring(STAGES, 1),
        barrier_ring(STAGES, PARTS) if variant.producer else None,
        barrier_ring(PARTS, 1) if variant.in_turn else None,
        barrier_ring(STAGES, 1) if variant.neighbours > 1 else None,
        barrier_ring(1, 1) if variant.holds_by_nobody else None,
    )
    taken = room_for_number(variant) if variant.taken else None
    packed = Packed(begins_q, begins_k, sequences) if variant.packed else None
    lines = Q.shape[0] * heads if variant.computed else None
    work = Work(order, starts, heads, tiles_a_head, seq_len_kv, taken, packed, lines)
    fence_async_shared()  # TMA sees the barriers
    if variant.neighbours > 1:
        meet()
    if variant.no_meetings:
        drop_meetings()

    # --- who does what; the first part's warps are those that the block began with ---
    WORKERS: gl.constexpr = variant.workers
    BUDGETS: gl.constexpr = variant.budgets
    arrays = Arrays(Q, K, V, Out)
    if not variant.producer:
        begin(arrays, tiles, barriers, work, variant)
        consume(arrays, tiles, barriers, work, scale, LSE, 0, variant)
    elif variant.softmax_ahead:
        gl.warp_specialize(
            [
                (consume_ahead, (arrays, tiles, barriers, work, scale, LSE, 0, variant)),
                (consume_ahead, (arrays, tiles, barriers, work, scale, LSE, 1, variant)),
                (produce, (arrays, tiles, barriers, work, variant)),
            ],
            WORKERS,
            BUDGETS,
        )
    elif variant.parts == 2:
        gl.warp_specialize(
            [
                (consume, (arrays, tiles, barriers, work, scale, LSE, 0, variant)),
                (consume, (arrays, tiles, barriers, work, scale, LSE, 1, variant)),
                (produce, (arrays, tiles, barriers, work, variant)),
            ],
            WORKERS,
            BUDGETS,
        )
    else:
        gl.warp_specialize(
            [
                (consume, (arrays, tiles, barriers, work, scale, LSE, 0, variant)),
                (consume, (arrays, tiles, barriers, work, scale, LSE, 1, variant)),
                (consume, (arrays, tiles, barriers, work, scale, LSE, 2, variant)),
                (produce, (arrays, tiles, barriers, work, variant)),
            ],
            WORKERS,
            BUDGETS,
        )
