"""Step 105, a fork from step stages: head_dim in tiles.

So far shared memory holds whole rows of K and V, and registers whole rows of Q: both grow with head_dim. Cut into
pieces of 128 columns, they no longer do: the scores are a sum over pieces of Q and K, and a piece of V gives a piece of
the output. Only the output itself, in registers, still grows. What was one copy a tile is now one a piece, and Q is
read again for every tile of keys: head_dim up to 128 has a single piece and is left as in step q_registers. Beyond it
the cut costs time where everything would have fit (results/, head_dim 256), and makes head_dim 512 and 1024 possible.

``shared_kv_buffer``, inside this step: K and V share the two stages.

A tile of V is not needed before the scores are done, and a tile of K is free once they are. So K and V can take turns
in two buffers instead of four: V is copied while K is used, the next K while V is used. Half the shared memory for K
and V, and more blocks fit on an SM where shared memory was the limit. Where registers are, none do, and every tile has
two waits for copies instead of one.

``q_registers``, inside this step: Q in registers.

Q is the same in every iteration of the loop. It goes through the buffer of K once and stays in registers, in the layout
of a left factor: its shared memory is gone, and so are its ldmatrix in every iteration. The price is head_dim / 4
registers a thread.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from steps.core.problems import few_heads
from steps.gluon import step103_stages
from steps.gluon.kernel import IN_REGISTERS, ONE_BUFFER, copy_rows, store_rows, to_head
from steps.gluon.softmax import LEAST, hide, softmax, store_lse, tiles_to_visit
from steps.gluon.variant import Schedule

SHARED_KV_BUFFER = step103_stages.STEP.evolve(
    name="shared_kv_buffer",
    title="One buffer for K and V",
    change="K and V have one buffer each: one is filled while the other is used.",
    inside="head_dim_tiling",
    default_problem=few_heads(256),
    copies=ONE_BUFFER,
    stages=1,
)

Q_REGISTERS = SHARED_KV_BUFFER.evolve(
    name="q_registers",
    title="Q in registers",
    change="Q goes through K's buffer once and is held in registers.",
    inside="head_dim_tiling",
    default_problem=few_heads(),
    queries=IN_REGISTERS,
)


@gluon.jit(do_not_specialize=["seq_len_q", "seq_len_kv"])
def fmha_pieces(
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
    PIECES: gl.constexpr = variant.head_dim // COLUMNS
    MMA: gl.constexpr = variant.accumulator
    ROWS: gl.constexpr = gl.SliceLayout(1, MMA)
    dtype: gl.constexpr = Q.dtype.element_ty

    # --- which queries are ours, and which keys they see ---
    first_query = gl.program_id(0) * TILE_QUERY
    Q, K, V, Out = to_head(Q, K, V, Out, q_strides, k_strides, v_strides, o_strides, variant)
    whole, end = tiles_to_visit(first_query, seq_len_kv, variant)

    # --- shared memory: two pieces of Q, and two that K and V share; each is copied while its twin is used ---
    queries = (
        gl.allocate_shared_memory(dtype, [TILE_QUERY, COLUMNS], variant.shared),
        gl.allocate_shared_memory(dtype, [TILE_QUERY, COLUMNS], variant.shared),
    )
    keys = (
        gl.allocate_shared_memory(dtype, [TILE_KEY, COLUMNS], variant.shared),
        gl.allocate_shared_memory(dtype, [TILE_KEY, COLUMNS], variant.shared),
    )
    copy_rows(queries[0], Q, q_strides[2], first_query, seq_len_q, variant, True)
    copy_rows(keys[0], K, k_strides[2], 0, seq_len_kv, variant, variant.ragged)
    async_copy.commit_group()

    row_max = gl.full([TILE_QUERY], LEAST, gl.float32, ROWS)
    row_sum = gl.full([TILE_QUERY], 0.0, gl.float32, ROWS)
    accumulators = ()
    for _ in gl.static_range(PIECES):
        accumulators = accumulators + (gl.full([TILE_QUERY, COLUMNS], 0.0, gl.float32, MMA),)

    for masked in gl.static_range(2 if variant.causal or variant.ragged else 1):
        for j in range(whole if masked else 0, end if masked else whole):
            # --- scores: a sum over pieces of Q and K ---
            scores = gl.full([TILE_QUERY, TILE_KEY], 0.0, gl.float32, MMA)
            for c in gl.static_range(PIECES):
                async_copy.wait_group(0)
                gl.barrier()
                ahead = (c + 1) * COLUMNS
                if c + 1 < PIECES:
                    copy_rows(queries[(c + 1) % 2], Q + ahead, q_strides[2], first_query, seq_len_q, variant, True)
                    copy_rows(
                        keys[(c + 1) % 2],
                        K + ahead,
                        k_strides[2],
                        j * TILE_KEY,
                        seq_len_kv,
                        variant,
                        variant.ragged,
                    )
                else:
                    copy_rows(keys[PIECES % 2], V, v_strides[2], j * TILE_KEY, seq_len_kv, variant, variant.ragged)
                async_copy.commit_group()
                q = queries[c % 2].load(variant.left)
                scores = mma_v2(q, keys[c % 2].permute((1, 0)).load(variant.right), scores)
            if masked:
                scores = hide(scores, first_query, j * TILE_KEY, seq_len_kv, variant)

            # --- online softmax ---
            weights, correction, row_max = softmax(scores, row_max, scale)
            row_sum = row_sum * correction + gl.sum(weights, 1)
            weights = gl.convert_layout(weights.to(dtype), variant.left)

            # --- output: a piece of V gives a piece of the output ---
            updated = ()
            for c in gl.static_range(PIECES):
                async_copy.wait_group(0)
                gl.barrier()
                if c + 1 < PIECES:
                    copy_rows(
                        keys[(PIECES + c + 1) % 2],
                        V + (c + 1) * COLUMNS,
                        v_strides[2],
                        j * TILE_KEY,
                        seq_len_kv,
                        variant,
                        variant.ragged,
                    )
                else:
                    copy_rows(queries[0], Q, q_strides[2], first_query, seq_len_q, variant, True)
                    copy_rows(keys[0], K, k_strides[2], (j + 1) * TILE_KEY, seq_len_kv, variant, True)
                async_copy.commit_group()
                v = keys[(PIECES + c) % 2].load(variant.right)
                updated = updated + (mma_v2(weights, v, accumulators[c] * correction[:, None]),)
            accumulators = updated

    # --- normalise and store; rows past the end are dropped ---
    async_copy.wait_group(0)
    if variant.lse:
        line = gl.program_id(2).to(gl.int64) * gl.num_programs(1) + gl.program_id(1)
        store_lse(LSE, row_max, row_sum, line, first_query, seq_len_q)
    for c in gl.static_range(PIECES):
        o = accumulators[c] * (1.0 / row_sum)[:, None]
        store_rows(Out + c * COLUMNS * o_strides[3], o, o_strides[2], o_strides[3], first_query, seq_len_q, variant)


STEP = Q_REGISTERS.evolve(
    number=105,
    name="head_dim_tiling",
    previous=step103_stages.STEP,
    title="Tiled head_dim",
    change="head_dim is cut into pieces of 128 columns, so that shared memory no longer grows with it.",
    fork=True,
    default_problem=few_heads(512),
    schedule=Schedule(fmha_pieces, head_dims=(32, 64, 128, 256, 512, 1024), piece=128),
)

INSIDE = (SHARED_KV_BUFFER, Q_REGISTERS)
