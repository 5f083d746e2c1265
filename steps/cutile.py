"""The shared skeleton of the cuTile steps: one fused attention kernel, with holes that the steps fill.

The algorithm is FlashAttention's (Dao et al. 2022, https://arxiv.org/abs/2205.14135, with the loop order of Dao
2023, https://arxiv.org/abs/2307.08691): a block owns one tile of query rows, walks over the tiles of keys and
values, and keeps for every row a running maximum, a running sum and an unnormalised output, so that the scores
never leave the chip.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import cuda.tile as ct
from cuda.tile.compilation import ArrayConstraint, CallingConvention, KernelSignature, ScalarConstraint

from steps.fused import FusedStep, grid, hole, tiles_visited
from steps.order import NATURAL, Order
from steps.step import Unsupported, target_of
from steps.tiles import Tile, found_for, tile_for
from tutorial_lib.problem import Problem, fold_sign
from tutorial_lib.results import Configuration

# Where tileiras 13.4 lets the blocks of a cluster fetch for each other; elsewhere a cluster's tile is one block's.
CLUSTERS = ("sm_90", "sm_100", "sm_103", "sm_107", "sm_110")


@dataclass(frozen=True)
class Latency:
    """Hints on how long a load will take, 1 (short) to 10 (long); None leaves it to the compiler.

    A longer latency makes the compiler fetch further ahead, into more shared memory.
    """

    key: int | None = None
    value: int | None = None


@dataclass(frozen=True)
class MaskLoop:
    """A loop of its own for the keys that the mask cuts.

    key: keys of a tile there. latency: hints for the loop over whole tiles, in place of the step's.
    """

    key: int
    latency: Latency


@dataclass(frozen=True)
class Variant:
    """What a kernel is compiled for. Everything here is a constant in the compiled code."""

    tile: Tile
    head_dim: int
    group_size: int
    causal: bool
    ragged: bool  # the last tile of keys is not full
    persistent: bool
    section: int  # heads of a section, where blocks are numbered so; 0: they are not
    ahead: bool
    alternating: bool
    one_loop: bool
    mask_loop: MaskLoop | None
    apart: bool
    counted: bool

    @property
    def lists(self) -> int:
        """How many lists of ``steps.order`` the kernel reads: order, starts, turns."""
        return 2 + self.one_loop if self.persistent and not self.counted else 0


@dataclass(frozen=True, kw_only=True)
class CuTileStep(FusedStep):
    """A fused kernel in cuTile: the skeleton below with these holes filled.

    load_key(K, batch, head, j, tile, head_dim, latency) -> [head_dim, tile.key]: the j-th tile of keys, transposed.
    softmax(scores, row_max, scale) -> weights, correction, row_max: one step of the online softmax; weights may be a
    tuple of equal pieces of the keys, and then the PV product is one of each.
    divide(accumulator, row_sum) -> output rows: the normalisation at the end.
    latency, occupancy: hints to the compiler; None leaves the choice to it. warps: as much, of those that compute.
    cluster: blocks that share a tile of queries and fetch K and V for each other; None: no cluster.
    order: which block computes which tiles of queries.
    tile: query rows and keys a block works on; None takes what ``steps.tiles`` has for the architecture.
    searched: tile, warps, cluster and occupancy are what a search found, where one is recorded.
    one_loop: blocks that stay go through the tiles of keys of all their tiles of queries in one loop.
    mask_loop: at head_dim 128, what the mask cuts is computed in narrower tiles of keys, in a loop of their own.
    apart: where there is no such loop, the output does not leave through Q's place in shared memory.

    Two that no step fills, because they were tried and do harm (``steps/trials.py``): ahead: the QK product of the next
    tile of keys is written before the softmax of this one. alternating: blocks that stay walk over K and V forwards and
    backwards in turn, where there is no mask.

    Raises ValueError for holes that do not go together.
    """

    load_key: Callable = hole()
    softmax: Callable = hole()
    divide: Callable = hole()
    latency: Latency = hole(default=Latency())
    occupancy: int | None = hole(default=None)
    warps: int | None = hole(default=None)
    cluster: int | None = hole(default=None)
    order: Order = hole(default=NATURAL, switches=("persistent", "section", "counted"))
    tile: Tile | None = hole(default=None)
    searched: bool = hole(default=False)
    one_loop: bool = hole(default=False, switches=("one_loop",))
    mask_loop: MaskLoop | None = hole(default=None, switches=("mask_loop",))
    apart: bool = hole(default=False, switches=("apart",))
    ahead: bool = hole(default=False, switches=("ahead",))
    alternating: bool = hole(default=False, switches=("alternating",))

    backend: ClassVar[str] = "cutile"
    head_dims: ClassVar[tuple[int, ...]] = (32, 64, 128, 256)

    def __post_init__(self):
        if (self.one_loop or self.alternating) and self.order.counted:
            raise ValueError("one_loop and alternating are written for blocks with lists, order=DEALT")
        if self.one_loop and not self.order.persistent:
            raise ValueError("one_loop is for blocks that stay, order=DEALT")
        if self.one_loop and (self.ahead or self.alternating or self.mask_loop):
            raise ValueError("ahead, alternating and mask_loop are written for a loop for every tile of queries")
        if self.mask_loop and (self.tile is None or self.mask_loop.key < 1 or self.tile.key % self.mask_loop.key):
            raise ValueError(f"mask_loop takes a tile whose keys its key divides, got {self.mask_loop} and {self.tile}")
        if self.mask_loop and (self.ahead or self.alternating):
            raise ValueError("ahead and alternating are written for one loop over whole tiles and those the mask cuts")

    def unsupported(self, problem: Problem, target: str) -> str | None:
        if reason := super().unsupported(problem, target):
            return reason
        if max(problem.seq_len_q, problem.seq_len_kv) * problem.heads * problem.head_dim >= 2**31:
            return "heads * seq_len * head_dim must be below 2^31 (cuTile holds strides in 32 bits)"
        if self.cluster and target not in (*CLUSTERS, "cpu"):
            return f"made of clusters that share what they fetch, which {', '.join(CLUSTERS)} have, not {target}"
        return None

    def configured(self, problem: Problem, arch: str) -> CuTileStep:
        """This step with the holes that a search decides filled for ``problem`` on ``arch``."""
        return configured_as(self, found_for(problem, arch) if self.searched else None)

    def variant(self, problem: Problem, arch: str) -> Variant:
        """The constants that ``problem`` is compiled with on ``arch``."""
        tile = self.tile or tile_for(arch, problem.head_dim)
        ragged = problem.seq_len_kv % tile.key != 0
        mask_loop = self.mask_loop if problem.head_dim == 128 and (problem.causal or ragged) else None
        return Variant(
            tile=tile,
            head_dim=problem.head_dim,
            group_size=problem.group_size,
            causal=problem.causal,
            ragged=ragged,
            persistent=self.order.persistent,
            section=self.order.section(problem),
            ahead=self.ahead,
            alternating=self.alternating and self.order.persistent and not problem.causal and not ragged,
            one_loop=self.one_loop,
            mask_loop=mask_loop,
            apart=self.apart and mask_loop is None,  # with two loops there is no room for it
            counted=self.order.counts(problem),
        )

    def kernel_function(self, variant: Variant):
        """The skeleton as a plain Python function, for the interpreter and the compiler.

        Its arguments: Q, K, V, Out, scale; for blocks that stay order, starts; with one_loop turns (``steps.order``).
        """
        return _kernel_function(self.load_key, self.softmax, self.divide, self.latency, variant)

    def kernel(self, variant: Variant) -> ct.kernel:
        """The skeleton as a cuTile kernel, compiled when first launched."""
        return _kernel(self.kernel_function(variant), self.occupancy, self.warps, self.cluster)

    def run(self, problem, q, k, v, out):
        import torch

        target = target_of(q.device)
        if self.searched:
            return self.configured(problem, target).run(problem, q, k, v, out)
        variant = self.variant(problem, target)
        q, scale = fold_sign(q, problem.effective_scale)
        if out is None:
            out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        blocks, args = grid(problem, variant.tile), (q, k, v, out, scale)
        if variant.persistent or variant.section:
            number, order = self.order.blocks(problem, variant.tile, q.device, self.occupancy or 1)
            blocks, args = (number, 1, 1), (*args, *order[: variant.lists])
        if target == "cpu":
            from tutorial_lib import interpreter

            interpreter.launch(blocks, self.kernel_function(variant), args)
        else:
            with torch.cuda.device(q.device):
                ct.launch(torch.cuda.current_stream(), blocks, self.kernel(variant), args)
        return out

    def compile(self, problem, arch="sm_90"):
        from tutorial_lib import compiler

        if reason := self.unsupported(problem, arch):
            raise Unsupported(f"step {self.label}: {reason}")
        if self.searched:
            return self.configured(problem, arch).compile(problem, arch)
        variant = self.variant(problem, arch)
        blocks = self.cluster or 1  # that share a tile: each computes its part of every turn
        compiled = compiler.compile_cutile(
            self.kernel(variant),
            signature(problem, self.order.lengths(problem, variant.tile, arch)[: variant.lists]),
            arch,
            variant.tile.scores // blocks,
            self.warps or compiler.COMPUTE_WARPS,
        )
        return dataclasses.replace(compiled, kv_tiles=blocks * tiles_visited(problem, variant.tile))


def signature(problem: Problem, order: tuple[int, ...] = ()) -> KernelSignature:
    """The kernel's parameters as a launch on contiguous tensors of ``problem`` would compile it for.

    order: lengths of the arrays order, starts and turns, as far as the kernel reads them.
    """
    dtype = getattr(ct, problem.dtype)

    def array(heads: int, seq_len: int) -> ArrayConstraint:
        shape = (problem.batch, heads, seq_len, problem.head_dim)
        strides = [math.prod(shape[axis + 1 :]) for axis in range(4)]
        return ArrayConstraint(
            dtype,
            4,
            index_dtype=ct.int32,
            stride_lower_bound_incl=0,
            alias_groups=(),
            may_alias_internally=False,
            stride_constant=(None, None, None, 1),
            stride_divisible_by=[8 if stride % 8 == 0 else 1 for stride in strides],  # 8 elements are 16 bytes
            shape_divisible_by=[16 if length % 16 == 0 else 1 for length in shape],
            base_addr_divisible_by=16,
        )

    queries = array(problem.heads, problem.seq_len_q)
    keys = array(problem.kv_heads, problem.seq_len_kv)
    scale = ScalarConstraint(ct.float32)

    def numbers(length: int) -> ArrayConstraint:
        return ArrayConstraint(
            ct.int32,
            1,
            index_dtype=ct.int32,
            stride_lower_bound_incl=0,
            alias_groups=(),
            may_alias_internally=False,
            stride_constant=(1,),
            stride_divisible_by=[1],
            shape_divisible_by=[16 if length % 16 == 0 else 1],
            base_addr_divisible_by=16,
        )

    parameters = [queries, keys, keys, queries, scale, *map(numbers, order)]
    return KernelSignature(parameters, CallingConvention.cutile_python_v1(), symbol="fmha")


@cache
def configured_as(step: CuTileStep, found: Configuration | None) -> CuTileStep:
    if found is None:
        return dataclasses.replace(step, searched=False)
    return dataclasses.replace(
        step,
        tile=Tile(found.query, found.key),
        warps=found.warps,
        cluster=found.cluster,
        occupancy=found.occupancy,
        latency=Latency(),
        searched=False,
    )


@cache
def _kernel(function, occupancy: int | None, warps: int | None, cluster: int | None) -> ct.kernel:
    return ct.kernel(function, occupancy=occupancy, num_worker_warps=warps, num_ctas=cluster)


@cache
def _kernel_function(load_key, softmax, divide, latency: Latency, variant: Variant):
    tile, head_dim, group_size = variant.tile, variant.head_dim, variant.group_size
    causal, ragged = variant.causal, variant.ragged
    ahead, alternating = variant.ahead, variant.alternating
    narrow = Tile(tile.query, variant.mask_loop.key) if variant.mask_loop else None

    def position(number, Q):
        """Tile of queries, head and batch of the tile of this number."""
        tiles_a_head, heads = ct.cdiv(Q.shape[2], tile.query), Q.shape[1]
        head = number // tiles_a_head
        return number % tiles_a_head, head % heads, head // heads

    def load_query(Q, i, head, batch):
        q = ct.load(Q, (batch, head, i, 0), (1, 1, tile.query, head_dim), padding_mode=ct.PaddingMode.ZERO)
        return ct.reshape(q, (tile.query, head_dim))

    def begin():
        """Running maximum and sum of every row, and its output [query, head_dim], not yet normalised."""
        row_max = ct.full((tile.query, 1), -math.inf, ct.float32)
        row_sum = ct.zeros((tile.query, 1), ct.float32)
        return row_max, row_sum, ct.zeros((tile.query, head_dim), ct.float32)

    def tiles_to_visit(i, seq_len_kv, tile):
        """Which keys a tile of queries sees: tiles [0, unmasked) whole, tiles [unmasked, end) in part."""
        unmasked = seq_len_kv // tile.key
        end = ct.cdiv(seq_len_kv, tile.key)
        if causal:
            unmasked = min(unmasked, (i * tile.query) // tile.key)
            end = min(end, ct.cdiv((i + 1) * tile.query, tile.key))
        return unmasked, end

    def product(q, K, batch, kv_head, j, tile, latency):
        """QK product: scores [query, key]."""
        k = load_key(K, batch, kv_head, j, tile, head_dim, latency.key)  # [head_dim, key]
        return ct.mma(q, k, ct.zeros((tile.query, tile.key), ct.float32))

    def query_indices(i):
        return i * tile.query + ct.arange(tile.query, dtype=ct.int32)[:, None]

    def hide(scores, query_index, j, tile, seq_len_kv):
        """Minus infinity for keys that a query does not see."""
        key_index = j * tile.key + ct.arange(tile.key, dtype=ct.int32)[None, :]
        if causal:
            scores = ct.where(key_index <= query_index, scores, -math.inf)
        if ragged:
            scores = ct.where(key_index < seq_len_kv, scores, -math.inf)
        return scores

    def absorb(scores, V, batch, kv_head, j, tile, latency, row_max, row_sum, accumulator, scale):
        """Online softmax and PV product: maxima, sums and output with one more tile of keys."""
        weights, correction, row_max = softmax(scores, row_max, scale)  # [query, key], [query, 1], [query, 1]
        pieces = ct.static_eval(weights if isinstance(weights, tuple) else (weights,))  # [query, key / pieces] each
        row_sum = row_sum * correction
        for piece in ct.static_iter(pieces):
            row_sum = row_sum + ct.sum(piece, axis=1, keepdims=True)
        accumulator = accumulator * correction

        # Values past the end must be zero: their weight is zero, but 0 * NaN is not.
        v = ct.load(
            V,
            (batch, kv_head, j, 0),
            (1, 1, tile.key, head_dim),
            padding_mode=ct.PaddingMode.ZERO,
            latency=latency.value,
        )
        v = ct.reshape(v, (tile.key, head_dim))
        for n, piece in ct.static_iter(enumerate(pieces)):
            values = ct.extract(v, (n, 0), (piece.shape[1], head_dim))
            accumulator = ct.mma(ct.astype(piece, V.dtype), values, accumulator)
        return row_max, row_sum, accumulator

    def finish(Out, i, head, batch, q, row_sum, accumulator, scale):
        """Normalise and store; rows past the end are dropped."""
        o = ct.astype(divide(accumulator, row_sum), Out.dtype)
        if variant.apart:
            half = (tile.query, head_dim // 2)
            left, right = ct.extract(o, (0, 0), half), ct.extract(o, (0, 1), half)
            # The scale is never negative. But so Q is read once more, and its place is not free for the output.
            left = ct.where(scale < 0, ct.extract(q, (0, 0), half), left)
            ct.store(Out, (batch, head, i, 0), ct.reshape(left, (1, 1, *half)))
            ct.store(Out, (batch, head, i, 1), ct.reshape(right, (1, 1, *half)))
        else:
            ct.store(Out, (batch, head, i, 0), ct.reshape(o, (1, 1, tile.query, head_dim)))

    def attend(i, head, batch, Q, K, V, Out, scale, backwards=0):
        kv_head = head // group_size
        seq_len_kv = K.shape[2]
        q = load_query(Q, i, head, batch)
        row_max, row_sum, accumulator = begin()
        unmasked, end = tiles_to_visit(i, seq_len_kv, tile)
        query_index = query_indices(i)

        if ahead:
            following = product(q, K, batch, kv_head, 0, tile, latency)

        if variant.mask_loop:
            hints = variant.mask_loop.latency
            for j in range(unmasked):
                scores = product(q, K, batch, kv_head, j, tile, hints)
                row_max, row_sum, accumulator = absorb(
                    scores, V, batch, kv_head, j, tile, hints, row_max, row_sum, accumulator, scale
                )
            _, end = tiles_to_visit(i, seq_len_kv, narrow)
            for j in range(unmasked * (tile.key // narrow.key), end):
                scores = product(q, K, batch, kv_head, j, narrow, latency)
                scores = hide(scores, query_index, j, narrow, seq_len_kv)
                row_max, row_sum, accumulator = absorb(
                    scores, V, batch, kv_head, j, narrow, latency, row_max, row_sum, accumulator, scale
                )
        else:
            for j in range(end):
                at = j
                if alternating:
                    at = j + backwards * (end - 1 - 2 * j)
                if ahead:
                    scores = following
                    following = product(q, K, batch, kv_head, min(j + 1, end - 1), tile, latency)
                else:
                    scores = product(q, K, batch, kv_head, at, tile, latency)
                if (causal or ragged) and j >= unmasked:  # the compiler splits the loop here: whole tiles never ask
                    scores = hide(scores, query_index, j, tile, seq_len_kv)
                row_max, row_sum, accumulator = absorb(
                    scores, V, batch, kv_head, at, tile, latency, row_max, row_sum, accumulator, scale
                )
        finish(Out, i, head, batch, q, row_sum, accumulator, scale)

    if variant.one_loop:

        def fmha(Q, K, V, Out, scale, order, starts, turns):
            seq_len_kv = K.shape[2]
            block = ct.bid(0)
            n = ct.load(starts, (block,), ())
            last = ct.load(starts, (block + 1,), ()) - 1
            i, head, batch = position(ct.load(order, (n,), ()), Q)
            q = load_query(Q, i, head, batch)
            row_max, row_sum, accumulator = begin()
            unmasked, end = tiles_to_visit(i, seq_len_kv, tile)
            j = 0
            for _turn in range(ct.load(turns, (block,), ())):
                kv_head = head // group_size
                scores = product(q, K, batch, kv_head, j, tile, latency)
                if (causal or ragged) and j >= unmasked:
                    scores = hide(scores, query_indices(i), j, tile, seq_len_kv)
                row_max, row_sum, accumulator = absorb(
                    scores, V, batch, kv_head, j, tile, latency, row_max, row_sum, accumulator, scale
                )
                j += 1
                if j == end:
                    finish(Out, i, head, batch, q, row_sum, accumulator, scale)
                    n = min(n + 1, last)  # behind the last tile it is read once more, for nothing
                    i, head, batch = position(ct.load(order, (n,), ()), Q)
                    q = load_query(Q, i, head, batch)
                    row_max, row_sum, accumulator = begin()
                    unmasked, end = tiles_to_visit(i, seq_len_kv, tile)
                    j = 0

    elif variant.counted:

        def fmha(Q, K, V, Out, scale):
            tiles = ct.cdiv(Q.shape[2], tile.query) * Q.shape[1] * Q.shape[0]
            for n in range(ct.bid(0), tiles, ct.num_blocks(0)):
                i, head, batch = position(n, Q)
                attend(i, head, batch, Q, K, V, Out, scale)

    elif variant.persistent:

        def fmha(Q, K, V, Out, scale, order, starts):
            block = ct.bid(0)
            first = ct.load(starts, (block,), ())
            for n in range(first, ct.load(starts, (block + 1,), ())):
                i, head, batch = position(ct.load(order, (n,), ()), Q)
                attend(i, head, batch, Q, K, V, Out, scale, (n - first) % 2)

    elif variant.section:

        def fmha(Q, K, V, Out, scale):
            heads = Q.shape[1]
            tiles_a_head = ct.cdiv(Q.shape[2], tile.query)
            tiles_a_section = variant.section * tiles_a_head
            number = ct.bid(0) % tiles_a_section
            i = number // variant.section
            if causal:
                i = tiles_a_head - 1 - i  # the longest first
            head = ct.bid(0) // tiles_a_section * variant.section + number % variant.section
            attend(i, head % heads, head // heads, Q, K, V, Out, scale)

    else:

        def fmha(Q, K, V, Out, scale):
            attend(ct.bid(0), ct.bid(1), ct.bid(2), Q, K, V, Out, scale)

    return fmha
