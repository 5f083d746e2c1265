"""The skeleton of the Gluon steps: the same attention, with shared memory and warps in plain sight.

cuTile decides by itself where a tile is kept and which warp computes what. Gluon, Triton's language with explicit
layouts, leaves both to us: tiles are copied to shared memory with cp.async, read from there into registers in the
layout that the tensor cores want (ldmatrix), and multiplied with mma.sync, which every GPU since sm_80 has. The
ladder is the one of hand-written CUDA (FlashAttention-2, Dao 2023, https://arxiv.org/abs/2307.08691, section 3.3, for
split-KV and split-Q), told in Python.

``variant`` (``steps.gluon.variant``) is constant when a kernel is compiled, so the compiler drops the branches that are
not taken. ``python -m steps.show NAME`` prints a step's kernel without them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from steps.core.fused import Pieces
from steps.gluon import names  # noqa: F401
from steps.gluon.softmax import LEAST, hide, softmax, store_lse, tiles_to_visit


@gluon.jit
def copy_rows(shared, pointer, stride, first, limit, variant: gl.constexpr, guard: gl.constexpr):
    """Begin to copy rows [first, first + tile) to shared memory; with guard, rows from limit on become zero."""
    row = gl.arange(0, shared.shape[0], gl.SliceLayout(1, variant.copy))
    column = gl.arange(0, shared.shape[1], gl.SliceLayout(0, variant.copy))
    first = gl.to_tensor(first)
    source = (pointer + first.to(gl.int64) * stride) + (row[:, None] * stride + column[None, :])
    if guard:
        async_copy.async_load(shared, source, mask=(row < limit - first)[:, None])
    else:
        async_copy.async_load(shared, source)


@gluon.jit
def to_head(Q, K, V, Out, q_strides, k_strides, v_strides, o_strides, variant: gl.constexpr):
    """The four pointers, moved to this block's head."""
    head = gl.program_id(1).to(gl.int64)
    batch = gl.program_id(2).to(gl.int64)
    Q += batch * q_strides[0] + head * q_strides[1]
    K += batch * k_strides[0] + head // variant.group_size * k_strides[1]
    V += batch * v_strides[0] + head // variant.group_size * v_strides[1]
    Out += batch * o_strides[0] + head * o_strides[1]
    return Q, K, V, Out


@gluon.jit
def store_rows(pointer, o, row_stride, column_stride, first, limit, variant: gl.constexpr):
    """Write o [query, columns] to rows [first, limit); through shared memory, so that a lane writes 16 bytes."""
    o = gl.convert_layout(o.to(pointer.dtype.element_ty), variant.copy)
    row = first + gl.arange(0, o.shape[0], gl.SliceLayout(1, variant.copy))
    column = gl.arange(0, o.shape[1], gl.SliceLayout(0, variant.copy))
    target = pointer + row.to(gl.int64)[:, None] * row_stride + column[None, :] * column_stride
    gl.store(target, o, mask=(row < limit)[:, None])


@gluon.jit
def copy_panels(panels, stage, pointer, stride, tile_index, limit, variant: gl.constexpr, guard: gl.constexpr):
    """Begin to copy the tile_index-th tile of keys or values, panel by panel, into a stage of its ring."""
    for c in gl.static_range(variant.head_dim // variant.columns):
        first = tile_index * variant.tile.key
        copy_rows(panels[c].index(stage), pointer + c * variant.columns, stride, first, limit, variant, guard)


# --- where a block's queries are ---


@dataclass(frozen=True)
class Queries(Pieces):
    """place(keys, variant): shared memory for a panel of queries; keys: where a panel of K will lie.

    take(query, variant): the panels, as ``panel(query, c, variant)`` gives the c-th to the tensor cores.
    held: whether they are in registers while keys are read.
    """

    place: Callable
    take: Callable
    panel: Callable
    held: bool


@gluon.jit
def own_panel(keys, variant: gl.constexpr):
    """Shared memory of its own."""
    return gl.allocate_shared_memory(keys.dtype, [variant.tile.query, variant.columns], variant.shared)


@gluon.jit
def left_in_shared(query, variant: gl.constexpr):
    """All of Q stays in shared memory."""
    return query


@gluon.jit
def read_panel(query, c: gl.constexpr, variant: gl.constexpr):
    """A panel of queries, read from shared memory."""
    return query[c].load(variant.left)


@gluon.jit
def key_panel(keys, variant: gl.constexpr):
    """The room of K, until K comes."""
    return keys.index(0)


@gluon.jit
def hold_queries(query, variant: gl.constexpr):
    """Panels of queries in registers, once their copies have come."""
    async_copy.commit_group()
    async_copy.wait_group(0)
    gl.barrier()
    q = ()
    for n in gl.static_range(variant.head_dim // variant.columns):
        q = q + (query[n].load(variant.left),)
    gl.barrier()  # all warps have read Q before K overwrites it
    return q


@gluon.jit
def held_panel(query, c: gl.constexpr, variant: gl.constexpr):
    """A panel of queries, which registers hold."""
    return query[c]


IN_SHARED = Queries(own_panel, left_in_shared, read_panel, held=False)
IN_REGISTERS = Queries(key_panel, hold_queries, held_panel, held=True)

# --- when tiles of K and V are copied ---


@dataclass(frozen=True)
class Copies(Pieces):
    """begin(keys, values, K, V, row_stride, end, seq_len_kv, variant): the copies that run ahead of the loop.

    await_keys(values, V, row_stride, j, seq_len_kv, variant): wait for the j-th tile of K; the slot where it lies.
    await_values(keys, K, row_stride, j, end, seq_len_kv, variant): wait for the j-th tile of V.
    go_on(keys, values, K, V, row_stride, stage, j, end, seq_len_kv, variant): all warps may have read both.
    A tile past the end is the last one again, which nobody reads.
    """

    begin: Callable
    await_keys: Callable
    await_values: Callable
    go_on: Callable


@gluon.jit
def fill_ring(keys, values, K, V, row_stride, end, seq_len_kv, variant: gl.constexpr):
    """Begin to copy a tile of K and of V into each slot."""
    STAGES: gl.constexpr = variant.stages
    for n in gl.static_range(STAGES):
        copy_panels(keys, n, K, row_stride, gl.minimum(n, end - 1), seq_len_kv, variant, variant.ragged)
        copy_panels(values, n, V, row_stride, gl.minimum(n, end - 1), seq_len_kv, variant, variant.ragged)
        async_copy.commit_group()


@gluon.jit
def wait_for_tile(j, variant: gl.constexpr):
    """Wait for the j-th tile of keys and of values. Returns the stage of the ring where they lie."""
    STAGES: gl.constexpr = variant.stages
    stage = j % STAGES
    async_copy.wait_group(STAGES - 1)
    return stage


@gluon.jit
def await_both(values, V, row_stride, j, seq_len_kv, variant: gl.constexpr):
    """Wait for the j-th tile of keys and of values, until all warps have seen them come."""
    stage = wait_for_tile(j, variant)
    gl.barrier()
    return stage


@gluon.jit
def have_values(keys, K, row_stride, j, end, seq_len_kv, variant: gl.constexpr):
    """The values came with the keys."""


@gluon.jit
def refill(keys, values, K, V, row_stride, stage, j, end, seq_len_kv, variant: gl.constexpr):
    """Begin to copy a later tile into the stage of the j-th, once all warps have read it."""
    gl.barrier()
    later = gl.minimum(j + variant.stages, end - 1)
    copy_panels(keys, stage, K, row_stride, later, seq_len_kv, variant, variant.ragged)
    copy_panels(values, stage, V, row_stride, later, seq_len_kv, variant, variant.ragged)
    async_copy.commit_group()


@gluon.jit
def begin_keys(keys, values, K, V, row_stride, end, seq_len_kv, variant: gl.constexpr):
    """Begin to copy the first tile of keys."""
    copy_panels(keys, 0, K, row_stride, 0, seq_len_kv, variant, variant.ragged)
    async_copy.commit_group()


@gluon.jit
def wait_then_copy(free, pointer, row_stride, tile, seq_len_kv, variant: gl.constexpr):
    """Wait for the tile that comes next, and begin to copy another into the free buffer."""
    async_copy.wait_group(0)
    gl.barrier()
    copy_panels(free, 0, pointer, row_stride, tile, seq_len_kv, variant, variant.ragged)
    async_copy.commit_group()


@gluon.jit
def await_keys(values, V, row_stride, j, seq_len_kv, variant: gl.constexpr):
    """Wait for the j-th tile of keys, and begin to copy that of values."""
    wait_then_copy(values, V, row_stride, j, seq_len_kv, variant)
    return 0


@gluon.jit
def await_values(keys, K, row_stride, j, end, seq_len_kv, variant: gl.constexpr):
    """Wait for the j-th tile of values, and begin to copy the next one of keys."""
    wait_then_copy(keys, K, row_stride, gl.minimum(j + 1, end - 1), seq_len_kv, variant)


@gluon.jit
def nothing_more(keys, values, K, V, row_stride, stage, j, end, seq_len_kv, variant: gl.constexpr):
    """All copies have begun."""


RING = Copies(fill_ring, await_both, have_values, refill)
ONE_BUFFER = Copies(begin_keys, await_keys, await_values, nothing_more)


@gluon.jit(do_not_specialize=["seq_len_q", "seq_len_kv"])
def fmha(
    Q,
    K,
    V,
    Out,
    q_strides,
    k_strides,
    v_strides,
    o_strides,
    scale,
    seq_len_q,
    seq_len_kv,
    variant: gl.constexpr,
    LSE=None,
):
    TILE_QUERY: gl.constexpr = variant.tile.query
    TILE_KEY: gl.constexpr = variant.tile.key
    COLUMNS: gl.constexpr = variant.columns
    PANELS: gl.constexpr = variant.head_dim // COLUMNS
    STAGES: gl.constexpr = variant.stages
    MMA: gl.constexpr = variant.accumulator
    ROWS: gl.constexpr = gl.SliceLayout(1, MMA)
    dtype: gl.constexpr = Q.dtype.element_ty

    # --- which queries are ours, and which keys they see ---
    first_query = gl.program_id(0) * TILE_QUERY
    Q, K, V, Out = to_head(Q, K, V, Out, q_strides, k_strides, v_strides, o_strides, variant)
    row_stride = k_strides[2]  # of K and of V: the launch sees to it that they agree, and copies share their offsets
    whole, end = tiles_to_visit(first_query, seq_len_kv, variant)

    # --- shared memory, in panels of COLUMNS columns ---
    keys = ()
    values = ()
    for _ in gl.static_range(PANELS):
        keys = keys + (gl.allocate_shared_memory(dtype, [STAGES, TILE_KEY, COLUMNS], variant.shared),)
        values = values + (gl.allocate_shared_memory(dtype, [STAGES, TILE_KEY, COLUMNS], variant.shared),)
    query = ()
    for c in gl.static_range(PANELS):
        panel = variant.queries.place(keys[c], variant)
        copy_rows(panel, Q + c * COLUMNS, q_strides[2], first_query, seq_len_q, variant, True)
        query = query + (panel,)
    query = variant.queries.take(query, variant)

    # --- copies that run ahead of the loop ---
    variant.copies.begin(keys, values, K, V, row_stride, end, seq_len_kv, variant)

    row_max = gl.full([TILE_QUERY], LEAST, gl.float32, ROWS)
    row_sum = variant.sums.begin(variant)
    accumulators = ()  # not yet normalised
    for _ in gl.static_range(PANELS):
        accumulators = accumulators + (gl.full([TILE_QUERY, COLUMNS], 0.0, gl.float32, MMA),)

    # Two loops from one text: over whole tiles, and over those that need the mask.
    for masked in gl.static_range(2 if variant.causal or variant.ragged else 1):
        for j in range(whole if masked else 0, end if masked else whole):
            # --- wait for this tile ---
            stage = variant.copies.await_keys(values, V, row_stride, j, seq_len_kv, variant)

            # --- scores: QK product ---
            scores = gl.full([TILE_QUERY, TILE_KEY], 0.0, gl.float32, MMA)
            for c in gl.static_range(PANELS):
                k = keys[c].index(stage).permute((1, 0)).load(variant.right)
                scores = mma_v2(variant.queries.panel(query, c, variant), k, scores)
            if masked:
                scores = hide(scores, first_query, j * TILE_KEY, seq_len_kv, variant)

            # --- online softmax ---
            weights, correction, row_max = softmax(scores, row_max, scale)
            row_sum = variant.sums.add(row_sum, correction, weights)
            weights = gl.convert_layout(weights.to(dtype), variant.left)

            # --- output: PV product ---
            variant.copies.await_values(keys, K, row_stride, j, end, seq_len_kv, variant)
            updated = ()
            for c in gl.static_range(PANELS):
                v = values[c].index(stage).load(variant.right)
                updated = updated + (mma_v2(weights, v, accumulators[c] * correction[:, None]),)
            accumulators = updated

            # --- a later tile takes the place of this one ---
            variant.copies.go_on(keys, values, K, V, row_stride, stage, j, end, seq_len_kv, variant)

    # --- normalise and store; rows past the end are dropped ---
    async_copy.wait_group(0)
    row_sum = variant.sums.end(row_sum, variant)
    if variant.lse:
        line = gl.program_id(2).to(gl.int64) * gl.num_programs(1) + gl.program_id(1)
        store_lse(LSE, row_max, row_sum, line, first_query, seq_len_q)
    for c in gl.static_range(PANELS):
        o = accumulators[c] * (1.0 / row_sum)[:, None]
        store_rows(Out + c * COLUMNS * o_strides[3], o, o_strides[2], o_strides[3], first_query, seq_len_q, variant)
