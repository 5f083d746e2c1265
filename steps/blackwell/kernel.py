"""The skeleton of the Blackwell steps: products accumulate in tensor memory, and one thread begins them.

On Hopper a warpgroup begins a product, gives its registers for the sum, and waits for it. A Blackwell SM has memory of
its own for sums: tensor memory, 512 columns of 128 lanes of 32 bits. One thread begins a product with ``tcgen05.mma``.
Its second factor comes from shared memory, and the first from there or from tensor memory. Warps fetch scores from
tensor memory into registers, and store weights and rescaled outputs there. The tensor cores are twice as fast as
Hopper's and the unit for exponentials is not (``tutorial_lib.architectures``). No architecture but sm_100 and sm_103
is meant here.

``variant`` (``steps.blackwell.variant``) is constant when a kernel is compiled, so the compiler drops the branches that
are not taken. ``python -m steps.show NAME`` prints a step's kernel without them.
"""

from __future__ import annotations

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from steps.blackwell.columns import allocate_columns
from steps.blackwell.roles import attend, copy, correct, multiply
from steps.blackwell.taking import room_for_answer
from steps.blackwell.together import cluster_ring, work_together
from steps.hopper.lib import Arrays, Tiles, Work, barrier_ring


class Barriers(NamedTuple):
    """mbarriers: of each warpgroup, and for key and value of each slot. full: it is there; empty: nobody reads it."""

    query_full: object
    key_full: object
    value_full: object
    scores_full: object
    output_full: object  # the PV product has ended
    key_empty: object = None
    value_empty: object = None
    weights_full: object = None  # the weights are there, and the output is rescaled
    query_empty: object = None  # the output has left from there
    factors_full: object = None
    factors_empty: object = None


@gluon.jit(do_not_specialize=["seq_len_kv", "heads", "tiles_a_head"])
def fmha(Q, K, V, Out, order, starts, scale, seq_len_kv, heads, tiles_a_head, variant: gl.constexpr, LSE=None):
    WARPGROUPS: gl.constexpr = variant.warpgroups
    STAGES: gl.constexpr = variant.stages
    QUERIES: gl.constexpr = [WARPGROUPS, 1, 1, variant.rows, variant.head_dim]
    KEYS: gl.constexpr = [STAGES, 1, 1, variant.tile.key, variant.head_dim]
    dtype: gl.constexpr = Q.dtype

    # --- shared memory; the output leaves from where Q was ---
    queries = gl.allocate_shared_memory(dtype, QUERIES, variant.shared)
    if variant.ctas == 1:
        keys = gl.allocate_shared_memory(dtype, KEYS, variant.shared)
        values = gl.allocate_shared_memory(dtype, KEYS, variant.shared)
    else:
        keys = gl.allocate_shared_memory(dtype, KEYS, variant.shared_key)
        values = gl.allocate_shared_memory(dtype, KEYS, variant.shared_value)
    tiles = Tiles(queries, keys, values, queries)

    # --- tensor memory ---
    columns = allocate_columns(dtype, variant)

    # --- who does what; the first warpgroup's warps are those that the block began with ---
    WORKERS: gl.constexpr = variant.workers
    BUDGETS: gl.constexpr = variant.budgets
    ARRIVALS: gl.constexpr = variant.weights_arrivals
    arrays = Arrays(Q, K, V, Out)
    taken = room_for_answer(variant) if variant.taken else None
    work = Work(order, starts, heads, tiles_a_head, seq_len_kv, taken)
    if variant.ctas == 1:
        query_full, key_full = barrier_ring(WARPGROUPS, 1), barrier_ring(STAGES, 1)
        value_full, scores_full = barrier_ring(STAGES, 1), barrier_ring(WARPGROUPS, 1)
        output_full = barrier_ring(WARPGROUPS, 1)
    else:
        PRODUCTS: gl.constexpr = variant.products  # that must end before any CTA goes on
        query_full = cluster_ring(WARPGROUPS, 1, variant.pair)
        key_full = cluster_ring(STAGES, 1, variant.pair)
        value_full = cluster_ring(STAGES, 1, variant.pair)
        scores_full = cluster_ring(WARPGROUPS, PRODUCTS, False)
        output_full = cluster_ring(WARPGROUPS, PRODUCTS, False)
    if not variant.roles:
        barriers = Barriers(query_full, key_full, value_full, scores_full, output_full)
        if variant.ctas == 1:
            fence_async_shared()  # TMA and the tensor cores see the barriers; in a cluster Triton sees to it
        work_together(arrays, tiles, columns, barriers, work, scale, LSE, variant)
    else:
        FACTORS: gl.constexpr = [WARPGROUPS, variant.rows]
        PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
        factors = gl.allocate_shared_memory(gl.float32, FACTORS, PLAIN) if variant.correction else None
        key_empty, value_empty = barrier_ring(STAGES, 1), barrier_ring(STAGES, 1)
        weights_full = barrier_ring(WARPGROUPS, ARRIVALS)
        query_empty = barrier_ring(WARPGROUPS, 1) if variant.persistent else None
        factors_full = barrier_ring(WARPGROUPS, 1) if variant.correction else None
        factors_empty = barrier_ring(WARPGROUPS, 1) if variant.correction else None
        barriers = Barriers(
            query_full, key_full, value_full, scores_full, output_full, key_empty, value_empty, weights_full,
            query_empty, factors_full, factors_empty,
        )  # fmt: skip
        fence_async_shared()
        if variant.warpgroups == 2 and not variant.correction:
            gl.warp_specialize(
                [
                    (attend, (arrays, tiles, columns, None, barriers, work, scale, LSE, 0, variant)),
                    (attend, (arrays, tiles, columns, None, barriers, work, scale, LSE, 1, variant)),
                    (multiply, (tiles, columns, barriers, work, variant)),
                    (copy, (arrays, tiles, barriers, work, variant)),
                ],
                WORKERS,
                BUDGETS,
            )
        elif not variant.correction:
            gl.warp_specialize(
                [
                    (attend, (arrays, tiles, columns, None, barriers, work, scale, LSE, 0, variant)),
                    (multiply, (tiles, columns, barriers, work, variant)),
                    (copy, (arrays, tiles, barriers, work, variant)),
                ],
                WORKERS,
                BUDGETS,
            )
        elif variant.warpgroups == 2:
            gl.warp_specialize(
                [
                    (attend, (arrays, tiles, columns, factors, barriers, work, scale, LSE, 0, variant)),
                    (attend, (arrays, tiles, columns, factors, barriers, work, scale, LSE, 1, variant)),
                    (correct, (arrays, tiles, columns, factors, barriers, work, variant)),
                    (multiply, (tiles, columns, barriers, work, variant)),
                    (copy, (arrays, tiles, barriers, work, variant)),
                ],
                WORKERS,
                BUDGETS,
            )
        else:
            gl.warp_specialize(
                [
                    (attend, (arrays, tiles, columns, factors, barriers, work, scale, LSE, 0, variant)),
                    (correct, (arrays, tiles, columns, factors, barriers, work, variant)),
                    (multiply, (tiles, columns, barriers, work, variant)),
                    (copy, (arrays, tiles, barriers, work, variant)),
                ],
                WORKERS,
                BUDGETS,
            )
