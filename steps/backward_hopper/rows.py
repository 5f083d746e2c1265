"""The small kernels around: what is made ready for every query, and what becomes of sums for dQ, dK and dV."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from steps.gluon import names  # noqa: F401


@gluon.jit
def prepare_rows(
    Out, DO, LSE, Numbers, strides, first_row, head, batch, heads, batches, seq_len_q, padded, rows: gl.constexpr,
    layout: gl.constexpr, variant: gl.constexpr,
):  # fmt: skip
    """For a few rows of a head: the log-sum-exp in base 2 and D, the sum of dO O over head_dim.

    Rows past the end, and rows that see no key, get plus infinity: their weights will be zero. strides: of o, dO and
    the log-sum-exp. rows, layout: how many rows, and how O and dO are held [row, head_dim].
    """
    D: gl.constexpr = variant.head_dim
    o_strides, do_strides, lse_strides = strides[0], strides[1], strides[2]
    row = first_row + gl.arange(0, rows, gl.SliceLayout(1, layout))
    column = gl.arange(0, D, gl.SliceLayout(0, layout))
    there = row < seq_len_q
    far = gl.minimum(row, seq_len_q - 1).to(gl.int64)  # all may be asked for, and nobody waits to know which are there
    line = batch.to(gl.int64) * heads + head

    NONE: gl.constexpr = float("-inf")
    lse_rows = LSE + batch.to(gl.int64) * lse_strides[0] + head.to(gl.int64) * lse_strides[1]
    lse = gl.load(lse_rows + far * lse_strides[2])

    # --- D ---
    o_rows = Out + batch.to(gl.int64) * o_strides[0] + head.to(gl.int64) * o_strides[1]
    do_rows = DO + batch.to(gl.int64) * do_strides[0] + head.to(gl.int64) * do_strides[1]
    o_places = o_rows + (far[:, None] * o_strides[2] + column[None, :])
    do_places = do_rows + (far[:, None] * do_strides[2] + column[None, :])
    if variant.columns < D:
        own = (column < variant.columns)[None, :]
        o, do = gl.load(o_places, mask=own, other=0.0), gl.load(do_places, mask=own, other=0.0)
    else:
        o, do = gl.load(o_places), gl.load(do_places)
    row_sum = gl.sum(o.to(gl.float32) * do.to(gl.float32), 1)
    gl.store(Numbers + (batches * heads + line) * padded + row, gl.where(there, row_sum, 0.0))

    # --- log-sum-exp ---
    INVERSE_LN2: gl.constexpr = 1.4426950408889634
    gl.store(Numbers + line * padded + row, gl.where(there & (lse > NONE), lse * INVERSE_LN2, float("inf")))


@gluon.jit
def clear_rows(Sums, first_row, line, padded, rows: gl.constexpr, layout: gl.constexpr, variant: gl.constexpr):
    """Zeros for dQ's sums of so many rows. layout: of the zeros, one after the other."""
    ELEMENTS: gl.constexpr = rows * variant.head_dim
    offset = gl.arange(0, ELEMENTS, layout)
    zeros = gl.full([ELEMENTS], 0.0, gl.float32, layout)
    gl.store(Sums + (line.to(gl.int64) * padded + first_row) * variant.head_dim + offset, zeros)


@gluon.jit
def first_head_first():
    """The head of a block of a small kernel, among those of all batches that it is for. A GPU starts block 0 first."""
    return gl.program_id(1) + gl.num_programs(1) * gl.program_id(2)


@gluon.jit
def last_head_first():
    """Likewise, the last head first. It is what the kernel before has written last, and L2 is likely to hold it; and of
    what this kernel reads or writes the next one needs the first head's rows first.
    """
    return gl.num_programs(1) * gl.num_programs(2) - 1 - first_head_first()


@gluon.jit(do_not_specialize=["seq_len_q", "padded", "heads", "batches", "counts", "pieces", "clearing"])
def prepare(
    Out, DO, LSE, Numbers, Sums, strides, seq_len_q, padded, heads, batches, counts, pieces, clearing,
    variant: gl.constexpr, Counts=None,
):  # fmt: skip
    """All that is made ready for a tile of queries; and zeros, shared out among the tiles.

    Zeros for dQ's sums are for the first ``clearing`` heads. Others are for so many counts,
    and for so many pieces of sums behind those for dQ, each as large as a tile of queries; None: there are none.
    strides: of o, dO and the log-sum-exp.
    """
    ROWS: gl.constexpr = variant.small_rows
    variant.begin.wait()
    variant.begin.let()  # now: the next kernel reads keys and values at once, which those before this one may write
    i = gl.program_id(0)
    line = variant.line_of_block()
    prepare_rows(
        Out, DO, LSE, Numbers, strides, i * ROWS, line % heads, line // heads, heads, batches, seq_len_q, padded, ROWS,
        variant.rows, variant,
    )  # fmt: skip
    if line < clearing:
        clear_rows(Sums, i * ROWS, line, padded, ROWS, variant.line, variant)
    programs = gl.num_programs(0) * gl.num_programs(1) * gl.num_programs(2)
    if Counts is not None:
        for n in range(line * gl.num_programs(0) + i, counts, programs):
            gl.store(Counts + n, 0)
    if variant.adds_keys:
        PIECE: gl.constexpr = ROWS * variant.head_dim
        of_queries = 0 if variant.adding.complete else heads * gl.num_programs(0)
        first_piece = batches.to(gl.int64) * of_queries
        offset = gl.arange(0, PIECE, variant.line)
        for n in range(line * gl.num_programs(0) + i, pieces, programs):
            gl.store(Sums + (first_piece + n) * PIECE + offset, gl.full([PIECE], 0.0, gl.float32, variant.line))


@gluon.jit
def round_rows(Sums, Out, strides, scale, i, line, length, padded, heads, by_tma: gl.constexpr, variant: gl.constexpr):
    """Gradients of a tile of rows: what has been added up, times the scale, rounded. by_tma: TMA added."""
    ROWS: gl.constexpr = variant.small_rows
    D: gl.constexpr = variant.head_dim
    line = line.to(gl.int64)
    head, batch = line % heads, line // heads
    row = i * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, variant.rows))
    column = gl.arange(0, D, gl.SliceLayout(0, variant.rows))
    far = row.to(gl.int64)
    offset = far[:, None] * D + column[None, :]
    if by_tma and variant.adding.fours:
        # in odd rows halves of 128 bytes have changed places: see shared_fours
        offset = far[:, None] * D + (column[None, :] ^ (row & 1)[:, None] * 16)
        offset = gl.max_contiguous(gl.multiple_of(offset, [1, 8]), [1, 8])
    sums = gl.load(Sums + line * padded * D + offset)
    if variant.adding.fours:  # columns back to their places: see adding.py
        sums = sums.reshape([ROWS, D // 16, 4, 2, 2]).permute((0, 1, 3, 2, 4)).reshape([ROWS, D])
        sums = gl.convert_layout(sums, variant.rows)
    rows = Out + batch * strides[0] + head * strides[1]
    target = rows + (far[:, None] * strides[2] + column[None, :])
    there = (row < length)[:, None]
    if variant.columns < D:
        there &= (column < variant.columns)[None, :]
    gl.store(target, (sums * scale).to(Out.dtype.element_ty), mask=there)


@gluon.jit(do_not_specialize=["seq_len_q", "padded", "heads", "first_line", "key_numbers"])
def scaled(
    Sums, DQ, dq_strides, scale, seq_len_q, padded, heads, first_line, variant: gl.constexpr,
    KeySums=None, ValueSums=None, DK=None, DV=None, dk_strides=None, dv_strides=None, key_numbers=None,
):  # fmt: skip
    """dQ of a tile of queries: what has been added up, times the scale, rounded; of heads from ``first_line`` on.

    Where blocks add to dK and dV, these are rounded likewise, behind all heads of dQ. key_numbers: keys, to the end of
    the sequence and of the last tile; kv heads, of a sequence and of all; and heads of dQ.
    """
    variant.begin.wait()
    i, n = gl.program_id(0), variant.line_of_block()
    if variant.adds_keys:
        seq_len_kv, key_padded, kv_heads, of_keys, of_queries = key_numbers
        key_line = n - of_queries
        if key_line < 0:
            if i * variant.small_rows < padded:
                round_rows(
                    Sums, DQ, dq_strides, scale, i, first_line + n, seq_len_q, padded, heads, variant.adding.by_tma,
                    variant,
                )  # fmt: skip
        elif i * variant.small_rows < key_padded:
            if key_line < of_keys:
                round_rows(
                    KeySums, DK, dk_strides, scale, i, key_line, seq_len_kv, key_padded, kv_heads, False, variant
                )
            else:
                round_rows(
                    ValueSums, DV, dv_strides, 1.0, i, key_line - of_keys, seq_len_kv, key_padded, kv_heads, False,
                    variant,
                )  # fmt: skip
    else:
        round_rows(
            Sums, DQ, dq_strides, scale, i, first_line + n, seq_len_q, padded, heads, variant.adding.by_tma, variant
        )
