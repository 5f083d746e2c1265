"""The small kernels around: what is made ready for every query, and what becomes of sums for dQ, dK and dV."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from steps.backward_hopper.lib import INVERSE_LN2, Aside, in_whole_tiles, span
from steps.gluon import names  # noqa: F401
from steps.hopper.packed import sequence_of

SINK_WARPS = 16  # of a block that adds up the gradient of a head's sink
AT_ONCE = gl.constexpr(4096)  # rows that it loads at once: 8 a thread, as each waits for memory as long as for one


@gluon.jit
def prepare_rows(aside, first_row, line, clear, rows: gl.constexpr, variant: gl.constexpr):
    """A few rows of a head: log-sum-exps in base 2; row sums (delta) of dO * O; zeros for dQ, where asked for.

    Rows past the end, and rows that see no key, get plus infinity: their weights will be zero. line: the head, among
    those of all batches. A lane has 16 columns of O and dO, in one row, which takes few addresses.
    """
    D: gl.constexpr = variant.head_dim
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 16], [512 // D, D // 16], [gl.num_warps(), 1], [1, 0])
    ZEROS: gl.constexpr = gl.BlockedLayout([4], [32], [gl.num_warps()], [0])
    of_o, of_do, of_lse = aside.strides[0], aside.strides[1], aside.strides[2]
    head, batch = (line % aside.heads).to(gl.int64), (line // aside.heads).to(gl.int64)
    row = first_row + gl.arange(0, rows, gl.SliceLayout(1, LAYOUT))
    column = gl.arange(0, D, gl.SliceLayout(0, LAYOUT))
    there = row < aside.length
    far = gl.minimum(row, aside.length - 1).to(gl.int64)  # a row that exists, so that loads need no mask
    own = batch * aside.heads + head
    lse = gl.load(aside.lse + batch * of_lse[0] + head * of_lse[1] + far * of_lse[2])
    o_rows = aside.output + batch * of_o[0] + head * of_o[1] + (far[:, None] * of_o[2] + column[None, :])
    do_rows = aside.d_output + batch * of_do[0] + head * of_do[1] + (far[:, None] * of_do[2] + column[None, :])
    if variant.columns < D:
        some = (column < variant.columns)[None, :]
        o, do = gl.load(o_rows, mask=some, other=0.0), gl.load(do_rows, mask=some, other=0.0)
    else:
        o, do = gl.load(o_rows), gl.load(do_rows)
    row_sum = gl.sum(o.to(gl.float32) * do.to(gl.float32), 1)
    gl.store(aside.numbers + (aside.batches * aside.heads + own) * aside.padded + row, gl.where(there, row_sum, 0.0))
    there &= lse > float("-inf")
    gl.store(aside.numbers + own * aside.padded + row, gl.where(there, lse * INVERSE_LN2, float("inf")))
    if clear:
        offset = (line.to(gl.int64) * aside.padded + first_row) * D + gl.arange(0, rows * D, ZEROS)
        gl.store(aside.sums + offset, gl.full([rows * D], 0.0, gl.float32, ZEROS))


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


@gluon.jit
def of_sequence(row, begins, sequences, tile: gl.constexpr):
    """(begin, length, first): the packed sequence that has this row of scratch memory, and where it begins there."""
    which = sequence_of(row // tile, begins, sequences, tile)
    begin, length = span(begins, which)
    return begin, length, in_whole_tiles(begin, which, tile)


@gluon.jit
def at_sequence(aside, begin, length, first, variant: gl.constexpr):
    """What rows are prepared from and into, as if a packed sequence were all there is."""
    o_strides, do_strides, lse_strides = aside.strides[0], aside.strides[1], aside.strides[2]
    begin = gl.maximum(begin, 1 - length).to(gl.int64)  # of no rows, the one before is asked for: there must be one
    return Aside(
        aside.counts, aside.output + begin * o_strides[2], aside.d_output + begin * do_strides[2],
        aside.lse + begin * lse_strides[2], aside.numbers + first, aside.sums + first.to(gl.int64) * variant.head_dim,
        None, aside.strides, None, length, aside.padded, aside.heads, aside.batches,
    )  # fmt: skip


@gluon.jit(do_not_specialize=["seq_len_q", "padded", "heads", "batches", "counts", "pieces", "clearing", "sequences"])
def prepare(
    Out, DO, LSE, Numbers, Sums, strides, seq_len_q, padded, heads, batches, counts, pieces, clearing,
    variant: gl.constexpr, Counts=None, begins_q=None, sequences=None,
):  # fmt: skip
    """All that is made ready for a tile of queries; and zeros, shared out among the tiles.

    Zeros for dQ's sums are for the first ``clearing`` heads. Others are for so many counts,
    and for so many pieces of sums behind those for dQ, each as large as a tile of queries; None: there are none.
    strides: of o, dO and the log-sum-exp.
    """
    ROWS: gl.constexpr = variant.small_rows
    variant.begin.wait()
    variant.begin.let()  # now: the next kernel reads keys and values at once, which those before this one may write
    i, line = gl.program_id(0), variant.line_of_block()
    aside = Aside(Counts, Out, DO, LSE, Numbers, Sums, None, strides, None, seq_len_q, padded, heads, batches)
    row = i * ROWS
    if variant.packed:
        begin, length, first = of_sequence(row, begins_q, sequences, variant.tile.query)
        aside, row = at_sequence(aside, begin, length, first, variant), row - first
    prepare_rows(aside, row, line, line < clearing, ROWS, variant)
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
def round_rows(
    aside, strides, scale, factor: gl.constexpr, first_row, line, rows: gl.constexpr, by_tma: gl.constexpr,
    variant: gl.constexpr,
):  # fmt: skip
    """A few rows of dQ, or of dK or dV: what has been added up, times scale and factor, rounded.

    A lane has four sums, as they are stored. by_tma: TMA added.
    """
    D: gl.constexpr = variant.head_dim
    LANES: gl.constexpr = variant.lanes
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 4], [32 // LANES, LANES], [gl.num_warps(), 1], [1, 0])
    head, batch = line % aside.heads, line // aside.heads
    row = first_row + gl.arange(0, rows, gl.SliceLayout(1, LAYOUT))
    column = gl.arange(0, D, gl.SliceLayout(0, LAYOUT))
    offset = row[:, None] * D + column[None, :]
    if by_tma and variant.adding.fours:
        offset = row[:, None] * D + (column[None, :] ^ (row & 1)[:, None] * 16)  # swaps halves
        offset = gl.max_contiguous(gl.multiple_of(offset, [1, 4]), [1, 4])
    own = batch.to(gl.int64) * aside.heads + head
    sums = gl.load(aside.sums + own * aside.padded * D + offset)
    if variant.adding.fours:
        column = (column & -16) + (column >> 1 & 1) * 8 + (column >> 2 & 3) * 2 + (column & 1)  # two, 8 further two
    to = aside.d_query + batch.to(gl.int64) * strides[0] + head.to(gl.int64) * strides[1]
    target = row.to(gl.int64)[:, None] * strides[2] + column[None, :]
    target = gl.max_contiguous(gl.multiple_of(target, [1, 2]), [1, 2])
    there = (row < aside.length)[:, None]
    if variant.columns < D:
        there &= (column < variant.columns)[None, :]
    gl.store(to + target, (sums * scale * factor).to(to.dtype.element_ty), mask=there)


@gluon.jit
def round_tile(
    Sums, Out, strides, scale, i, line, length, padded, heads, begins, sequences, tile: gl.constexpr,
    by_tma: gl.constexpr, variant: gl.constexpr,
):  # fmt: skip
    """A tile of queries, or as many keys, in a small kernel: see ``round_rows``.

    begins, sequences, tile: where packed sequences begin, how many they are, and rows of the large kernel's tiles.
    """
    ROWS: gl.constexpr = variant.small_rows
    first = 0
    if variant.packed:
        begin, length, first = of_sequence(i * ROWS, begins, sequences, tile)
        Sums += first.to(gl.int64) * variant.head_dim
        Out += begin.to(gl.int64) * strides[2]
    aside = Aside(None, None, None, None, None, Sums, Out, None, None, length, padded, heads, None)
    round_rows(aside, strides, scale, 1.0, i * ROWS - first, line, ROWS, by_tma, variant)


@gluon.jit(do_not_specialize=["seq_len_q", "padded", "heads", "first_line", "key_numbers", "sequences"])
def scaled(
    Sums, DQ, dq_strides, scale, seq_len_q, padded, heads, first_line, variant: gl.constexpr,
    KeySums=None, ValueSums=None, DK=None, DV=None, dk_strides=None, dv_strides=None, key_numbers=None,
    begins_q=None, sequences=None, begins_k=None,
):  # fmt: skip
    """dQ of a tile of queries: what has been added up, times the scale, rounded; of heads from ``first_line`` on.

    Where blocks add to dK and dV, these are rounded likewise, behind all heads of dQ. key_numbers: keys, to the end of
    the sequence and of the last tile; kv heads, of a sequence and of all; and heads of dQ.
    """
    variant.begin.wait()
    i, line = gl.program_id(0), first_line + variant.line_of_block()
    QUERY: gl.constexpr = variant.tile.query
    KEY: gl.constexpr = variant.tile.key
    if variant.adds_keys:
        seq_len_kv, key_padded, kv_heads, of_keys, of_queries = key_numbers
        key_line = line - first_line - of_queries
        if key_line < 0:
            if i * variant.small_rows < padded:
                round_tile(
                    Sums, DQ, dq_strides, scale, i, line, seq_len_q, padded, heads, begins_q, sequences, QUERY,
                    variant.adding.by_tma, variant,
                )  # fmt: skip
        elif i * variant.small_rows < key_padded:
            if key_line < of_keys:
                round_tile(
                    KeySums, DK, dk_strides, scale, i, key_line, seq_len_kv, key_padded, kv_heads, begins_k, sequences,
                    KEY, False, variant,
                )  # fmt: skip
            else:
                round_tile(
                    ValueSums, DV, dv_strides, 1.0, i, key_line - of_keys, seq_len_kv, key_padded, kv_heads, begins_k,
                    sequences, KEY, False, variant,
                )  # fmt: skip
    else:
        round_tile(
            Sums, DQ, dq_strides, scale, i, line, seq_len_q, padded, heads, begins_q, sequences, QUERY,
            variant.adding.by_tma, variant,
        )  # fmt: skip


@gluon.jit(do_not_specialize=["heads", "batches", "padded"])
def gradient_of_sinks(DSinks, Sinks, Numbers, heads, batches, padded):
    """A head's dsinks: minus the sum over its rows of the sink's weight, exp(sink - lse), times delta.

    It reads what is made ready of every query. Rows past the end have no weight. The order of the sum is always the
    same.
    """
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    head, lines, rows = gl.program_id(0), batches.to(gl.int64) * heads, batches * padded
    sink = gl.full([AT_ONCE], gl.load(Sinks + head), gl.float32, LAYOUT) * INVERSE_LN2
    sums = gl.full([AT_ONCE], 0.0, gl.float32, LAYOUT)
    for first in range(0, rows, AT_ONCE):
        row = first + gl.arange(0, AT_ONCE, LAYOUT)
        there = row < rows
        places = Numbers + ((row // padded).to(gl.int64) * heads + head) * padded + row % padded
        lse = gl.load(places, mask=there, other=float("inf"))
        sums += gl.exp2(sink - lse) * gl.load(places + lines * padded, mask=there, other=0.0)
    gl.store(DSinks + head, -gl.sum(sums, 0))
