"""The shared skeleton of the Gluon steps: the same attention, with shared memory and warps in plain sight.

cuTile decides by itself where a tile is kept and which warp computes what. Gluon, Triton's language with explicit
layouts, leaves both to us: tiles are copied to shared memory with cp.async, read from there into registers in the
layout that the tensor cores want (ldmatrix), and multiplied with mma.sync, which every GPU since sm_80 has. The
ladder is the one of hand-written CUDA (FlashAttention-2, Dao 2023, https://arxiv.org/abs/2307.08691, section 3.3, for
split-KV and split-Q), told in Python.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import ClassVar

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from steps.fused import FusedStep, grid, hole, tiles_visited
from steps.step import Unsupported
from steps.tiles import Tile
from tutorial_lib.architectures import ARCHITECTURES, KIB
from tutorial_lib.compiler import GLUON_ARCHITECTURES
from tutorial_lib.problem import BYTES_PER_ELEMENT, Problem, fold_sign

# Where Triton 3.6 and 3.7 differ: what waits for all warps of a block.
barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier

LANES = 32
PANEL = 64  # columns of 16 bits that span the 32 banks of shared memory: tiles are kept in panels of so many
ACCUMULATORS = 128  # registers of a lane that the output may take; with 255 in all, twice as many would spill


@dataclass(frozen=True)
class Warps:
    """How the warps of a block divide a tile of scores [query, key]: into rows (queries) and columns (keys)."""

    rows: int
    columns: int

    @property
    def number(self) -> int:
        return self.rows * self.columns


@dataclass(frozen=True)
class Schedule:
    """A kernel with its own order of copies and products.

    function: the kernel, with the parameters of ``fmha``; piece: the most columns of head_dim that are in shared memory
    at once, None for all of them; head_dims: what it takes.
    """

    function: Callable
    head_dims: tuple[int, ...] = (32, 64, 128, 256)
    piece: int | None = None

    def __reduce__(self):  # a kernel cannot be pickled, its name can
        return _schedule, (self.function.fn.__module__, self.function.fn.__name__, self.head_dims, self.piece)

    def __str__(self) -> str:
        return self.function.__name__ if self.piece is None else f"pieces of {self.piece} columns"


def _schedule(module: str, name: str, head_dims: tuple[int, ...], piece: int | None) -> Schedule:
    return Schedule(getattr(import_module(module), name), head_dims, piece)


def no_swizzle(columns: int) -> gl.SwizzledSharedLayout:
    """Rows of a tile behind one another, as in memory."""
    return gl.SwizzledSharedLayout(vec=1, per_phase=1, max_phase=1, order=[1, 0])


@dataclass(frozen=True)
class Variant:
    """What a kernel is compiled for, and the layouts that follow: which lane of which warp holds what, and where.

    Everything here is a constant in the compiled code. columns: of a panel of a tile in shared memory.
    """

    tile: Tile
    head_dim: int
    columns: int
    group_size: int
    causal: bool
    ragged: bool  # the last tile of keys is not full
    warps: Warps
    stages: int
    share_keys_values: bool
    query_in_registers: bool
    defer_sum: bool
    shared: gl.SwizzledSharedLayout

    @property
    def accumulator(self) -> gl.NVMMADistributedLayout:
        """Scores and outputs, as mma.sync.m16n8k16 leaves them in registers."""
        return gl.NVMMADistributedLayout([2, 0], [self.warps.rows, self.warps.columns], [16, 8])

    @property
    def left(self) -> gl.DotOperandLayout:
        """The first factor of a product: Q, then the weights."""
        return gl.DotOperandLayout(0, self.accumulator, 2)

    @property
    def right(self) -> gl.DotOperandLayout:
        """The second factor of a product: K transposed, then V."""
        return gl.DotOperandLayout(1, self.accumulator, 2)

    @property
    def copy(self) -> gl.BlockedLayout:
        """Copies between global and shared memory: 16 bytes a lane, neighbouring lanes along a row."""
        lanes = min(32, self.columns // 8)
        return gl.BlockedLayout([1, 8], [32 // lanes, lanes], [self.warps.number, 1], [1, 0])


@dataclass(frozen=True, kw_only=True)
class GluonStep(FusedStep):
    """A fused kernel in Gluon: ``fmha`` below with these holes filled.

    shared_layout(columns) -> where element [row, column] of a tile lies in shared memory.
    warps: how the warps divide the scores; stages: tiles of K and of V that shared memory holds.
    share_keys_values: K and V tiles have one buffer each, copied while the other's is used.
    query_in_registers: Q goes through the buffer of K once, and stays in registers.
    schedule: the kernel. defer_sum: every lane sums its own columns, and lanes are added up once, at the end.
    """

    shared_layout: Callable = hole()
    warps: Warps = hole()
    stages: int = hole()
    share_keys_values: bool = hole(default=False)
    query_in_registers: bool = hole(default=False)
    schedule: Schedule = hole()
    defer_sum: bool = hole(default=False)
    tile: Tile = hole(default=Tile(64, 64))

    backend: ClassVar[str] = "gluon"
    runs_on_cpu: ClassVar[bool] = False

    def __post_init__(self):
        if self.query_in_registers and self.tile.query != self.tile.key:
            raise ValueError(f"query_in_registers takes a tile of as many queries as keys, got {self.tile}")

    @property
    def head_dims(self) -> tuple[int, ...]:
        return self.schedule.head_dims

    def unsupported(self, problem: Problem, target: str) -> str | None:
        if reason := super().unsupported(problem, target):
            return reason
        if target == "cpu":
            return "Gluon has no interpreter: without a GPU this step compiles, and does not run"
        if target not in GLUON_ARCHITECTURES:
            return f"Triton makes no code for {target}: it must be one of {', '.join(GLUON_ARCHITECTURES)}"
        if (limits := ARCHITECTURES.get(target)) and limits.shared_bytes:
            needs, holds = self.shared_bytes(problem), limits.shared_bytes - KIB  # 1 KiB a block is the system's
            if needs > holds:
                return f"needs {needs // KIB} KiB of shared memory a block; {target} has {holds // KIB} KiB"
        return None

    def shared_bytes(self, problem: Problem) -> int:
        """Shared memory that the tiles of a block take, in bytes."""
        v = self.variant(problem)
        keys = (2 if v.share_keys_values else 2 * v.stages) * v.tile.key
        if self.cuts(problem):
            return (keys + 2 * v.tile.query) * v.columns * BYTES_PER_ELEMENT
        return (keys + (0 if v.query_in_registers else v.tile.query)) * v.head_dim * BYTES_PER_ELEMENT

    def ldmatrix_conflicts(self, problem: Problem) -> int:
        """Extra turns at shared memory that all ldmatrix of a launch take, computed from the layouts alone."""
        from tutorial_lib import layouts

        v = self.variant(problem)
        queries, keys_values = self._matrices(v)
        blocks = math.prod(grid(problem, v.tile))
        tiles = tiles_visited(problem, v.tile)
        loaded = tiles * keys_values + (blocks if v.query_in_registers else tiles) * queries
        return (layouts.ldmatrix_turns(v.shared, v.columns) - 1) * loaded * v.warps.number

    def shared_clocks(self, problem: Problem) -> float:
        """Clocks a K/V tile that shared memory is busy at least: ldmatrix, with its conflicts, and the copies into it.

        A matrix of 8 x 8 elements takes a clock a turn, and so do 128 bytes that are copied. What warps exchange
        through shared memory is not counted.
        """
        from tutorial_lib import layouts

        v = self.variant(problem)
        queries, keys_values = self._matrices(v)
        copied = 2 * v.tile.key * v.head_dim
        if self.cuts(problem):
            copied += v.tile.query * v.head_dim
        read = keys_values + (0 if v.query_in_registers and not self.cuts(problem) else queries)
        clocks = read * v.warps.number * layouts.ldmatrix_turns(v.shared, v.columns)
        return clocks + copied * BYTES_PER_ELEMENT / (layouts.BANKS * layouts.WORD)

    @staticmethod
    def _matrices(v: Variant) -> tuple[int, int]:
        """8 x 8 matrices that a warp reads of a tile of Q, and of a tile of K and one of V."""
        from tutorial_lib import layouts

        queries = layouts.matrices(v.left, [v.tile.query, v.head_dim])
        keys = layouts.matrices(v.right, [v.head_dim, v.tile.key])
        return queries, keys + layouts.matrices(v.right, [v.tile.key, v.head_dim])

    def cuts(self, problem: Problem) -> bool:
        """Whether shared memory keeps only pieces of head_dim; a head_dim that is one piece is not cut."""
        return self.schedule.piece is not None and self.schedule.piece < problem.head_dim

    def variant(self, problem: Problem) -> Variant:
        """The constants that ``problem`` is compiled with."""
        warps = self.warps if problem.head_dim <= 256 else Warps(2, 4)
        rows = ACCUMULATORS * warps.number * LANES // problem.head_dim
        tile = Tile(min(self.tile.query, rows), self.tile.key)
        columns = self.schedule.piece if self.cuts(problem) else min(PANEL, problem.head_dim)
        return Variant(
            tile=tile,
            head_dim=problem.head_dim,
            columns=columns,
            group_size=problem.group_size,
            causal=problem.causal,
            ragged=problem.seq_len_kv % tile.key != 0,
            warps=warps,
            stages=self.stages,
            share_keys_values=self.share_keys_values,
            query_in_registers=self.query_in_registers,
            defer_sum=self.defer_sum,
            shared=self.shared_layout(columns),
        )

    def kernel(self, problem: Problem) -> Callable:
        """The schedule's function, or ``fmha`` where it has nothing to cut."""
        return self.schedule.function if self.cuts(problem) else fmha

    def run(self, problem, q, k, v, out):
        import torch

        variant = self.variant(problem)
        q, scale = fold_sign(q, problem.effective_scale)
        q, k, v = (copyable(x) for x in (q, k, v))
        if k.stride(2) != v.stride(2):
            k, v = (contiguous_copy(x) for x in (k, v))
        if out is None:
            out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        with torch.cuda.device(q.device):
            self.kernel(problem)[grid(problem, variant.tile)](
                *arguments(q, k, v, out, problem, scale, variant), num_warps=variant.warps.number
            )
        return out

    def compile(self, problem, arch="sm_90"):
        from tutorial_lib import compiler

        if reason := self.unsupported(problem, arch):
            raise Unsupported(f"step {self.label}: {reason}")
        variant = self.variant(problem)
        q, k, v, o = (compiler.Placeholder(shape, problem.dtype) for shape in shapes(problem))
        compiled = compiler.compile_gluon(
            self.kernel(problem),
            arguments(q, k, v, o, problem, problem.effective_scale, variant),
            variant.warps.number,
            arch,
            variant.tile.scores,
        )
        return replace(
            compiled, kv_tiles=tiles_visited(problem, variant.tile), shared_clocks=self.shared_clocks(problem)
        )


def shapes(problem: Problem) -> list[tuple[int, ...]]:
    queries = (problem.batch, problem.heads, problem.seq_len_q, problem.head_dim)
    keys = (problem.batch, problem.kv_heads, problem.seq_len_kv, problem.head_dim)
    return [queries, keys, keys, queries]


def arguments(q, k, v, o, problem: Problem, scale: float, variant: Variant) -> tuple:
    """What a launch passes to ``fmha``; the scale is in base 2, because the hardware's exponential is."""
    strides = [tuple(x.stride()) for x in (q, k, v, o)]
    return (q, k, v, o, *strides, scale / math.log(2), problem.seq_len_q, problem.seq_len_kv, variant)


def copyable(x):
    """x, or a copy of it where its rows cannot be copied 16 bytes at a time."""
    even = all(stride % 16 == 0 for stride, length in zip(x.stride()[:3], x.shape) if length > 1)
    near = x.stride(2) < 2**23  # offsets inside a tile are 32-bit
    return x if even and near and x.stride(3) == 1 and x.data_ptr() % 16 == 0 else contiguous_copy(x)


def contiguous_copy(x):
    import torch

    return x.clone(memory_format=torch.contiguous_format)


@gluon.jit
def copy_rows(shared, pointer, stride, first, limit, variant: gl.constexpr, guard: gl.constexpr):
    """Begin to copy rows [first, first + tile) to shared memory; with guard, rows from limit on become zero."""
    row = gl.arange(0, shared.shape[0], gl.SliceLayout(1, variant.copy))
    column = gl.arange(0, shared.shape[1], gl.SliceLayout(0, variant.copy))
    first = gl.to_tensor(first)
    source = (pointer + first.to(gl.int64) * stride) + (row[:, None] * stride + column[None, :])
    if guard:
        async_copy.async_copy_global_to_shared(shared, source, mask=(row < limit - first)[:, None])
    else:
        async_copy.async_copy_global_to_shared(shared, source)


@gluon.jit
def exp2(x):
    """2^x, with results below 2^-126 flushed to zero: MUFU.EX2 and nothing around it."""
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def hide(scores, first_query, first_key, seq_len_kv, variant: gl.constexpr):
    """Scores [query, key] with minus infinity where a query must not see a key, or there is no key."""
    query = first_query + gl.arange(0, scores.shape[0], gl.SliceLayout(1, variant.accumulator))
    key = first_key + gl.arange(0, scores.shape[1], gl.SliceLayout(0, variant.accumulator))
    if variant.causal:
        scores = gl.where(key[None, :] <= query[:, None], scores, float("-inf"))
    if variant.ragged:
        scores = gl.where((key < seq_len_kv)[None, :], scores, float("-inf"))
    return scores


@gluon.jit
def softmax(scores, row_max, scale):
    """One step of the online softmax in base 2: weights [query, key], correction [query], new maximum [query]."""
    new_max = gl.maximum(row_max, gl.max(scores, 1) * scale)
    return exp2(scores * scale - new_max[:, None]), exp2(row_max - new_max), new_max


@gluon.jit
def sum_own(weights):
    """Sums [query, 4] of what each of the four lanes that share a row holds of it; no lane asks another."""
    eights = gl.reshape(weights, [weights.shape[0], weights.shape[1] // 8, 4, 2])  # of 8 columns a lane has 2
    return gl.sum(gl.sum(eights, 3), 1)


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
def tiles_to_visit(first_query, seq_len_kv, variant: gl.constexpr):
    """(whole, end): tiles of keys [0, whole) need no mask, tiles [whole, end) do."""
    TILE_KEY: gl.constexpr = variant.tile.key
    whole = seq_len_kv // TILE_KEY
    end = gl.cdiv(seq_len_kv, TILE_KEY)
    if variant.causal:
        whole = gl.minimum(whole, first_query // TILE_KEY)
        end = gl.minimum(end, gl.cdiv(first_query + variant.tile.query, TILE_KEY))
    return whole, end


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


@gluon.jit(do_not_specialize=["seq_len_q", "seq_len_kv"])
def fmha(Q, K, V, Out, q_strides, k_strides, v_strides, o_strides, scale, seq_len_q, seq_len_kv, variant: gl.constexpr):
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
    BUFFERS: gl.constexpr = 1 if variant.share_keys_values else STAGES
    keys = ()
    values = ()
    for _ in gl.static_range(PANELS):
        keys = keys + (gl.allocate_shared_memory(dtype, [BUFFERS, TILE_KEY, COLUMNS], variant.shared),)
        values = values + (gl.allocate_shared_memory(dtype, [BUFFERS, TILE_KEY, COLUMNS], variant.shared),)
    query = ()
    for c in gl.static_range(PANELS):
        if variant.query_in_registers:
            panel = keys[c].index(0)
        else:
            panel = gl.allocate_shared_memory(dtype, [TILE_QUERY, COLUMNS], variant.shared)
        copy_rows(panel, Q + c * COLUMNS, q_strides[2], first_query, seq_len_q, variant, True)
        query = query + (panel,)
    if variant.query_in_registers:
        async_copy.commit_group()
        async_copy.wait_group(0)
        barrier()
        q = ()
        for c in gl.static_range(PANELS):
            q = q + (query[c].load(variant.left),)
        barrier()  # all warps have read Q before K overwrites it

    # --- copies that run ahead of the loop; a tile past the end is the last one again, which nobody reads ---
    if variant.share_keys_values:
        copy_panels(keys, 0, K, row_stride, 0, seq_len_kv, variant, variant.ragged)
        async_copy.commit_group()
    else:
        for n in gl.static_range(STAGES):
            copy_panels(keys, n, K, row_stride, gl.minimum(n, end - 1), seq_len_kv, variant, variant.ragged)
            copy_panels(values, n, V, row_stride, gl.minimum(n, end - 1), seq_len_kv, variant, variant.ragged)
            async_copy.commit_group()

    row_max = gl.full([TILE_QUERY], float("-inf"), gl.float32, ROWS)
    if variant.defer_sum:
        row_sum = sum_own(gl.full([TILE_QUERY, TILE_KEY], 0.0, gl.float32, MMA))
    else:
        row_sum = gl.full([TILE_QUERY], 0.0, gl.float32, ROWS)
    accumulators = ()  # not yet normalised
    for _ in gl.static_range(PANELS):
        accumulators = accumulators + (gl.full([TILE_QUERY, COLUMNS], 0.0, gl.float32, MMA),)

    # Two loops from one text: over whole tiles, and over those that need the mask.
    for masked in gl.static_range(2 if variant.causal or variant.ragged else 1):
        for j in range(whole if masked else 0, end if masked else whole):
            # --- wait for this tile ---
            if variant.share_keys_values:
                stage = 0
                async_copy.wait_group(0)
                barrier()
                copy_panels(values, 0, V, row_stride, j, seq_len_kv, variant, variant.ragged)
                async_copy.commit_group()
            else:
                stage = j % STAGES
                async_copy.wait_group(STAGES - 1)
                barrier()

            # --- scores: QK product ---
            scores = gl.full([TILE_QUERY, TILE_KEY], 0.0, gl.float32, MMA)
            for c in gl.static_range(PANELS):
                k = keys[c].index(stage).permute((1, 0)).load(variant.right)
                if variant.query_in_registers:
                    scores = mma_v2(q[c], k, scores)
                else:
                    scores = mma_v2(query[c].load(variant.left), k, scores)
            if masked:
                scores = hide(scores, first_query, j * TILE_KEY, seq_len_kv, variant)

            # --- online softmax ---
            weights, correction, row_max = softmax(scores, row_max, scale)
            if variant.defer_sum:
                own = gl.convert_layout(correction, gl.SliceLayout(1, row_sum.type.layout))
                row_sum = row_sum * own[:, None] + sum_own(weights)
            else:
                row_sum = row_sum * correction + gl.sum(weights, 1)
            weights = gl.convert_layout(weights.to(dtype), variant.left)

            # --- output: PV product ---
            if variant.share_keys_values:
                async_copy.wait_group(0)
                barrier()
                copy_panels(keys, 0, K, row_stride, gl.minimum(j + 1, end - 1), seq_len_kv, variant, variant.ragged)
                async_copy.commit_group()
            updated = ()
            for c in gl.static_range(PANELS):
                v = values[c].index(stage).load(variant.right)
                updated = updated + (mma_v2(weights, v, accumulators[c] * correction[:, None]),)
            accumulators = updated

            # --- all warps have read this tile: begin to copy a later one into its place ---
            if not variant.share_keys_values:
                barrier()
                later = gl.minimum(j + STAGES, end - 1)
                copy_panels(keys, stage, K, row_stride, later, seq_len_kv, variant, variant.ragged)
                copy_panels(values, stage, V, row_stride, later, seq_len_kv, variant, variant.ragged)
                async_copy.commit_group()

    # --- normalise and store; rows past the end are dropped ---
    async_copy.wait_group(0)
    if variant.defer_sum:
        row_sum = gl.convert_layout(gl.sum(row_sum, 1), ROWS)
    for c in gl.static_range(PANELS):
        o = accumulators[c] * (1.0 / row_sum)[:, None]
        store_rows(Out + c * COLUMNS * o_strides[3], o, o_strides[2], o_strides[3], first_query, seq_len_q, variant)
