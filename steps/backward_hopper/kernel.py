"""The skeleton of the Hopper steps of the backward pass: a block owns 128 keys, and tiles of queries pass by.

As in the forward pass a producer warp asks TMA for tiles, and two warp groups compute (``steps/hopper/kernel.py``).
What is multiplied from where follows FlashAttention-3 (Shah et al. 2024, https://arxiv.org/abs/2407.08608).

``variant`` (``steps.backward_hopper.variant``) is constant when a kernel is compiled, so the compiler drops the
branches that are not taken. ``python -m steps.show NAME`` prints a step's kernel without them.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from steps.backward_hopper.adding import add_in_turn, pass_turns_on
from steps.backward_hopper.apart import consume_apart
from steps.backward_hopper.consumer import consume
from steps.backward_hopper.last import Ending
from steps.backward_hopper.pipeline import Arrays, Barriers, Tiles, barrier_ring, own_work, produce
from steps.backward_hopper.roles import Handover, consume_gradients, consume_scores
from steps.backward_hopper.spare import Spare, clear_ahead, prepare_ahead, scale_behind


@gluon.jit(do_not_specialize=["seq_len_q", "seq_len_kv", "heads", "batches", "padded"])
def fmha_backward(
    Q, K, V, DO, Numbers, Sums, DK, DV, scale, seq_len_q, seq_len_kv, heads, batches, padded, variant: gl.constexpr,
    Turns=None, AllSums=None, DQ=None, AllNumbers=None, Out=None, AllDO=None, LSE=None, strides=None, rates=None,
):  # fmt: skip
    STAGES: gl.constexpr = variant.stages
    ROWS: gl.constexpr = [STAGES, 1, 1, variant.tile.query, variant.head_dim]
    KEYS: gl.constexpr = [1, 1, variant.tile.key, variant.head_dim]
    NUMBERS: gl.constexpr = [STAGES, 1, variant.tile.query]
    SCORES: gl.constexpr = [2, variant.tile.key, variant.tile.query]
    PARTS: gl.constexpr = variant.parts
    WRITERS: gl.constexpr = variant.writers
    SUMS: gl.constexpr = [PARTS, 1, 1, variant.query_rows, variant.query_columns]
    dtype: gl.constexpr = Q.dtype

    # --- shared memory ---
    key = gl.allocate_shared_memory(dtype, KEYS, variant.shared)
    value = gl.allocate_shared_memory(dtype, KEYS, variant.shared)
    query = gl.allocate_shared_memory(dtype, ROWS, variant.shared)
    lse = gl.allocate_shared_memory(gl.float32, NUMBERS, variant.shared_numbers)
    d_output = gl.allocate_shared_memory(dtype, ROWS, variant.shared)
    row_sum = gl.allocate_shared_memory(gl.float32, NUMBERS, variant.shared_numbers)
    d_scores = gl.allocate_shared_memory(dtype, SCORES, variant.shared_scores)
    d_query = key
    if variant.by_tma:
        d_query = gl.allocate_shared_memory(gl.float32, SUMS, variant.shared_sums)
    tiles = Tiles(key, value, query, lse, d_output, row_sum, d_scores, d_query)
    query_ready = barrier_ring(STAGES, 1)
    unused = query_ready  # the compiler would give the place of a barrier that nobody uses to something else, too
    d_scores_ready = unused
    d_scores_free = unused
    done = unused
    turns = unused
    sums_ready = unused
    sums_free = unused
    if variant.parts > 1:
        d_scores_ready = barrier_ring(2, WRITERS)
    if variant.parts > 1 and not variant.roles_apart and not variant.freed_together:
        d_scores_free = barrier_ring(2, PARTS)
    if variant.parts > 1 and not variant.roles_apart and variant.sharing == 1:
        done = barrier_ring(2, PARTS)
    if variant.alternate:
        turns = barrier_ring(2, 1)
    if variant.adders > 0:
        sums_ready = barrier_ring(variant.adders * PARTS if variant.by_tma else PARTS, 1)
        sums_free = barrier_ring(PARTS, 1)
    barriers = Barriers(
        barrier_ring(1, 1),
        query_ready,
        barrier_ring(STAGES, PARTS),
        barrier_ring(STAGES, 1),
        barrier_ring(STAGES, PARTS),
        d_scores_ready,
        d_scores_free,
        done,
        turns,
        sums_ready,
        sums_free,
    )
    if variant.roles_apart:
        WEIGHTS: gl.constexpr = [variant.tile.key, variant.tile.query]
        handed = gl.allocate_shared_memory(gl.float32, WEIGHTS, variant.shared_weights)
        handover = Handover(handed, barrier_ring(1, 1), barrier_ring(1, 1))
    if variant.clears:
        ZEROS: gl.constexpr = [1, 1, variant.query_rows, variant.query_columns]
        zeros = gl.allocate_shared_memory(gl.float32, ZEROS, variant.shared_sums)
    fence_async_shared()  # TMA sees the barriers

    # --- who does what ---
    arrays = Arrays(Q, K, V, DO, Numbers, Sums, DK, DV)
    work = own_work(seq_len_q, seq_len_kv, heads, batches, variant)
    WORKERS: gl.constexpr = variant.workers
    BUDGETS: gl.constexpr = variant.budgets
    if variant.last_scales:  # of no use are turns then, and their place has what the last block needs
        Turns = Ending(Turns, AllSums, DQ, seq_len_q)
    elif variant.spare:  # or what the spare warps need
        Turns = Spare(Turns, Out, AllDO, LSE, AllNumbers, AllSums, DQ, strides, rates, seq_len_q, padded)
    if variant.parts == 1:
        gl.warp_specialize(
            [
                (consume, (arrays, tiles, barriers, work, scale, padded, variant)),
                (produce, (arrays, tiles, barriers, work, padded, Turns, variant)),
            ],
            WORKERS,
            BUDGETS,
        )
    elif variant.roles_apart and variant.spare:
        gl.warp_specialize(
            [
                (consume_scores, (arrays, tiles, barriers, handover, work, scale, padded, Turns, variant)),
                (consume_gradients, (arrays, tiles, barriers, handover, work, scale, padded, Turns, variant)),
                (produce, (arrays, tiles, barriers, work, padded, Turns, variant)),
                (prepare_ahead, (Turns, work, variant)),
                (scale_behind, (Turns, work, scale, variant)),
            ],
            WORKERS,
            BUDGETS,
        )
    elif variant.roles_apart and variant.adders > 0:
        gl.warp_specialize(
            [
                (consume_scores, (arrays, tiles, barriers, handover, work, scale, padded, Turns, variant)),
                (consume_gradients, (arrays, tiles, barriers, handover, work, scale, padded, Turns, variant)),
                (produce, (arrays, tiles, barriers, work, padded, Turns, variant)),
                (pass_turns_on, (barriers, work, Turns, 0, variant)),
                (pass_turns_on, (barriers, work, Turns, 1, variant)),
            ],
            WORKERS,
            BUDGETS,
        )
    elif variant.roles_apart:
        gl.warp_specialize(
            [
                (consume_scores, (arrays, tiles, barriers, handover, work, scale, padded, Turns, variant)),
                (consume_gradients, (arrays, tiles, barriers, handover, work, scale, padded, Turns, variant)),
                (produce, (arrays, tiles, barriers, work, padded, Turns, variant)),
            ],
            WORKERS,
            BUDGETS,
        )
    elif variant.spare:
        gl.warp_specialize(
            [
                (consume_apart, (arrays, tiles, barriers, work, scale, padded, Turns, 0, variant)),
                (consume_apart, (arrays, tiles, barriers, work, scale, padded, Turns, 1, variant)),
                (produce, (arrays, tiles, barriers, work, padded, Turns, variant)),
                (prepare_ahead, (Turns, work, variant)),
                (scale_behind, (Turns, work, scale, variant)),
            ],
            WORKERS,
            BUDGETS,
        )
    elif variant.clears:
        gl.warp_specialize(
            [
                (consume_apart, (arrays, tiles, barriers, work, scale, padded, Turns, 0, variant)),
                (consume_apart, (arrays, tiles, barriers, work, scale, padded, Turns, 1, variant)),
                (produce, (arrays, tiles, barriers, work, padded, Turns, variant)),
                (clear_ahead, (arrays, zeros, Turns, work, padded, variant)),
            ],
            WORKERS,
            BUDGETS,
        )
    elif variant.adders == 2:
        gl.warp_specialize(
            [
                (consume_apart, (arrays, tiles, barriers, work, scale, padded, Turns, 0, variant)),
                (consume_apart, (arrays, tiles, barriers, work, scale, padded, Turns, 1, variant)),
                (produce, (arrays, tiles, barriers, work, padded, Turns, variant)),
                (add_in_turn, (arrays, tiles, barriers, work, Turns, 0, variant)),
                (add_in_turn, (arrays, tiles, barriers, work, Turns, 1, variant)),
            ],
            WORKERS,
            BUDGETS,
        )
    elif variant.adders == 1:
        gl.warp_specialize(
            [
                (consume_apart, (arrays, tiles, barriers, work, scale, padded, Turns, 0, variant)),
                (consume_apart, (arrays, tiles, barriers, work, scale, padded, Turns, 1, variant)),
                (produce, (arrays, tiles, barriers, work, padded, Turns, variant)),
                (add_in_turn, (arrays, tiles, barriers, work, Turns, 0, variant)),
            ],
            WORKERS,
            BUDGETS,
        )
    else:
        gl.warp_specialize(
            [
                (consume_apart, (arrays, tiles, barriers, work, scale, padded, Turns, 0, variant)),
                (consume_apart, (arrays, tiles, barriers, work, scale, padded, Turns, 1, variant)),
                (produce, (arrays, tiles, barriers, work, padded, Turns, variant)),
            ],
            WORKERS,
            BUDGETS,
        )
