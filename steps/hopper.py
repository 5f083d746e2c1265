"""The shared skeleton of the Hopper steps: TMA fetches tiles, and warp groups multiply straight from shared memory.

A Hopper SM has two engines that the Gluon skeleton of ``steps/gluon.py`` cannot use. TMA copies a whole tile when one
thread asks it to, and reports to an mbarrier in shared memory. ``wgmma`` lets four warps together multiply 64 rows by a
tile that stays in shared memory, and returns at once: the result is waited for later. What follows from them, warps
with roles, products that run under the softmax, blocks that never end, is FlashAttention-3's (Shah et al. 2024,
https://arxiv.org/abs/2407.08608). The instructions are in the PTX ISA under "wgmma", "cp.async.bulk.tensor" and
"mbarrier"; no architecture but sm_90 has wgmma.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from steps import exponential
from steps.fused import FusedStep, hole, tiles_visited
from steps.gluon import barrier, contiguous_copy, exp2, hide, shapes, softmax, sum_own, tiles_to_visit
from steps.order import NATURAL, Order
from steps.step import Unsupported
from steps.tiles import Tile
from tutorial_lib.problem import BYTES_PER_ELEMENT, Problem, fold_sign

ROWS = 64  # of queries that a warp group multiplies at a time: wgmma's M
GROUP_WARPS = 4  # of a warp group
PRODUCER_REGISTERS = 24  # the least that setmaxnreg can leave
MOST_REGISTERS = 240  # with which two groups of 128 threads and the producer's four warps still share 65536
MOST_LAZY = 15.0  # float16 ends before 2^16
ALWAYS, WHERE_IT_PAYS, AT_MAXIMA = "always", "where it pays", "at the maxima"
THREE_GROUPS_REGISTERS = 160  # three groups of 128 threads and the producer's four warps share 65536


@dataclass(frozen=True)
class Variant:
    """What a kernel is compiled for, and the layouts that follow: all of it is constant in the compiled code."""

    tile: Tile
    head_dim: int
    group_size: int
    causal: bool
    ragged: bool  # the last tile of keys is not full
    groups: int  # warp groups that compute, of ROWS queries each
    stages: int
    producer: bool
    registers: int
    ping_pong: bool
    overlap: bool
    persistent: bool
    linked: bool
    own_output: bool  # the output has its own place in shared memory, and not that of Q
    half_output: bool  # and that for one half at a time
    own_end: bool
    lean_sum: bool
    half_query: bool  # the first half of head_dim of Q stays in registers; never where linked
    early_query: bool
    late_wait: Literal["maxima", "correction", "softmax"] | None  # behind what the wait for the PV product is held
    diagonal_first: bool
    polynomial: int
    lazy: float

    @property
    def parts(self) -> int:
        """Into how many parts the queries of a block fall: each has its warps, which run for themselves."""
        return self.groups if self.producer else 1

    @property
    def rows(self) -> int:
        """Queries of a part."""
        return self.tile.query // self.parts

    @property
    def warps(self) -> int:
        """Warps of a part."""
        return GROUP_WARPS * self.groups // self.parts

    @property
    def query_stages(self) -> int:
        """Tiles of queries that shared memory holds."""
        return 2 if self.linked else 1

    @property
    def exponentials(self) -> str:
        """PTX for the exponentials, where some are polynomials."""
        return exponential.ptx(self.polynomial)

    @property
    def output_columns(self) -> int:
        """Columns of the output that are stored at once."""
        return self.head_dim // 2 if self.half_output else self.head_dim

    @property
    def workers(self) -> list[int]:
        """Warps of every part but the first, and of the producer."""
        return [self.warps] * (self.parts - 1) + [1]

    @property
    def budgets(self) -> list[int]:
        """Registers of a thread of those; the first part gets what is left, which is no less."""
        return [self.registers] * (self.parts - 1) + [PRODUCER_REGISTERS]

    @property
    def accumulator(self) -> gl.NVMMADistributedLayout:
        """Scores [query, key], as wgmma leaves them in registers: a warp has 16 rows."""
        return gl.NVMMADistributedLayout([3, 0], [self.warps, 1], [16, self.tile.key, 16])

    @property
    def output(self) -> gl.NVMMADistributedLayout:
        """Outputs [query, head_dim]."""
        return gl.NVMMADistributedLayout([3, 0], [self.warps, 1], [16, self.head_dim, 16])

    @property
    def weights(self) -> gl.DotOperandLayout:
        """The first factor of the PV product, which comes from registers."""
        return gl.DotOperandLayout(0, self.output, 2)

    @property
    def shared(self) -> gl.NVMMASharedLayout:
        """Tiles in shared memory, swizzled as TMA writes and wgmma reads them."""
        return gl.NVMMASharedLayout(min(128, self.head_dim * BYTES_PER_ELEMENT), 8 * BYTES_PER_ELEMENT, rank=4)


@dataclass(frozen=True, kw_only=True)
class HopperStep(FusedStep):
    """A fused kernel for sm_90 in Gluon: ``fmha`` below with these holes filled.

    producer: a warp of its own asks for tiles of K and V, and warp groups of ROWS queries each do nothing but compute;
    without it all warps share one role. registers: of a thread that computes, where there is a producer.
    ping_pong: the two warp groups issue their QK products in turn.
    overlap: the QK product of a tile and the PV product of the tile before are begun together, before the softmax.
    order: which block computes which tiles of queries. linked: the first QK product of the next tile of queries runs
    under the end of this one, where shared memory has room. third_group: three warp groups compute at head_dim 64.
    turns: those three issue their products in turn. own_end: a part ends at the last tile of keys that it sees.
    half_output: at head_dim 256 the output leaves in halves, from a place of its own. lean_sum: up to head_dim 128 the
    lanes of a row add their sums at the end. half_query: at head_dim 256 half of Q stays in registers. early_query: and
    its place is free for the next tile of queries as soon as the last QK product has read it.

    late_wait: where the wait for the PV product stays in the machine code, too. ALWAYS: behind the softmax;
    WHERE_IT_PAYS: that at head_dim 128 with a causal mask; AT_MAXIMA: behind the maxima and, up to head_dim 128, the
    correction, and so before the exponentials; None: where the compiler moves it to. diagonal_first: at head_dim 256
    with a causal mask the tiles of keys are visited from the last, which the mask cuts, to the first.

    Two that no step fills, because they were tried and help nowhere (``steps/trials.py``): polynomial: of eight
    exponentials, how many are a polynomial. lazy: the output is rescaled only when some maximum grew by more than
    this, in powers of two.

    Raises ValueError for holes that do not go together.
    """

    producer: bool = hole(default=False, switches=("producer",))
    registers: int = hole(default=168)
    ping_pong: bool = hole(default=False, switches=("ping_pong",))
    overlap: bool = hole(default=False, switches=("overlap",))
    order: Order = hole(default=NATURAL, switches=("persistent", "own_output"))
    linked: bool = hole(default=False, switches=("linked",))
    third_group: bool = hole(default=False)
    turns: bool = hole(default=False, switches=("ping_pong",))
    own_end: bool = hole(default=False, switches=("own_end",))
    half_output: bool = hole(default=False, switches=("half_output",))
    lean_sum: bool = hole(default=False, switches=("lean_sum",))
    half_query: bool = hole(default=False, switches=("half_query",))
    early_query: bool = hole(default=False, switches=("early_query",))
    late_wait: str | None = hole(default=None, switches=("late_wait",))
    diagonal_first: bool = hole(default=False, switches=("diagonal_first",))
    polynomial: int = hole(default=0, switches=("polynomial",))
    lazy: float = hole(default=0.0, switches=("lazy",))

    backend: ClassVar[str] = "hopper"
    runs_on_cpu: ClassVar[bool] = False
    head_dims: ClassVar[tuple[int, ...]] = (32, 64, 128, 256)

    def __post_init__(self):
        roles = {"ping_pong": self.ping_pong, "overlap": self.overlap, "third_group": self.third_group}
        roles["order"] = self.order.persistent
        for name, asked in roles.items():
            if asked and not self.producer:
                raise ValueError(f"{name} takes warps with roles: set producer=True")
        if self.registers % 8 or not PRODUCER_REGISTERS <= self.registers <= MOST_REGISTERS:
            raise ValueError(
                f"registers must be a multiple of 8 from {PRODUCER_REGISTERS} to {MOST_REGISTERS}, got {self.registers}"
            )
        if self.ping_pong and (self.overlap or self.third_group):
            raise ValueError("ping_pong is for two warp groups that wait for every product: no overlap, no third_group")
        if self.turns and not self.third_group:
            raise ValueError("turns are for three warp groups: set third_group=True")
        if (self.own_end or self.lean_sum) and not self.overlap:
            raise ValueError("own_end and lean_sum are written for overlap=True")
        if (self.polynomial or self.lazy or self.late_wait) and not self.overlap:
            raise ValueError("polynomial, lazy and late_wait are written for overlap=True")
        if self.late_wait not in (None, ALWAYS, WHERE_IT_PAYS, AT_MAXIMA):
            known = f"None, {ALWAYS!r}, {WHERE_IT_PAYS!r} or {AT_MAXIMA!r}"
            raise ValueError(f"late_wait must be {known}, got {self.late_wait!r}")
        if not 0 <= self.polynomial <= exponential.PACK:
            raise ValueError(f"polynomial must be from 0 to {exponential.PACK}, got {self.polynomial}")
        if not 0 <= self.lazy <= MOST_LAZY:
            raise ValueError(
                f"lazy must be from 0 to {MOST_LAZY:g}, for 16-bit weights to hold 2^lazy, got {self.lazy:g}"
            )
        if self.half_output and not self.order.persistent:
            raise ValueError("half_output is for blocks that stay, order=DEALT")
        if (self.half_query or self.early_query) and not (self.overlap and self.half_output):
            raise ValueError("half_query and early_query are written for overlap=True, half_output=True")
        if self.diagonal_first and not (self.own_end and self.order.persistent):
            raise ValueError("diagonal_first is written for own_end=True and blocks that stay, order=DEALT")
        if self.order.counted or (self.order.section_bytes and not self.order.persistent):
            raise ValueError("this skeleton numbers its blocks by themselves: order must be NATURAL or DEALT")
        if self.linked and not (self.overlap and self.order.persistent):
            raise ValueError("linked takes overlap=True and blocks that stay, order=DEALT")

    def unsupported(self, problem: Problem, target: str) -> str | None:
        if reason := super().unsupported(problem, target):
            return reason
        if target == "cpu":
            return "Gluon has no interpreter: without a GPU this step compiles, and does not run"
        if target != "sm_90":
            return f"made of wgmma, which sm_90 alone has, not {target}"
        return None

    def wait_behind(self, problem: Problem) -> str | None:
        """Behind what part of the softmax the wait for the PV product is held; None: nothing holds it."""
        if self.late_wait == ALWAYS:
            return "softmax"
        if self.late_wait == WHERE_IT_PAYS:
            return "softmax" if problem.causal and problem.head_dim == 128 else None
        if self.late_wait == AT_MAXIMA:
            if problem.head_dim <= 128:
                return "correction"
            return "maxima" if problem.causal else None
        return None

    def variant(self, problem: Problem) -> Variant:
        """The constants that ``problem`` is compiled with."""
        wide = problem.head_dim > 128
        groups = 3 if self.third_group and problem.head_dim == 64 else 2
        tile = Tile(groups * ROWS, 64 if wide else 128)
        return Variant(
            tile=tile,
            head_dim=problem.head_dim,
            group_size=problem.group_size,
            causal=problem.causal,
            ragged=problem.seq_len_kv % tile.key != 0,
            groups=groups,
            stages=2,
            producer=self.producer,
            registers=self.registers if groups == 2 else THREE_GROUPS_REGISTERS,
            ping_pong=self.ping_pong or (self.turns and groups == 3),
            overlap=self.overlap,
            persistent=self.order.persistent,
            linked=self.linked and not wide,
            own_output=self.order.persistent and (not wide or self.half_output),
            half_output=self.half_output and wide,
            own_end=self.own_end and problem.causal,
            lean_sum=self.lean_sum and not wide,
            half_query=self.half_query and wide,
            early_query=self.early_query and wide,
            late_wait=self.wait_behind(problem),
            diagonal_first=self.diagonal_first and wide and problem.causal,
            polynomial=self.polynomial,
            lazy=self.lazy,
        )

    def run(self, problem, q, k, v, out):
        import torch

        variant = self.variant(problem)
        q, scale = fold_sign(q, problem.effective_scale)
        q, k, v = (x if describable(x) else contiguous_copy(x) for x in (q, k, v))
        o = out if out is not None and describable(out) else torch.empty(q.shape, dtype=q.dtype, device=q.device)
        with torch.cuda.device(q.device):
            blocks, order = self.order.blocks(problem, variant.tile, q.device)
            fmha[(blocks,)](*arguments(q, k, v, o, problem, scale, order, variant), num_warps=variant.warps)
        return o if out is None or o is out else out.copy_(o)

    def compile(self, problem, arch="sm_90"):
        from tutorial_lib import compiler

        if reason := self.unsupported(problem, arch):
            raise Unsupported(f"step {self.label}: {reason}")
        variant = self.variant(problem)
        q, k, v, o = (compiler.Placeholder(shape, problem.dtype) for shape in shapes(problem))
        order = [compiler.Placeholder((1,), "int32")] * 2
        compiled = compiler.compile_gluon(
            fmha,
            arguments(q, k, v, o, problem, problem.effective_scale, order, variant),
            variant.warps,
            arch,
            variant.tile.scores,
            compute_warps=GROUP_WARPS * variant.groups,
        )
        return replace(compiled, kv_tiles=tiles_visited(problem, variant.tile), compute_groups=variant.parts)


class Arrays(NamedTuple):
    """Q, K, V and the output in global memory, as TMA knows them: described by shape, strides and box."""

    query: object
    key: object
    value: object
    output: object


class Tiles(NamedTuple):
    """Tiles in shared memory. query: the parts of one tile or two; output: the parts of one; key, value: rings."""

    query: object
    key: object
    value: object
    output: object


class Barriers(NamedTuple):
    """mbarriers, one for every place of a tile: complete when TMA has filled it, and when all parts have used it."""

    query_ready: object
    query_free: object
    key_ready: object
    key_free: object
    value_ready: object
    value_free: object
    turns: object  # of the parts, where they go in turn


class Work(NamedTuple):
    """What is to be computed. order, starts: of tiles of queries, see ``steps.order``."""

    order: object
    starts: object
    heads: object
    tiles_a_head: object
    seq_len_kv: object


class Place(NamedTuple):
    """Which queries: first row of the tile of queries, head of K and V, batch; and how many keys there are."""

    row: object
    kv_head: object
    batch: object
    seq_len_kv: object


def describable(x) -> bool:
    """Whether TMA can describe the tensor: rows of 16-byte pieces, every stride a multiple of 16 bytes."""
    even = all(stride > 0 and stride % 8 == 0 for stride, length in zip(x.stride()[:3], x.shape) if length > 1)
    return even and x.stride(3) == 1 and x.data_ptr() % 16 == 0


def arguments(q, k, v, o, problem: Problem, scale: float, order, variant: Variant) -> tuple:
    """What a launch passes to ``fmha``; the scale is in base 2, because the hardware's exponential is.

    order: order and starts, see ``steps.order``; what follows them is not read here.
    """
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    def described(x, rows: int, columns: int = problem.head_dim):
        # A stride along an axis of length 1 is never used, and may be anything but what TMA takes.
        strides = [stride if n > 1 else problem.head_dim for stride, n in zip(x.stride()[:3], x.shape)]
        box = [1, 1, rows, columns]
        return TensorDescriptor(x, list(x.shape), [*strides, 1], box, variant.shared)

    keys, queries = variant.tile.key, variant.rows
    return (
        described(q, queries),
        described(k, keys),
        described(v, keys),
        described(o, queries, variant.output_columns),
        *order[:2],
        scale / math.log(2),
        problem.seq_len_kv,
        problem.heads,
        -(-problem.seq_len_q // variant.tile.query),
        variant,
    )


@gluon.jit
def position(number, work):
    """(head, batch) and index of a tile of queries in its head, from the tile's number."""
    head = number // work.tiles_a_head
    return head % work.heads, head // work.heads, number % work.tiles_a_head


@gluon.jit
def own_tiles(work, variant: gl.constexpr):
    """The part [first, last) of the order that is this block's."""
    first = gl.program_id(0)
    last = first + 1
    if variant.persistent:
        last = gl.load(work.starts + first + 1)
        first = gl.load(work.starts + first)
    return first, last


@gluon.jit
def numbered(work, n, variant: gl.constexpr):
    """The number of the n-th tile of queries in the order."""
    if variant.persistent:
        n = gl.load(work.order + n)
    return n


@gluon.jit
def fetch_queries(arrays, tiles, barriers, head, batch, row, turn, variant: gl.constexpr):
    """Ask TMA for a tile of queries, part by part; the barrier completes when all of it is there."""
    PARTS: gl.constexpr = variant.parts
    stage = turn % variant.query_stages
    ready = barriers.query_ready.index(stage)
    mbarrier.expect(ready, variant.tile.query * variant.head_dim * tiles.query.dtype.primitive_bitwidth // 8)
    for part in gl.static_range(PARTS):
        at = [batch, head, row + part * variant.rows, 0]
        tma.async_copy_global_to_shared(arrays.query, at, ready, tiles.query.index(stage * PARTS + part))


@gluon.jit
def fetch(array, ring, ready, head, batch, row, stage, variant: gl.constexpr):
    """Ask TMA for rows [row, row + tile.key) of keys or values, into a place of their ring."""
    mbarrier.expect(ready.index(stage), variant.tile.key * variant.head_dim * ring.dtype.primitive_bitwidth // 8)
    tma.async_copy_global_to_shared(array, [batch, head, row, 0], ready.index(stage), ring.index(stage))


@gluon.jit
def produce(arrays, tiles, barriers, work, variant: gl.constexpr):
    """The producer: fetches the tiles of this block, each as soon as its place is free."""
    TILE_KEY: gl.constexpr = variant.tile.key
    turn = 0  # tiles of keys so far: tells the place in the ring, and how often it was filled
    query_turn = 0
    first, last = own_tiles(work, variant)
    for n in range(first, last):
        head, batch, i = position(numbered(work, n, variant), work)
        row = i * variant.tile.query
        _, end = tiles_to_visit(row, work.seq_len_kv, variant)
        free = barriers.query_free.index(query_turn % variant.query_stages)
        mbarrier.wait(free, query_turn // variant.query_stages & 1 ^ 1)
        fetch_queries(arrays, tiles, barriers, head, batch, row, query_turn, variant)
        query_turn += 1  # noqa: SIM113
        kv_head = head // variant.group_size
        for j in range(end):
            key = (end - 1 - j if variant.diagonal_first else j) * TILE_KEY
            stage = turn % variant.stages
            used = turn // variant.stages & 1 ^ 1
            mbarrier.wait(barriers.key_free.index(stage), used)
            fetch(arrays.key, tiles.key, barriers.key_ready, kv_head, batch, key, stage, variant)
            mbarrier.wait(barriers.value_free.index(stage), used)
            fetch(arrays.value, tiles.value, barriers.value_ready, kv_head, batch, key, stage, variant)
            turn += 1


@gluon.jit
def issue_scores(query, keys, turn, variant: gl.constexpr):
    """Begin the QK product [query, key]; K lies in shared memory, and so does Q, or the half that is not held."""
    none = gl.full([variant.rows, variant.tile.key], 0.0, gl.float32, variant.accumulator)
    key = keys.index(turn % variant.stages).reshape([variant.tile.key, variant.head_dim])
    if variant.half_query:
        HALF: gl.constexpr = variant.head_dim // 2
        held, rest = query
        scores = warpgroup_mma(held, key.slice(0, HALF, 1).permute((1, 0)), none, use_acc=False, is_async=True)
        return warpgroup_mma(rest, key.slice(HALF, HALF, 1).permute((1, 0)), scores, is_async=True)
    else:
        return warpgroup_mma(query, key.permute((1, 0)), none, use_acc=False, is_async=True)


@gluon.jit
def issue_output(weights, values, turn, accumulator, variant: gl.constexpr):
    """Begin to add the PV product to the output; V lies in shared memory."""
    value = values.index(turn % variant.stages).reshape([variant.tile.key, variant.head_dim])
    return warpgroup_mma(weights, value, accumulator, is_async=True)


@gluon.jit
def await_tile(ready, turn, stages: gl.constexpr):
    """Wait until TMA has brought the turn-th tile of a ring."""
    mbarrier.wait(ready.index(turn % stages), turn // stages & 1)


@gluon.jit
def release(free, turn, stages: gl.constexpr):
    """This part has read the turn-th tile of a ring."""
    mbarrier.arrive(free.index(turn % stages), count=1)


@gluon.jit
def take_turn(barriers, n, part: gl.constexpr, variant: gl.constexpr):
    """Where parts go in turn: wait for this part's n-th. Part 0 has the first."""
    if variant.ping_pong:
        FIRST: gl.constexpr = 1 if part == 0 else 0
        mbarrier.wait(barriers.turns.index(part), n & 1 ^ FIRST)


@gluon.jit
def pass_turn(barriers, part: gl.constexpr, variant: gl.constexpr):
    """Where parts go in turn: it is the next one's."""
    if variant.ping_pong:
        mbarrier.arrive(barriers.turns.index((part + 1) % variant.parts), count=1)


@gluon.jit
def by_row(x, variant: gl.constexpr):
    """One number a row, from the layout of the scores to that of the output."""
    return gl.convert_layout(x, gl.SliceLayout(1, variant.output))[:, None]


@gluon.jit
def attend(query, arrays, tiles, barriers, place, turn, scale, part: gl.constexpr, variant: gl.constexpr):
    """Attention of a part's queries to the keys that they see, a tile after the other.

    Returns (accumulator [query, head_dim], row_sum [query], turn).
    """
    TILE_KEY: gl.constexpr = variant.tile.key
    STAGES: gl.constexpr = variant.stages
    ROW: gl.constexpr = gl.SliceLayout(1, variant.accumulator)
    row_max = gl.full([variant.rows], float("-inf"), gl.float32, ROW)
    row_sum = gl.full([variant.rows], 0.0, gl.float32, ROW)
    accumulator = gl.full([variant.rows, variant.head_dim], 0.0, gl.float32, variant.output)
    first_query = place.row + part * variant.rows
    whole, end = tiles_to_visit(place.row, place.seq_len_kv, variant)
    # Two loops from one text: over whole tiles, and over those that need the mask.
    for masked in gl.static_range(2 if variant.causal or variant.ragged else 1):
        for j in range(whole if masked else 0, end if masked else whole):
            # --- scores: QK product; with ping-pong when it is this part's turn ---
            await_tile(barriers.key_ready, turn, STAGES)
            take_turn(barriers, turn, part, variant)
            scores = issue_scores(query, tiles.key, turn, variant)
            scores = warpgroup_mma_wait(0, deps=[scores])
            pass_turn(barriers, part, variant)
            if variant.producer:
                release(barriers.key_free, turn, STAGES)
            if masked:
                scores = hide(scores, first_query, j * TILE_KEY, place.seq_len_kv, variant)

            # --- online softmax ---
            weights, correction, row_max = softmax(scores, row_max, scale)
            row_sum = row_sum * correction + gl.sum(weights, 1)
            accumulator = accumulator * by_row(correction, variant)
            weights = gl.convert_layout(weights.to(tiles.key.dtype), variant.weights)

            # --- output: PV product ---
            await_tile(barriers.value_ready, turn, STAGES)
            accumulator = issue_output(weights, tiles.value, turn, accumulator, variant)
            accumulator = warpgroup_mma_wait(0, deps=[accumulator])
            if variant.producer:
                release(barriers.value_free, turn, STAGES)
            else:
                barrier()  # all warps have read this tile: fetch a later one into its place
                if j + STAGES < end:
                    fetch_both(arrays, tiles, barriers, place, j + STAGES, turn % STAGES, variant)
            turn += 1
    return accumulator, row_sum, turn


@gluon.jit
def fetch_both(arrays, tiles, barriers, place, j, stage, variant: gl.constexpr):
    """Without a producer: ask for the j-th tile of keys and of values."""
    row = j * variant.tile.key
    fetch(arrays.key, tiles.key, barriers.key_ready, place.kv_head, place.batch, row, stage, variant)
    fetch(arrays.value, tiles.value, barriers.value_ready, place.kv_head, place.batch, row, stage, variant)


@gluon.jit
def hide_in_part(scores, j, whole, first_query, seq_len_kv, variant: gl.constexpr):
    """Scores of tile j with the mask where it needs one: a branch that whole tiles jump over.

    With weights alive beside the scores, a second loop would cost a copy of the weights every turn.
    """
    if variant.causal or variant.ragged:  # noqa: SIM102 - a question for the compiler, and one for the GPU
        if j >= whole:
            scores = hide(scores, first_query, j * variant.tile.key, seq_len_kv, variant)
    return scores


@gluon.jit
def raise_maxima(scores, row_max, scale, variant: gl.constexpr):
    """The new maximum [query] in base 2; with lazy the old, unless some grew by more than that."""
    new_max = gl.maximum(row_max, gl.max(scores, 1) * scale)
    if variant.lazy > 0:  # noqa: SIM102
        if gl.max(new_max - row_max, 0) <= variant.lazy:
            new_max = row_max
    return new_max


@gluon.jit
def weigh(scores, row_max, scale, variant: gl.constexpr):
    """Weights [query, key]: 2^(score - maximum), some of them from a polynomial where that is asked for."""
    exponents = scores * scale - row_max[:, None]
    if variant.polynomial > 0:
        PTX: gl.constexpr = variant.exponentials
        weights = gl.inline_asm_elementwise(
            PTX, exponential.CONSTRAINTS, [exponents], dtype=gl.float32, is_pure=True, pack=exponential.PACK
        )
    else:
        weights = exp2(exponents)
    return weights


@gluon.jit
def rescale(accumulator, correction, variant: gl.constexpr):
    """The output so far, in terms of the new maxima; with lazy not when all are as they were."""
    if variant.lazy > 0:
        if gl.min(correction, 0) < 1.0:
            accumulator = accumulator * by_row(correction, variant)
    else:
        accumulator = accumulator * by_row(correction, variant)
    return accumulator


@gluon.jit
def add_up(row_sum, correction, weights, variant: gl.constexpr):
    """The sums so far and those of a tile: of whole rows, or with lean_sum of what each lane has of them."""
    if variant.lean_sum:
        own = gl.convert_layout(correction, gl.SliceLayout(1, row_sum.type.layout))
        row_sum = row_sum * own[:, None] + sum_own(weights)
    else:
        row_sum = row_sum * correction + gl.sum(weights, 1)
    return row_sum


@gluon.jit
def all_scores_read(barriers, query_turn, last, variant: gl.constexpr):
    """With early_query: if this product was the last that reads this part's Q, its place is free."""
    if variant.early_query:
        mbarrier.arrive(barriers.query_free.index(query_turn % variant.query_stages), count=1, pred=last)


@gluon.jit
def own_tiles_to_visit(place, part: gl.constexpr, variant: gl.constexpr):
    """(tiles of keys that a part sees whole, end of those it visits, end of those that any part does)."""
    whole, end = tiles_to_visit(place.row, place.seq_len_kv, variant)
    own_end = end
    if variant.own_end:
        first_query = place.row + part * variant.rows
        whole = gl.minimum(first_query, place.seq_len_kv) // variant.tile.key
        own_end = gl.minimum(end, gl.cdiv(first_query + variant.rows, variant.tile.key))
    return whole, own_end, end


@gluon.jit
def pass_over(barriers, place, turn, part: gl.constexpr, variant: gl.constexpr):
    """With diagonal_first: over the first tile of keys, where only a later part sees it. Returns the turn of the next.

    A place may be given back only once it was filled: two arrivals of one part must not count as those of two.
    """
    if variant.diagonal_first:
        _, own_end, end = own_tiles_to_visit(place, part, variant)
        if own_end < end:
            await_tile(barriers.key_ready, turn, variant.stages)
            release(barriers.key_free, turn, variant.stages)
            await_tile(barriers.value_ready, turn, variant.stages)
            release(barriers.value_free, turn, variant.stages)
            turn += 1
    return turn


@gluon.jit
def hold(barriers, turn, variant: gl.constexpr):
    """Keep what follows behind what is in front: a second wait for a tile of values, which has long arrived.

    ptxas orders the instructions of straight code as it likes. Over this, which is a loop, it moves nothing.
    """
    await_tile(barriers.value_ready, turn, variant.stages)


@gluon.jit
def attend_overlapped(
    scores, query, tiles, barriers, place, turn, query_turn, scale, part: gl.constexpr, variant: gl.constexpr
):
    """As ``attend``, with two products begun together, the softmax behind them, and then the wait for the second.

    Every turn issues the QK product of tile j and the PV product of tile j - 1, and waits for the first alone. Only
    then comes the softmax of tile j, and at its end, or where late_wait holds it, the wait for the second.

    scores: the QK product of the first tile, begun. The PV product of the last is begun and not waited for.

    Returns as ``attend``, and the turn of the tile whose PV product was begun: with own_end it may be the last but one.
    """
    STAGES: gl.constexpr = variant.stages
    ROW: gl.constexpr = gl.SliceLayout(1, variant.accumulator)
    row_max = gl.full([variant.rows], float("-inf"), gl.float32, ROW)
    accumulator = gl.full([variant.rows, variant.head_dim], 0.0, gl.float32, variant.output)
    first_query = place.row + part * variant.rows
    whole, own_end, end = own_tiles_to_visit(place, part, variant)

    # --- the first tile ---
    scores = warpgroup_mma_wait(0, deps=[scores])
    release(barriers.key_free, turn, STAGES)
    all_scores_read(barriers, query_turn, own_end <= 1, variant)
    if variant.diagonal_first:
        scores = hide(scores, first_query, (own_end - 1) * variant.tile.key, place.seq_len_kv, variant)
    else:
        scores = hide_in_part(scores, 0, whole, first_query, place.seq_len_kv, variant)
    row_max = raise_maxima(scores, row_max, scale, variant)
    weights = weigh(scores, row_max, scale, variant)
    row_sum = sum_own(weights) if variant.lean_sum else gl.sum(weights, 1)
    weights = gl.convert_layout(weights.to(tiles.key.dtype), variant.weights)

    for j in range(1, own_end):
        # --- issue: scores of this tile, output of the tile before ---
        await_tile(barriers.key_ready, turn + 1, STAGES)
        take_turn(barriers, turn - query_turn, part, variant)  # all tiles but the first of every tile of queries
        scores = issue_scores(query, tiles.key, turn + 1, variant)
        await_tile(barriers.value_ready, turn, STAGES)
        accumulator = issue_output(weights, tiles.value, turn, accumulator, variant)
        pass_turn(barriers, part, variant)
        scores = warpgroup_mma_wait(1, deps=[scores])
        release(barriers.key_free, turn + 1, STAGES)
        all_scores_read(barriers, query_turn, j == own_end - 1, variant)

        # --- online softmax, while the output is computed ---
        if not variant.diagonal_first:
            scores = hide_in_part(scores, j, whole, first_query, place.seq_len_kv, variant)
        new_max = raise_maxima(scores, row_max, scale, variant)
        if variant.late_wait == "maxima":
            hold(barriers, turn, variant)
            accumulator, new_max = warpgroup_mma_wait(0, deps=[accumulator, new_max])
        correction = exp2(row_max - new_max)
        if variant.late_wait == "correction":
            hold(barriers, turn, variant)
            accumulator, new_max, correction = warpgroup_mma_wait(0, deps=[accumulator, new_max, correction])
        row_max = new_max
        weights = weigh(scores, row_max, scale, variant)
        row_sum = add_up(row_sum, correction, weights, variant)
        if variant.late_wait == "softmax":
            hold(barriers, turn, variant)
            accumulator, weights = warpgroup_mma_wait(0, deps=[accumulator, weights])
        if not variant.late_wait:  # and ptxas may move it
            accumulator = warpgroup_mma_wait(0, deps=[accumulator])
        release(barriers.value_free, turn, STAGES)
        accumulator = rescale(accumulator, correction, variant)
        weights = gl.convert_layout(weights.to(tiles.key.dtype), variant.weights)
        turn += 1

    # --- a tile that only later parts see: there is at most one ---
    own_turn = turn
    if variant.own_end and not variant.diagonal_first:  # noqa: SIM102 - a question for the compiler, and one for the GPU
        if own_end < end:
            take_turn(barriers, turn - query_turn, part, variant)
            pass_turn(barriers, part, variant)
            turn += 1
            await_tile(barriers.key_ready, turn, STAGES)
            release(barriers.key_free, turn, STAGES)

    # --- the last tile's output ---
    await_tile(barriers.value_ready, own_turn, STAGES)
    accumulator = issue_output(weights, tiles.value, own_turn, accumulator, variant)
    return accumulator, row_sum, turn, own_turn


@gluon.jit
def part_of(queries, query_turn, part: gl.constexpr, variant: gl.constexpr):
    """A part's queries [query, head_dim] of the query_turn-th tile of queries."""
    index = query_turn % variant.query_stages * variant.parts + part
    return queries.index(index).reshape([variant.rows, variant.head_dim])


@gluon.jit
def to_multiply(query, variant: gl.constexpr):
    """A part's queries as the QK product takes them; with half_query (half in registers, the rest where it is)."""
    if variant.half_query:
        HALF: gl.constexpr = variant.head_dim // 2
        held = query.slice(0, HALF, 1).load(gl.DotOperandLayout(0, variant.accumulator, 2))
        return held, query.slice(HALF, HALF, 1)
    else:
        return query


@gluon.jit
def store(o, array, place, batch, head, row, column):
    """Hand columns of the output [query, column] to TMA, by way of their place in shared memory once that is free."""
    tma.store_wait(0)
    place.reshape(o.shape).store(o)
    fence_async_shared()
    tma.async_copy_shared_to_global(array, [batch, head, row, column], place)


@gluon.jit
def consume(arrays, tiles, barriers, work, scale, part: gl.constexpr, variant: gl.constexpr):
    """Warps that compute: a part of every tile of queries that is this block's."""
    STAGES: gl.constexpr = variant.stages
    QUERY_STAGES: gl.constexpr = variant.query_stages
    COLUMNS: gl.constexpr = variant.output_columns
    output = tiles.output.index(part)
    turn = 0  # tiles of keys so far
    query_turn = 0
    first, last = own_tiles(work, variant)
    if variant.linked:
        await_tile(barriers.query_ready, 0, QUERY_STAGES)
        await_tile(barriers.key_ready, 0, STAGES)
        scores = issue_scores(part_of(tiles.query, 0, part, variant), tiles.key, 0, variant)
    for n in range(first, last):
        head, batch, i = position(numbered(work, n, variant), work)
        place = Place(i * variant.tile.query, head // variant.group_size, batch, work.seq_len_kv)
        query = part_of(tiles.query, query_turn, part, variant)
        if not variant.linked:
            await_tile(barriers.query_ready, query_turn, QUERY_STAGES)
        query = to_multiply(query, variant)
        if variant.overlap:
            if not variant.linked:
                turn = pass_over(barriers, place, turn, part, variant)
                await_tile(barriers.key_ready, turn, STAGES)
                scores = issue_scores(query, tiles.key, turn, variant)
            accumulator, row_sum, turn, own_turn = attend_overlapped(
                scores, query, tiles, barriers, place, turn, query_turn, scale, part, variant
            )
        else:
            accumulator, row_sum, turn = attend(query, arrays, tiles, barriers, place, turn, scale, part, variant)
        if variant.own_output and not variant.early_query:
            release(barriers.query_free, query_turn, QUERY_STAGES)
        if variant.overlap:
            if variant.linked:
                # The first product for the next queries is issued behind the last for these, and runs while these are
                # stored. Behind the last queries of all it is issued in vain: a branch around it would wait for it.
                if n + 1 < last:
                    await_tile(barriers.query_ready, query_turn + 1, QUERY_STAGES)
                    await_tile(barriers.key_ready, turn + 1, STAGES)
                following = part_of(tiles.query, query_turn + 1, part, variant)
                scores = issue_scores(following, tiles.key, turn + 1, variant)
                accumulator = warpgroup_mma_wait(1, deps=[accumulator])
            else:
                accumulator = warpgroup_mma_wait(0, deps=[accumulator])
            release(barriers.value_free, own_turn, STAGES)
            if variant.own_end and not variant.diagonal_first:  # noqa: SIM102
                if own_turn < turn:
                    await_tile(barriers.value_ready, turn, STAGES)
                    release(barriers.value_free, turn, STAGES)
            turn += 1

        # --- normalise and store; TMA drops rows past the end ---
        if variant.lean_sum:
            row_sum = gl.convert_layout(gl.sum(row_sum, 1), gl.SliceLayout(1, variant.accumulator))
        o = (accumulator * by_row(1.0 / row_sum, variant)).to(tiles.query.dtype)
        row = place.row + part * variant.rows
        if variant.half_output:
            left, right = o.reshape([variant.rows, 2, COLUMNS]).permute((0, 2, 1)).split()
            store(left, arrays.output, output, batch, head, row, 0)
            store(right, arrays.output, output, batch, head, row, COLUMNS)
        else:
            store(o, arrays.output, output, batch, head, row, 0)
        if not variant.own_output:
            tma.store_wait(0)
            if variant.producer:
                release(barriers.query_free, query_turn, QUERY_STAGES)
        query_turn += 1  # noqa: SIM113
    if variant.linked:
        scores = warpgroup_mma_wait(0, deps=[scores])
    tma.store_wait(0)


@gluon.jit
def begin(arrays, tiles, barriers, work, variant: gl.constexpr):
    """Without a producer: ask for the queries and the first tiles of keys and values."""
    STAGES: gl.constexpr = variant.stages
    head, batch, i = position(gl.program_id(0), work)
    place = Place(i * variant.tile.query, head // variant.group_size, batch, work.seq_len_kv)
    _, end = tiles_to_visit(place.row, place.seq_len_kv, variant)
    fetch_queries(arrays, tiles, barriers, head, batch, place.row, 0, variant)
    for j in gl.static_range(STAGES):
        if j < end:
            fetch_both(arrays, tiles, barriers, place, j, j, variant)


@gluon.jit
def barrier_ring(length: gl.constexpr, arrivals: gl.constexpr):
    """As many mbarriers, each complete after so many arrivals."""
    barriers = gl.allocate_shared_memory(gl.int64, [length, 1], mbarrier.MBarrierLayout())
    for n in gl.static_range(length):
        mbarrier.init(barriers.index(n), count=arrivals)
    return barriers


@gluon.jit(do_not_specialize=["seq_len_kv", "heads", "tiles_a_head"])
def fmha(Q, K, V, Out, order, starts, scale, seq_len_kv, heads, tiles_a_head, variant: gl.constexpr):
    PARTS: gl.constexpr = variant.parts
    STAGES: gl.constexpr = variant.stages
    QUERY_STAGES: gl.constexpr = variant.query_stages
    QUERIES: gl.constexpr = [QUERY_STAGES * PARTS, 1, 1, variant.rows, variant.head_dim]
    KEYS: gl.constexpr = [STAGES, 1, 1, variant.tile.key, variant.head_dim]
    OUTPUTS: gl.constexpr = [PARTS, 1, 1, variant.rows, variant.output_columns]
    dtype: gl.constexpr = Q.dtype

    # --- shared memory ---
    queries = gl.allocate_shared_memory(dtype, QUERIES, variant.shared)
    keys = gl.allocate_shared_memory(dtype, KEYS, variant.shared)
    values = gl.allocate_shared_memory(dtype, KEYS, variant.shared)
    outputs = gl.allocate_shared_memory(dtype, OUTPUTS, variant.shared) if variant.own_output else queries
    tiles = Tiles(queries, keys, values, outputs)
    barriers = Barriers(
        barrier_ring(QUERY_STAGES, 1),
        barrier_ring(QUERY_STAGES, PARTS),
        barrier_ring(STAGES, 1),
        barrier_ring(STAGES, PARTS),
        barrier_ring(STAGES, 1),
        barrier_ring(STAGES, PARTS),
        barrier_ring(PARTS, 1),
    )
    fence_async_shared()  # TMA sees the barriers

    # --- who does what; the first part's warps are those that the block began with ---
    WORKERS: gl.constexpr = variant.workers
    BUDGETS: gl.constexpr = variant.budgets
    arrays = Arrays(Q, K, V, Out)
    work = Work(order, starts, heads, tiles_a_head, seq_len_kv)
    if not variant.producer:
        begin(arrays, tiles, barriers, work, variant)
        consume(arrays, tiles, barriers, work, scale, 0, variant)
    elif variant.parts == 2:
        gl.warp_specialize(
            [
                (consume, (arrays, tiles, barriers, work, scale, 0, variant)),
                (consume, (arrays, tiles, barriers, work, scale, 1, variant)),
                (produce, (arrays, tiles, barriers, work, variant)),
            ],
            WORKERS,
            BUDGETS,
        )
    else:
        gl.warp_specialize(
            [
                (consume, (arrays, tiles, barriers, work, scale, 0, variant)),
                (consume, (arrays, tiles, barriers, work, scale, 1, variant)),
                (consume, (arrays, tiles, barriers, work, scale, 2, variant)),
                (produce, (arrays, tiles, barriers, work, variant)),
            ],
            WORKERS,
            BUDGETS,
        )
