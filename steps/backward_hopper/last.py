"""The last block of a head scales dQ, where ``scaled`` of rows.py takes a launch of its own.

Every block counts itself when all that it has added to dQ is in global memory; a part by itself, as it adds its own
share. Whoever finds all others counted reads the sums of all blocks. That L2 still holds them is a hypothesis.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from steps.backward_hopper.lib import WRITTEN
from steps.gluon import names  # noqa: F401


@gluon.jit
def scale_if_last(aside, work, scale, padded, part: gl.constexpr, variant: gl.constexpr):
    """Count this block, and scale this part's share of dQ of its head, if no other block will add to it."""
    PARTS: gl.constexpr = variant.parts
    if variant.adding.by_tma:
        gl.inline_asm_elementwise(WRITTEN, "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    gl.barrier()  # one thread counts for all
    line = work.batch * work.heads + work.head
    count = gl.atomic_add(aside.counts + (line * PARTS + part), 1, sem="acq_rel", scope="gpu")
    if count == gl.cdiv(work.seq_len_kv, variant.tile.key) - 1:
        scale_head(aside, line, scale, padded, part, variant)


@gluon.jit
def scale_head(aside, line, scale, padded, part: gl.constexpr, variant: gl.constexpr):
    """dQ of a head, a part's rows or columns: what has been added up, times the scale, rounded.

    The sums of the next tile are asked for before those of this one are stored.
    """
    ROWS: gl.constexpr = variant.query_rows
    COLUMNS: gl.constexpr = variant.query_columns
    TILE: gl.constexpr = variant.tile.query
    D: gl.constexpr = variant.head_dim
    LN2: gl.constexpr = 0.6931471805599453  # the scale is in base 2, which dQ's is not
    first_row = part * ROWS if variant.rows_apart else 0
    first_column = 0 if variant.rows_apart else part * COLUMNS

    # --- where the sums stand: see adding.py, and for odd rows shared_fours ---
    row = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, variant.query_fours))
    column = first_column + gl.arange(0, COLUMNS, gl.SliceLayout(0, variant.query_fours))
    place = row[:, None] * D + column[None, :]
    if variant.adding.by_tma:
        place = row[:, None] * D + (column[None, :] ^ (row & 1)[:, None] * 16)
        place = gl.max_contiguous(gl.multiple_of(place, [1, 4]), [1, 4])
    sums_of_head = aside.sums + line.to(gl.int64) * padded * D + place

    # --- where dQ goes ---
    row = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, variant.query_sums))
    column = first_column + gl.arange(0, COLUMNS, gl.SliceLayout(0, variant.query_sums))
    rows = aside.d_query + line.to(gl.int64) * aside.seq_len_q * D

    tiles = padded // TILE
    sums = gl.load(sums_of_head)
    for i in range(tiles):
        following = gl.load(sums_of_head + gl.minimum(i + 1, tiles - 1) * (TILE * D))
        pairs = sums.reshape([ROWS, COLUMNS // 16, 4, 2, 2]).permute((0, 1, 3, 2, 4)).reshape([ROWS, COLUMNS])
        pairs = gl.convert_layout(pairs, variant.query_sums, assert_trivial=True)
        query = i * TILE + row
        target = rows + (query[:, None] * D + column[None, :])
        dtype: gl.constexpr = aside.d_query.dtype.element_ty
        gl.store(target, (pairs * (scale * LN2)).to(dtype), mask=(query < aside.seq_len_q)[:, None])
        sums = following
