"""The skeleton of the CDNA steps: the same attention, in the instructions of AMD's CDNA GPUs.

A block has waves of 64 lanes, and each wave has 32 queries of its own, so that no row is shared between waves. Q and
the output stay in registers; K and V go through LDS. Products are MFMA, v_mfma_f32_32x32x16 on gfx950. There is no TMA,
and a product is no operation that a kernel begins and waits for later: what overlaps are waves.

``variant`` (``steps.cdna.variant``) is constant when a kernel is compiled, so the compiler drops the branches that are
not taken. ``python -m steps.show NAME`` prints a step's kernel without them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language import amd
from triton.experimental.gluon.language.amd import cdna3
from triton.experimental.gluon.language.amd.cdna4 import async_copy

from steps.cdna.memory import bring, fetch, load_queries, read, read_relaxed, store_rows
from steps.cdna.softmax import softmax
from steps.core.fused import Pieces
from steps.gluon.softmax import LEAST, hide, store_lse, tiles_to_visit


@gluon.jit
def to_head(pointer, strides, head, batch):
    """A pointer, moved to a head of a batch."""
    return pointer + batch.to(gl.int64) * strides[0] + head.to(gl.int64) * strides[1]


@gluon.jit
def no_sum(rows: gl.constexpr, columns: gl.constexpr, variant: gl.constexpr):
    """Zeros [row, column], to which a product is added."""
    return gl.full([rows, columns], 0.0, gl.float32, variant.accumulator)


# --- which queries are a block's ---


@dataclass(frozen=True)
class Numbering(Pieces):
    """whose(variant): (first query, head, batch) of this block, and how many heads there are.

    heads_first: whether the grid counts heads along its first axis, and not tiles of queries.
    """

    whose: Callable
    heads_first: bool


@gluon.jit
def by_queries(variant: gl.constexpr):
    """Blocks are counted by tiles of queries first, then by heads."""
    return gl.program_id(0) * variant.tile.query, gl.program_id(1), gl.program_id(2), gl.num_programs(1)


@gluon.jit
def by_heads(variant: gl.constexpr):
    """Blocks are counted by heads first, then by tiles of queries."""
    return gl.program_id(1) * variant.tile.query, gl.program_id(0), gl.program_id(2), gl.num_programs(0)


QUERIES_FIRST = Numbering(by_queries, heads_first=False)
HEADS_FIRST = Numbering(by_heads, heads_first=True)


# --- when tiles of K and V are copied to LDS ---


@dataclass(frozen=True)
class Copies(Pieces):
    """begin(keys, values, K, V, k_stride, v_stride, ahead, end, seq_len_kv, variant): what runs ahead of the loop.

    await_tile(keys, values, K, V, k_stride, v_stride, stage, j, seq_len_kv, variant): see to it that the j-th is there.
    read(slot, variant): a tile in LDS, as the second factor of a product.
    go_on(keys, values, K, V, k_stride, v_stride, stage, j, end, seq_len_kv, variant): it was read.
    finish(): nothing is under way any more.
    direct: whether copies go past the registers.
    """

    begin: Callable
    await_tile: Callable
    read: Callable
    go_on: Callable
    finish: Callable
    direct: bool


@gluon.jit
def nothing_ahead(
    keys, values, K, V, k_stride, v_stride, ahead: gl.constexpr, end, seq_len_kv, variant: gl.constexpr
):  # fmt: skip
    """Nothing is copied ahead of time."""


@gluon.jit
def bring_both(keys, values, K, V, k_stride, v_stride, stage, j, seq_len_kv, variant: gl.constexpr):
    """Bring the j-th tile of keys and of values to LDS."""
    bring(keys.index(stage), K, k_stride, j, seq_len_kv, variant)
    bring(values.index(stage), V, v_stride, j, seq_len_kv, variant)


@gluon.jit
def no_more(keys, values, K, V, k_stride, v_stride, stage, j, end, seq_len_kv, variant: gl.constexpr):
    """The next iteration brings its own tile."""


@gluon.jit
def nothing_left():
    """No copy is under way."""


@gluon.jit
def fill_stages(keys, values, K, V, k_stride, v_stride, ahead: gl.constexpr, end, seq_len_kv, variant: gl.constexpr):
    """Begin to copy the first tiles."""
    for n in gl.static_range(ahead):
        fetch(keys.index(n), K, k_stride, gl.minimum(n, end - 1), seq_len_kv, variant)
        fetch(values.index(n), V, v_stride, gl.minimum(n, end - 1), seq_len_kv, variant)
        async_copy.commit_group()


@gluon.jit
def await_tile(keys, values, K, V, k_stride, v_stride, stage, j, seq_len_kv, variant: gl.constexpr):
    """Wait until the j-th tile is in LDS, and later ones are still under way."""
    TILES: gl.constexpr = variant.tiles
    async_copy.wait_group(TILES - 1)


@gluon.jit
def refill_stage(keys, values, K, V, k_stride, v_stride, stage, j, end, seq_len_kv, variant: gl.constexpr):
    """Begin to copy a later tile into the stage of the j-th, once all waves have read it."""
    gl.barrier()
    later = gl.minimum(j + variant.tiles, end - 1)
    fetch(keys.index(stage), K, k_stride, later, seq_len_kv, variant)
    fetch(values.index(stage), V, v_stride, later, seq_len_kv, variant)
    async_copy.commit_group()


@gluon.jit
def drain():
    """Wait for all that is under way."""
    async_copy.wait_group(0)


THROUGH_REGISTERS = Copies(nothing_ahead, bring_both, read, no_more, nothing_left, direct=False)
STRAIGHT = Copies(fill_stages, await_tile, read_relaxed, refill_stage, drain, direct=True)


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
    HEAD_DIM: gl.constexpr = variant.head_dim
    TILES: gl.constexpr = variant.tiles
    ROWS: gl.constexpr = gl.SliceLayout(1, variant.accumulator)
    dtype: gl.constexpr = Q.dtype.element_ty

    # --- which queries are ours, and which keys they see ---
    first_query, head, batch, heads = variant.numbering.whose(variant)
    Q = to_head(Q, q_strides, head, batch)
    K = to_head(K, k_strides, head // variant.group_size, batch)
    V = to_head(V, v_strides, head // variant.group_size, batch)
    Out = to_head(Out, o_strides, head, batch)
    k_stride = k_strides[2]
    v_stride = v_strides[2]
    whole, end = tiles_to_visit(first_query, seq_len_kv, variant)

    # --- Q in registers, K and V in LDS ---
    q = variant.scaling.query(load_queries(Q, q_strides[2], first_query, seq_len_q, variant), scale)
    keys = gl.allocate_shared_memory(dtype, [TILES, TILE_KEY, HEAD_DIM], variant.shared)
    values = gl.allocate_shared_memory(dtype, [TILES, TILE_KEY, HEAD_DIM], variant.shared)

    # --- copies that run ahead of the loop; a tile past the end is the last one again, which nobody reads ---
    AHEAD: gl.constexpr = TILES if variant.stages is None else TILES - 1
    variant.copies.begin(keys, values, K, V, k_stride, v_stride, AHEAD, end, seq_len_kv, variant)
    if variant.stages is not None:
        async_copy.wait_group(AHEAD - 1)  # in the loop, an iteration waits for the tile of the next one

    row_max = gl.full([TILE_QUERY], LEAST, gl.float32, ROWS)
    row_sum = gl.full([TILE_QUERY], 0.0, gl.float32, ROWS)
    accumulator = no_sum(TILE_QUERY, HEAD_DIM, variant)  # not yet normalised

    # Two loops from one text: over whole tiles, and over those that need the mask.
    for masked in gl.static_range(2 if variant.causal or variant.ragged else 1):
        for j in range(whole if masked else 0, end if masked else whole):
            if variant.stages is None:
                # --- this tile is in LDS ---
                stage = j % TILES
                variant.copies.await_tile(keys, values, K, V, k_stride, v_stride, stage, j, seq_len_kv, variant)

                # --- scores, online softmax, output ---
                k = variant.copies.read(keys.index(stage).permute((1, 0)), variant)
                scores = cdna3.mfma(q, k, no_sum(TILE_QUERY, TILE_KEY, variant))
                if masked:
                    scores = hide(scores, first_query, j * TILE_KEY, seq_len_kv, variant)
                weights, correction, row_max = softmax(scores, row_max, scale, variant)
                row_sum = row_sum * correction + gl.sum(weights, 1)
                weights = gl.convert_layout(weights.to(dtype), variant.left)
                accumulator = variant.rescaling.rescale(accumulator, correction)
                accumulator = cdna3.mfma(weights, variant.copies.read(values.index(stage), variant), accumulator)

                # --- all waves have read this tile: a later one takes its place ---
                variant.copies.go_on(keys, values, K, V, k_stride, v_stride, stage, j, end, seq_len_kv, variant)
            else:
                with amd.warp_pipeline_stage("scores", priority=variant.stages.products):
                    k = variant.copies.read(keys.index(j % TILES).permute((1, 0)), variant)
                    scores = cdna3.mfma(q, k, no_sum(TILE_QUERY, TILE_KEY, variant))

                with amd.warp_pipeline_stage("softmax", priority=variant.stages.softmax):
                    # Into the slot of the iteration before, which both halves have left.
                    later = gl.minimum(j + AHEAD, end - 1)
                    fetch(keys.index((j + AHEAD) % TILES), K, k_stride, later, seq_len_kv, variant)
                    fetch(values.index((j + AHEAD) % TILES), V, v_stride, later, seq_len_kv, variant)
                    async_copy.commit_group()
                    if masked:
                        scores = hide(scores, first_query, j * TILE_KEY, seq_len_kv, variant)
                    weights, correction, row_max = softmax(scores, row_max, scale, variant)
                    row_sum = row_sum * correction + gl.sum(weights, 1)
                    weights = gl.convert_layout(weights.to(dtype), variant.left)
                    accumulator = variant.rescaling.rescale(accumulator, correction)

                # For the next iteration's tile. All waves meet once, for this wait and for the end of the stage.
                async_copy.wait_group(AHEAD - 1)

                with amd.warp_pipeline_stage("output", priority=variant.stages.products):
                    v = variant.copies.read(values.index(j % TILES), variant)
                    accumulator = cdna3.mfma(weights, v, accumulator)

    # --- normalise and store; rows past the end are dropped ---
    variant.copies.finish()  # what still comes would come to the LDS of another block
    if variant.lse:
        line = batch.to(gl.int64) * heads + head
        store_lse(LSE, row_max, row_sum, line, first_query, seq_len_q)
    o = accumulator * (1.0 / row_sum)[:, None]
    store_rows(Out, o, o_strides[2], o_strides[3], first_query, seq_len_q, variant)
