"""Warpgroups on their own, and beside the producer warps that add in order (``adding``), or do the small kernels' work.

What the latter do, for other heads and under the products, stands here, and the kernel with all roles at the end.
Registers are handed to whole warpgroups, so that beside the producer's one warp three have registers and no work. Two
of them prepare rows of a head whose blocks begin later (``rows.prepare``), one scales dQ of a head whose blocks have
ended (``rows.scaled``). Both wait for device memory most of the time, and need little of the SM.

Blocks begin in the order of their numbers, and the heads in sections (``lib.l2_aware_lpt``), or one after the
other. ``lines_ahead`` counts the heads from a block's own to that whose rows it prepares: where heads come in sections,
to a later one. As many before its own is the one that it scales. Kernels of their own prepare the first heads, and
scale the last. The rows of a head are shared out among the blocks of the other one by the iterations that these take: a
block's spare warps have more to do where its products take longer.

Where blocks take too few iterations for all of that, one spare warp lets TMA clear sums of a later head, an equal share
for every block, and the others do nothing (``clear_ahead``). A kernel clears the first heads, prepares all and scales
all.

Two numbers in global memory stand for every head: how many pieces of its rows are prepared, or cleared; and, where dQ
is scaled here, how often a warpgroup of a block has added to it. Whoever needs all of them waits. It waits for blocks
with lower numbers alone, which have begun: theirs prepare without waiting for anybody, so all of it comes to an end.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from steps.backward_hopper.lib import (
    AWAIT,
    LN2,
    Arrays,
    Aside,
    Helpers,
    await_written,
    nothing,
    own_line,
    own_work,
    produce,
    rings,
    rooms,
)
from steps.backward_hopper.rows import prepare_rows, round_rows
from steps.gluon import names  # noqa: F401
from steps.hopper.packed import Packed


@gluon.jit
def lines_ahead(variant: gl.constexpr):
    """The heads from a block's own to that whose rows it prepares, or clears (``skeleton.heads_ahead``)."""
    return gl.maximum(2, variant.ahead // gl.num_programs(0))


@gluon.jit
def pieces_before(j, tiles, rate, pieces, variant: gl.constexpr):
    """Of so many pieces those of a head's first j blocks, by the iterations that these take: see ``own_share``."""
    if variant.causal:
        seen = gl.minimum(j.to(gl.int64), gl.cdiv(tiles, variant.ratio))
        return gl.minimum((seen * tiles - variant.ratio * (seen * (seen - 1) // 2)) * rate >> 16, pieces).to(gl.int32)
    else:
        return gl.minimum(j.to(gl.int64) * tiles * rate >> 16, pieces).to(gl.int32)


@gluon.jit
def own_share(pieces, rate, work, variant: gl.constexpr):
    """(first, end) of so many pieces of a head's work: this block's share, by the iterations that it takes.

    The host has divided the pieces by the iterations, rounded up: a division of 64 bits here would cost the warps that
    multiply so many registers that they spill.
    """
    j, tiles = work.key_row // variant.tile.key, (work.first + work.a_head).to(gl.int64)
    first = pieces_before(j, tiles, rate, pieces, variant)
    end = pieces_before(j + 1, tiles, rate, pieces, variant)
    return first, end


@gluon.jit
def spare(arrays, tiles, barriers, work, scale, padded, aside, behind: gl.constexpr, variant: gl.constexpr):
    """Spare warps: they prepare rows of a later head, or scale dQ of one behind, when all has been added to it."""
    ROWS: gl.constexpr = variant.rows_scaled if behind else variant.rows_prepared
    variant.begin.wait()
    own, ahead, lines = own_line(work), lines_ahead(variant), gl.num_programs(1) * gl.num_programs(2)
    line = own - ahead if behind else own + ahead
    if line >= 0 if behind else line < lines:
        first, end = own_share(aside.padded // ROWS, aside.rates[behind], work, variant)
        if behind and first < end:
            added, additions = aside.counts + lines + line, gl.num_programs(0) * variant.warpgroups
            gl.inline_asm_elementwise(AWAIT, "=r,l,r", [added, additions], dtype=gl.int32, is_pure=False, pack=1)
        for piece in range(first, end):
            if behind:
                round_rows(
                    aside, aside.strides[3], scale, LN2, piece * ROWS, line, ROWS, variant.adding.by_tma, variant
                )
            else:
                prepare_rows(aside, piece * ROWS, line, True, ROWS, variant)
        if not behind:
            gl.barrier()  # one thread counts for all
            gl.atomic_add(aside.counts + line, end - first, sem="release", scope="gpu")


@gluon.jit
def clear_ahead(arrays, tiles, barriers, work, scale, padded, aside, n: gl.constexpr, variant: gl.constexpr):
    """The spare warp that lets TMA clear sums of a later head: a share of its rows, as large for every block."""
    ROWS: gl.constexpr = variant.query_rows
    COLUMNS: gl.constexpr = variant.query_columns
    variant.begin.wait()
    line = own_line(work) + lines_ahead(variant)
    if line < gl.num_programs(1) * gl.num_programs(2):
        zeros = tiles.zeros.reshape([ROWS, COLUMNS])
        for n in gl.static_range(ROWS // 8):
            zeros.slice(8 * n, 8, 0).store(gl.full([8, COLUMNS], 0.0, gl.float32, variant.zeros))
        fence_async_shared()
        pieces = padded // ROWS
        j = work.key_row // variant.tile.key
        first = pieces * j // gl.num_programs(0)
        end = pieces * (j + 1) // gl.num_programs(0)
        for piece in range(first, end):
            for m in gl.static_range(variant.head_dim // COLUMNS):
                corner = [line // work.heads, line % work.heads, piece * ROWS, m * COLUMNS]
                tma.async_store(arrays.sums, corner, tiles.zeros)
        await_written(0)
        gl.barrier()  # one thread counts for all
        gl.atomic_add(aside.counts + line, end - first, sem="release", scope="gpu")


@gluon.jit
def await_made(aside, pieces, work, variant: gl.constexpr):
    """Wait until spare warps have made a given number of pieces for this block's head."""
    own = own_line(work)
    if own >= lines_ahead(variant):  # earlier heads' rows were made by the kernel in front
        gl.inline_asm_elementwise(AWAIT, "=r,l,r", [aside.counts + own, pieces], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def await_rows(aside, work, variant: gl.constexpr):
    """Wait until this block's head is prepared."""
    await_made(aside, aside.padded // variant.rows_prepared, work, variant)


@gluon.jit
def await_zeros(aside, work, variant: gl.constexpr):
    """Wait until the sums of this block's head are cleared."""
    await_made(aside, aside.padded // variant.query_rows, work, variant)


@gluon.jit
def tell_added(aside, work, left: gl.constexpr, variant: gl.constexpr):
    """Count this warpgroup of this block, when all that it has added to dQ is in global memory.

    left: what it asked TMA for behind that, dK and dV, for which nobody waits here.
    """
    if variant.unseen:  # whoever has had an iteration is behind the producer, which has waited
        variant.begin.wait()
    if variant.adding.by_tma:
        await_written(left)
    gl.barrier()  # one thread counts for all
    lines = gl.num_programs(1) * gl.num_programs(2)
    gl.atomic_add(aside.counts + lines + own_line(work), 1, sem="release", scope="gpu")


SPARE = Helpers(spare, spare, await_rows, tell_added, (2, 1))
CLEARS = Helpers(clear_ahead, None, await_zeros, nothing, (1,), zeros=True)


@gluon.jit(do_not_specialize=["seq_len_q", "seq_len_kv", "heads", "batches", "padded", "sequences"])
def fmha_backward(
    Q, K, V, DO, Numbers, Sums, DK, DV, scale, seq_len_q, seq_len_kv, heads, batches, padded, variant: gl.constexpr,
    Counts, AllSums=None, DQ=None, AllNumbers=None, Out=None, AllDO=None, LSE=None, strides=None, rates=None,
    begins_q=None, begins_k=None, sequences=None,
):  # fmt: skip
    arrays = Arrays(Q, K, V, DO, Numbers, Sums, DK, DV)
    tiles = rooms(Q.dtype, variant)
    barriers = rings(variant)
    fence_async_shared()  # TMA sees the barriers
    packed = Packed(begins_q, begins_k, sequences) if variant.packed else None
    work = own_work(seq_len_q, seq_len_kv, heads, batches, packed, variant)
    aside = Aside(Counts, Out, AllDO, LSE, AllNumbers, AllSums, DQ, strides, rates, seq_len_q, padded, heads, batches)

    # --- who does what; the first warpgroup's warps are those that the block began with ---
    WORKERS: gl.constexpr = variant.workers
    BUDGETS: gl.constexpr = variant.budgets
    if variant.helpers.second is None:
        gl.warp_specialize(
            [
                (variant.consume, (arrays, tiles, barriers, work, scale, padded, aside, 0, variant)),
                (variant.consume, (arrays, tiles, barriers, work, scale, padded, aside, 1, variant)),
                (produce, (arrays, tiles, barriers, work, aside, variant)),
                (variant.helpers.first, (arrays, tiles, barriers, work, scale, padded, aside, 0, variant)),
            ],
            WORKERS,
            BUDGETS,
        )
    else:
        gl.warp_specialize(
            [
                (variant.consume, (arrays, tiles, barriers, work, scale, padded, aside, 0, variant)),
                (variant.consume, (arrays, tiles, barriers, work, scale, padded, aside, 1, variant)),
                (produce, (arrays, tiles, barriers, work, aside, variant)),
                (variant.helpers.first, (arrays, tiles, barriers, work, scale, padded, aside, 0, variant)),
                (variant.helpers.second, (arrays, tiles, barriers, work, scale, padded, aside, 1, variant)),
            ],
            WORKERS,
            BUDGETS,
        )
