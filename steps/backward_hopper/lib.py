"""Pieces of the backward kernels for Hopper: shared memory, mbarriers, loads by TMA, and what a block computes.

No piece knows of a step. A block keeps its K and V, and a producer warp fetches Q and dO, tile by tile. Instructions
are in the PTX ISA under "cp.async.bulk.tensor", "mbarrier" and "griddepcontrol".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from steps.core.fused import Pieces
from steps.gluon import names  # noqa: F401
from steps.hopper.dependent import await_kernels_before, let_next_begin
from steps.hopper.lib import barrier_ring
from steps.hopper.packed import Sequence, in_sequence, sequence_of

LN2 = gl.constexpr(0.6931471805599453)  # scores and their scale are in base 2, of which dQ and dK know nothing
INVERSE_LN2 = gl.constexpr(1.4426950408889634)

# --- instructions that Gluon has no function for ---

# The threads poll, as a barrier of mbarrier's kind does not reach to other blocks. What TMA does next comes after the
# load in the order of memory, as the proxy fence says. [PTX ISA: ld.acquire, fence.proxy.async]
AWAIT = gl.constexpr(
    "{ .reg .pred wrong; .reg .b32 seen;"
    " again: ld.acquire.gpu.global.b32 seen, [$1]; setp.ne.b32 wrong, seen, $2; @wrong bra again;"
    " fence.proxy.async.global; mov.b32 $0, seen; }"
)


@gluon.jit
def await_written(left: gl.constexpr):
    """Wait until TMA has written global memory for all requests but a given number of the latest.

    Gluon's store_wait waits until TMA has read shared memory. [PTX ISA: cp.async.bulk.wait_group]
    """
    WRITTEN: gl.constexpr = f"cp.async.bulk.wait_group {left}; mov.b32 $0, 0;"
    gl.inline_asm_elementwise(WRITTEN, "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@builtin
def async_reduce_shared_to_global(tensor_desc, coord, src, _semantic=None):
    """Ask TMA to add a tile in shared memory to one in global memory: PTX's cp.reduce.async.bulk.tensor, ``.add``.

    Gluon has no function for it; its compiler does. ``tma.store_wait`` waits for it as for a store.
    """
    from triton._C.libtriton import ir

    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, tensor_desc.handle, coord, src.handle)


# --- when the kernels of a call begin: early, the next one as soon as all blocks let it, or have ended ---
# [PTX ISA: griddepcontrol]


@dataclass(frozen=True)
class Begin(Pieces):
    """wait(): until all kernels before this one have ended. let(): the next may begin. early: whether kernels do."""

    wait: Callable
    let: Callable
    early: bool


@gluon.jit
def nothing(a=None, b=None, c=None, d=None, e=None, f=None):
    """What is not done: a function for any arguments."""


ONE_BY_ONE = Begin(nothing, nothing, early=False)
EARLY = Begin(await_kernels_before, let_next_begin, early=True)

# --- what there is, in global memory and in shared memory ---


class Arrays(NamedTuple):
    """Global memory, for TMA. numbers: log-sum-exps in base 2, and row sums (delta) below [head, query]; sums: of dQ.

    sums are in float32, in whole tiles. So are d_key and d_value where query heads have blocks of their own.
    """

    query: object
    key: object
    value: object
    d_output: object
    numbers: object
    sums: object
    d_key: object
    d_value: object


class Aside(NamedTuple):
    """Pointers; strides of o, dO, lse, dQ. counts: of what is done. rates: pieces of rows an iteration, times 2^16."""

    counts: object
    output: object
    d_output: object
    lse: object
    numbers: object
    sums: object
    d_query: object
    strides: object
    rates: object
    length: object
    padded: object
    heads: object
    batches: object


class Tiles(NamedTuple):
    """Shared memory: K and V of the block, rings for what belongs to queries, two slots for dS.

    d_query: dQ, for TMA. zeros: for TMA to clear sums with. collected: dQ of all tiles of queries, and of
    every warpgroup, where a block has several tiles of keys.
    """

    key: object
    value: object
    query: object
    lse: object
    d_output: object
    row_sum: object
    d_scores: object
    d_query: object
    zeros: object
    collected: object


class Handover(NamedTuple):
    """Where one warpgroup hands its weights to the other, and mbarriers: when they are there, and when it has them."""

    weights: object
    full: object
    empty: object


class Barriers(NamedTuple):
    """mbarriers: a slot is full, or empty.

    done: K and V are read, dK and dV there; turns: a warpgroup may compute weights. sums_full, sums_empty: a
    warpgroup's dQ is there for the warp that adds, and TMA has read it. Of two such warps each has a sums_full. Where
    warpgroups add from registers: a warpgroup has added, and the warp that passes on knows.
    """

    keys_full: object
    query_full: object
    query_empty: object
    d_output_full: object
    d_output_empty: object
    d_scores_full: object
    d_scores_empty: object
    done: object
    turns: object
    sums_full: object
    sums_empty: object
    handover: object


@gluon.jit
def rooms(dtype: gl.constexpr, variant: gl.constexpr):
    """Shared memory: tiles, and the slots of rings."""
    STAGES: gl.constexpr = variant.stages
    QUERY: gl.constexpr = variant.tile.query
    KEY: gl.constexpr = variant.tile.key
    D: gl.constexpr = variant.head_dim
    ROWS: gl.constexpr = variant.query_rows
    COLUMNS: gl.constexpr = variant.query_columns
    OWN: gl.constexpr = ([] if variant.key_tiles == 1 else [variant.key_tiles]) + variant.outer + [KEY, D]
    SUM: gl.constexpr = dtype if variant.adding.complete else gl.float32
    COLLECTED: gl.constexpr = variant.collected_shape
    key = gl.allocate_shared_memory(dtype, OWN, variant.shared)
    value = gl.allocate_shared_memory(dtype, OWN, variant.shared)
    query = gl.allocate_shared_memory(dtype, [STAGES] + variant.outer + [QUERY, D], variant.shared)  # noqa: RUF005
    lse = gl.allocate_shared_memory(gl.float32, [STAGES, 1, QUERY], variant.shared_numbers)
    d_output = gl.allocate_shared_memory(dtype, [STAGES] + variant.outer + [QUERY, D], variant.shared)  # noqa: RUF005
    row_sum = gl.allocate_shared_memory(gl.float32, [STAGES, 1, QUERY], variant.shared_numbers)
    d_scores = gl.allocate_shared_memory(dtype, [2, KEY, QUERY], variant.shared_scores)
    d_query, zeros, collected = None, None, None
    if variant.adding.by_tma:
        d_query = gl.allocate_shared_memory(SUM, [variant.warpgroups, 1, 1, ROWS, COLUMNS], variant.shared_sums)
    if variant.helpers.zeros:
        zeros = gl.allocate_shared_memory(gl.float32, [1, 1, ROWS, COLUMNS], variant.shared_sums)
    if variant.key_tiles > 1:
        collected = gl.allocate_shared_memory(gl.float32, COLLECTED, variant.shared_collected)
    return Tiles(key, value, query, lse, d_output, row_sum, d_scores, d_query, zeros, collected)


@gluon.jit
def key_tile(tiles, n, variant: gl.constexpr):
    """The n-th tile of a block's K or V."""
    if variant.key_tiles == 1:
        return tiles
    else:
        return tiles.index(n)


@gluon.jit
def rings(variant: gl.constexpr):
    """mbarriers for roles. None is made that nobody uses: the compiler would give its memory to something else, too."""
    STAGES: gl.constexpr = variant.stages
    WARPGROUPS: gl.constexpr = variant.warpgroups
    query_full = barrier_ring(STAGES, 1)
    d_scores_full = barrier_ring(2, variant.writers) if variant.warpgroups > 1 else None
    d_scores_empty = barrier_ring(2, WARPGROUPS) if variant.same_roles and variant.exchange.barriers else None
    done = barrier_ring(2, WARPGROUPS) if variant.same_roles and not variant.adds_keys else None
    turns = barrier_ring(2, 1) if variant.turns.barriers else None
    sums_full = barrier_ring(variant.helpers.hear, 1) if variant.helpers.hear else None
    sums_empty = barrier_ring(WARPGROUPS, 1) if variant.helpers.hear else None
    keys_full, query_empty = barrier_ring(variant.key_tiles, 1), barrier_ring(STAGES, WARPGROUPS)
    d_output_full, d_output_empty = barrier_ring(STAGES, 1), barrier_ring(STAGES, WARPGROUPS)
    return Barriers(
        keys_full, query_full, query_empty, d_output_full, d_output_empty, d_scores_full, d_scores_empty, done, turns,
        sums_full, sums_empty, room_for_weights(variant) if variant.roles_apart else None,
    )  # fmt: skip


@gluon.jit
def room_for_weights(variant: gl.constexpr):
    """Where a warpgroup with the scores hands weights to the warpgroup with their gradients."""
    WEIGHTS: gl.constexpr = [variant.tile.key, variant.tile.query]
    handed = gl.allocate_shared_memory(gl.float32, WEIGHTS, variant.shared_weights)
    return Handover(handed, barrier_ring(1, 1), barrier_ring(1, 1))


# --- what a block computes ---


class Work(NamedTuple):
    """A block's keys. first: first tile of queries; a_head: tiles of queries of a head; cut: those below need a mask.

    Where query heads have blocks of their own, head is such a head; else it is that of the keys. Of packed sequences,
    sequence: that which the keys are of; rows, key_rows: where its queries and its keys begin in scratch memory, in
    which each sequence has whole tiles. seq_len_q: where the last tile of queries is not full.
    """

    key_row: object
    head: object
    kv_head: object
    batch: object
    heads: object
    batches: object
    seq_len_kv: object
    first: object
    a_head: object
    cut: object
    seq_len_q: object = None
    sequence: object = None
    rows: object = None
    key_rows: object = None


@gluon.jit
def by_number(variant: gl.constexpr):
    """(tile of keys, head, batch) of this block: those of its number."""
    return gl.program_id(0), gl.program_id(1), gl.program_id(2)


@gluon.jit
def from_last_keys(variant: gl.constexpr):
    """As ``by_number``; of a head the block with the last keys begins (``adding``, on blocks that add in order)."""
    j, head, batch = by_number(variant)
    return gl.num_programs(0) - 1 - j, head, batch


@gluon.jit
def l2_aware_lpt(variant: gl.constexpr):
    """As ``by_number``, where blocks are numbered in sections.

    GPUs start blocks in the order of their numbers, though CUDA does not promise it. The heads of all batches are cut
    into sections. Of a section all blocks with the first keys begin: under a causal mask they are the longest. Those
    with the last keys end it. So two neighbouring blocks of a head do not begin one right after the other.
    """
    tiles, heads = gl.num_programs(0), gl.num_programs(1)
    number = gl.program_id(0) + tiles * (gl.program_id(1) + heads * gl.program_id(2))
    section = gl.maximum(1, variant.section // tiles)
    first = number // (tiles * section) * section
    width = gl.minimum(section, heads * gl.num_programs(2) - first)
    n = number - first * tiles
    line = first + n % width
    return n // width, line % heads, line // heads


@gluon.jit
def own_work(seq_len_q, seq_len_kv, heads, batches, packed, variant: gl.constexpr):
    """The work of this block; packed: where sequences begin, or None."""
    TILE_KEY: gl.constexpr = variant.tile.key
    TILE_QUERY: gl.constexpr = variant.tile.query
    j, head, batch = variant.tile_of_block(variant)
    PARTS: gl.constexpr = variant.parts
    part, head = head % PARTS, head // PARTS
    sequence, rows, key_rows, ragged_length = None, None, None, None
    if variant.packed:
        which = sequence_of(j, packed.keys, packed.count, TILE_KEY)
        begin, length = span(packed.queries, which)
        begin_kv, length_kv = span(packed.keys, which)
        sequence = Sequence(begin, length, begin_kv, length_kv)
        rows, key_rows = in_whole_tiles(begin, which, TILE_QUERY), in_whole_tiles(begin_kv, which, TILE_KEY)
        j -= key_rows // TILE_KEY
        seq_len_q, seq_len_kv = length, length_kv
    if variant.ragged_queries:
        ragged_length = seq_len_q
    query_tiles = gl.cdiv(seq_len_q, TILE_QUERY)
    first = 0
    cut = 0
    if variant.causal:
        first = gl.minimum(query_tiles, j * TILE_KEY // TILE_QUERY)
        cut = gl.minimum(query_tiles, gl.cdiv((j + 1) * TILE_KEY - 1, TILE_QUERY))
    if variant.ragged and (j + 1) * TILE_KEY > seq_len_kv:
        cut = query_tiles
    end = query_tiles
    if variant.window:  # queries behind see none of these keys; a window may be nearly 2^31
        end = (j + 1) * TILE_KEY - 1 + gl.minimum(variant.window, seq_len_q)
        end = gl.minimum(query_tiles, gl.cdiv(end, TILE_QUERY))
    if variant.parts > 1:
        first = part * query_tiles // PARTS
        end = (part + 1) * query_tiles // PARTS
    if variant.packed and j * TILE_KEY >= seq_len_kv:  # a number that means nothing: TMA drops what the block stores
        end = first
    return Work(
        j * TILE_KEY, head, head // variant.sharing, batch, heads, batches, seq_len_kv, first, end - first, cut,
        ragged_length, sequence, rows, key_rows,
    )  # fmt: skip


@gluon.jit
def span(begins, which):
    """(begin, length) of a packed sequence."""
    begin = gl.load(begins + which)
    return begin, gl.load(begins + which + 1) - begin


@gluon.jit
def in_whole_tiles(begin, which, rows: gl.constexpr):
    """Where a packed sequence begins in scratch memory, in which each has whole tiles of so many rows."""
    return (begin // rows + which) * rows


@gluon.jit
def query_corner(head, i, work, variant: gl.constexpr):
    """Where the i-th tile of queries begins, as TMA takes it."""
    if variant.packed:
        return in_sequence(work.sequence.begin, work.sequence.length, head, i * variant.tile.query, 0)
    else:
        return [work.batch, head, i * variant.tile.query, 0]


@gluon.jit
def key_corner(row, work, variant: gl.constexpr):
    """Likewise, a tile of keys."""
    if variant.packed:
        return in_sequence(work.sequence.begin_kv, work.sequence.length_kv, work.kv_head, row, 0)
    else:
        return [work.batch, work.kv_head, row, 0]


@gluon.jit
def scratch_row(i, work, variant: gl.constexpr):
    """Where the i-th tile of queries begins in scratch memory."""
    row = i * variant.tile.query
    if variant.packed:
        row += work.rows
    return row


@gluon.jit
def position(work, iteration, variant: gl.constexpr):
    """(head, index of the tile of queries) of an iteration."""
    head = work.head
    n = iteration
    if variant.group_size > 1:
        head = work.head * variant.group_size + iteration // work.a_head
        n = iteration % work.a_head
    if variant.key_tiles > 1:
        n = iteration % work.a_head
    return head, work.first + n


@gluon.jit
def of_tile(tiles, n, variant: gl.constexpr):
    """Shared memory with the n-th tile of a block's K and V alone."""
    return Tiles(
        tiles.key.index(n), tiles.value.index(n), tiles.query, tiles.lse, tiles.d_output, tiles.row_sum, tiles.d_scores,
        tiles.d_query, tiles.zeros, tiles.collected,
    )  # fmt: skip


@gluon.jit
def next_tile(work, n, variant: gl.constexpr):
    """The work of a block's n-th tile of keys: for all queries, each its own, without a mask but at the end of keys."""
    KEY: gl.constexpr = variant.tile.key
    cut = 0
    if (n + 1) * KEY > work.seq_len_kv:
        cut = work.a_head
    return Work(
        n * KEY, work.head, work.kv_head, work.batch, work.heads, work.batches, work.seq_len_kv, 0, work.a_head, cut,
        work.seq_len_q,
    )  # fmt: skip


@gluon.jit
def own_line(work):
    """The number of a block's head, among those of all batches."""
    return work.batch * gl.num_programs(1) + work.head


# --- warps beside the producer, in its warpgroup ---


@dataclass(frozen=True)
class Helpers(Pieces):
    """Warps of the producer's warpgroup beside the producer. first, second: what they do, as
    f(arrays, tiles, barriers, work, scale, padded, aside, n, variant), where n is 0 and 1; None: there is none.

    rows(aside, work, variant): the producer waits for rows that helpers have made. added(aside, work, left, variant): a
    warpgroup has added all that it adds to dQ; left: and asked TMA for so much else behind it. warps: of first and
    second. hear: so many mbarriers tell them that dQ is there. zeros: whether they need zeros in shared
    memory.
    """

    first: Callable | None
    second: Callable | None
    rows: Callable
    added: Callable
    warps: tuple[int, ...]
    hear: int = 0
    zeros: bool = False


NOBODY = Helpers(None, None, nothing, nothing, ())

# --- the producer ---


@gluon.jit
def fetch_rows(array, ring, numbers, number_ring, filled, n, head, i, line, work, variant: gl.constexpr):
    """Ask TMA for a tile of queries of Q or dO, and for its log-sum-exps or row sums, to fill the n-th slot."""
    full, tile, rest = filled.index(n), ring.index(n), number_ring.index(n)
    mbarrier.expect(full, array.nbytes_per_cta + numbers.nbytes_per_cta)
    tma.async_load(array, query_corner(head, i, work, variant), full, tile)
    tma.async_load(numbers, [line, scratch_row(i, work, variant)], full, rest)


@gluon.jit
def produce(arrays, tiles, barriers, work, aside, variant: gl.constexpr):
    """The producer: fetches the block's keys and values, and then tiles of queries, each when its slot is empty."""
    STAGES: gl.constexpr = variant.stages
    KEY_TILES: gl.constexpr = variant.key_tiles
    for n in gl.static_range(KEY_TILES):
        keys_full, row = barriers.keys_full.index(n), work.key_row + n * variant.tile.key
        mbarrier.expect(keys_full, arrays.key.nbytes_per_cta + arrays.value.nbytes_per_cta)
        tma.async_load(arrays.key, key_corner(row, work, variant), keys_full, key_tile(tiles.key, n, variant))
        tma.async_load(arrays.value, key_corner(row, work, variant), keys_full, key_tile(tiles.value, n, variant))
    variant.begin.let()
    variant.begin.wait()  # now: no kernel of this call has written keys or values
    variant.helpers.rows(aside, work, variant)
    for iteration in range(KEY_TILES * variant.group_size * work.a_head):
        head, i = position(work, iteration, variant)
        line = work.batch * work.heads + head
        slot, used = iteration % STAGES, iteration // STAGES & 1 ^ 1
        mbarrier.wait(barriers.query_empty.index(slot), used)
        fetch_rows(
            arrays.query, tiles.query, arrays.numbers, tiles.lse, barriers.query_full, slot, head, i, line,
            work, variant,
        )  # fmt: skip
        mbarrier.wait(barriers.d_output_empty.index(slot), used)
        fetch_rows(
            arrays.d_output, tiles.d_output, arrays.numbers, tiles.row_sum, barriers.d_output_full, slot, head, i,
            work.batches * work.heads + line, work, variant,
        )  # fmt: skip
