"""A step in cuTile: the holes of the skeleton, and how its kernel is launched and compiled."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import cuda.tile as ct
from cuda.tile.compilation import ArrayConstraint, CallingConvention, KernelSignature, ScalarConstraint, TupleConstraint

from steps.core.driver import places_like
from steps.core.fused import FusedStep, InCuTile, grid, hole, tiles_visited
from steps.core.launch import empty_lse
from steps.core.order import NATURAL, Order
from steps.core.rules import rule_for
from steps.core.step import target_of
from steps.core.tiles import BlockShape, Tile
from steps.core.work import Work, places
from steps.cutile.kernel import (
    BASE_2,
    COUNTING,
    LISTS,
    NATURAL_ORDER,
    PACKED,
    SECTIONS,
    Scheduler,
    in_one_loop,
    in_two_loops,
    store_whole,
)
from steps.cutile.launching import Part, compiled_when_launched, launcher
from steps.cutile.variant import Latency, MaskLoop, Variant
from tutorial_lib.problem import Problem, positive

# Where tileiras 13.5 lets the blocks of a cluster fetch for each other; elsewhere a cluster's tile is one block's.
CLUSTERS = ("sm_90", "sm_100", "sm_103", "sm_107", "sm_110")
# Where tileiras 13.5 spills much more with a loop of its own for the mask than without: on sm_80 1632 bytes a thread
# and not 0, on sm_86 328 and not 64. These have no such loop. (Untested: only a compiler has seen it.)
ONE_LOOP = ("sm_80", "sm_86", "sm_87", "sm_88", "sm_89")


@dataclass(frozen=True, kw_only=True)
class CuTileStep(InCuTile, FusedStep):
    """A fused kernel in cuTile: the skeleton of ``steps.cutile.kernel`` with these holes filled.

    load_key(K, batch, head, j, tile, head_dim, latency) -> [head_dim, tile.key]: the j-th tile of keys, transposed.
    softmax(scores, row_max, scale) -> weights, correction, row_max: one step of the online softmax; weights may be a
    tuple of equal pieces of the keys, and then the PV product is one of each.
    divide(accumulator, row_sum) -> output rows: the normalization at the end.
    latency, occupancy: hints to the compiler; None leaves the choice to it. warps: as much, of those that compute.
    cluster: blocks that share a tile of queries and fetch K and V for each other; None: no cluster.
    order: which block computes which tiles of queries, and whether all of them in one loop.
    tile: query rows and keys a block works on; None takes what the launch rules have (``steps.core.rules``).
    searched: tile, warps, cluster and occupancy are what a search found, where the launch rules have that.
    mask_loop: what the mask cuts is computed in narrower tiles of keys, in a loop of their own.
    store(Out, o, q, i, head, batch, scale, variant): how a tile of the output leaves, where there is no such loop.
    takes: of ``Problem.features`` what the kernel is asked to compute, too; each is compiled in only where it is asked.
    pack_groups: a tile holds queries of all heads of a group, which share its tiles of keys.

    Raises ValueError for a mask_loop that does not go with the tile or the order.
    """

    load_key: Callable = hole()
    softmax: Callable = hole()
    divide: Callable = hole()
    latency: Latency = hole(default=Latency())
    occupancy: int | None = hole(default=None)
    warps: int | None = hole(default=None)
    cluster: int | None = hole(default=None, none="none")
    order: Order = hole(default=NATURAL)
    tile: Tile | None = hole(default=None, none="by the launch rule")
    searched: bool = hole(default=False)
    mask_loop: MaskLoop | None = hole(by_problem=True, default=None, none="none")
    store: Callable = hole(default=store_whole)
    takes: tuple[str, ...] = hole(told=False, default=())
    pack_groups: bool = hole(told=False, default=False)

    def __post_init__(self):
        if not isinstance(self.tile, Tile | None):
            raise ValueError(f"tile must be a Tile(query, key), got {self.tile!r}")
        loop = self.mask_loop
        if isinstance(loop, MaskLoop) and (self.tile is None or loop.key < 1 or self.tile.key % loop.key):
            raise ValueError(f"mask_loop takes a tile whose keys its key divides, got {loop} and {self.tile}")

    def unsupported(self, problem: Problem, target: str) -> str | None:
        if reason := super().unsupported(problem, target):
            return reason
        if max(problem.seq_len_q, problem.seq_len_kv) * problem.heads * problem.head_dim >= 2**31:
            return "heads * seq_len * head_dim must be below 2^31 (cuTile holds strides in 32 bits)"
        if self.packs(problem) and problem.group_size > self.variant(problem, target).tile.query:
            return f"a group of {problem.group_size} query heads does not fit into one tile"
        if self.cluster and target not in (*CLUSTERS, "cpu"):
            return f"made of clusters that share what they fetch, which {', '.join(CLUSTERS)} have, not {target}"
        return None

    def configured(self, problem: Problem, arch: str) -> CuTileStep:
        """This step with the holes that a search decides filled for ``problem`` on ``arch``."""
        if not self.searched:
            return self
        found = rule_for("searched", self.in_tiles(problem), arch)
        return configured_as(self, found and found.choice)

    def choices(self, problem: Problem, target: str) -> tuple[str, ...]:
        problem = self.in_tiles(problem)
        found = self.searched and rule_for("searched", problem, target)
        if self.tile and not found:
            return super().choices(problem, target)
        return ((found or rule_for("attention", problem, target)).told(target),)

    def variant(self, problem: Problem, arch: str) -> Variant:
        """The constants that ``problem`` is compiled with on ``arch``."""
        given, problem = problem.head_dim, self.in_tiles(problem)
        tile = self.tile or rule_for("attention", problem, arch).choice.tile
        ragged = problem.lengths is not None or problem.seq_len_kv % tile.key != 0
        two_loops = (problem.causal or ragged) and arch not in ONE_LOOP
        mask_loop = self.for_problem(problem).mask_loop if two_loops else None
        order = self.order_for(problem)
        return Variant(
            load_key=self.load_key,
            softmax=self.softmax,
            divide=self.divide,
            latency=self.latency,
            tile=tile,
            head_dim=problem.head_dim,
            group_size=1 if self.packs(problem) else problem.group_size,
            causal=problem.causal,
            ragged=ragged,
            scheduler=scheduler_of(order, problem),
            section=order.section(problem),
            mask_loop=mask_loop,
            walk=in_two_loops if mask_loop else in_one_loop,
            # With two loops there is no room beside Q; and both halves of a tile must hold columns of the tensor.
            store=self.store if mask_loop is None and given > problem.head_dim // 2 else store_whole,
            base=getattr(self.softmax, "base", BASE_2),
            window=problem.window,
            softcap=problem.softcap,
            sequences=power_of_two(len(problem.lengths)) if problem.lengths else 0,
            together=power_of_two(problem.group_size) if self.packs(problem) else 0,
            sinks=problem.sinks,
        )

    def order_for(self, problem: Problem) -> Order:
        """Which block computes which tiles: of packed sequences, whose lengths the GPU alone knows, a block a tile."""
        return NATURAL if problem.lengths else self.order

    def packs(self, problem: Problem) -> bool:
        """Whether tiles hold queries of all heads of a group."""
        return self.pack_groups and problem.group_size > 1

    def launched(self, problem: Problem, variant: Variant) -> tuple[Problem, Tile]:
        """What blocks, and the order of their tiles, follow: for a tile of several heads as if these were one."""
        heads = problem.kv_heads if variant.together else problem.heads
        return dataclasses.replace(problem, heads=heads), Tile(variant.rows, variant.tile.key)

    def work(self, problem: Problem, arch: str) -> Work:
        """What a launch has to do."""
        step = self.configured(problem, arch)
        variant = step.variant(problem, arch)
        launched, rows = step.launched(problem, variant)
        held = places(arch, step.occupancy or 1, step.cluster or 1)
        return Work.of_queries(launched, rows, held, variant.scheduler.in_order, variant.tile, variant.head_dim)

    def kernel_function(self, variant: Variant):
        """The kernel as a plain Python function, for the interpreter and the compiler."""
        return _kernel_function(variant)

    @property
    def hints(self) -> BlockShape:
        """What the compiler is told of a block."""
        return BlockShape(self.tile, warps=self.warps, cluster=self.cluster, occupancy=self.occupancy)

    def compiled_when_launched(self, function: Callable) -> ct.kernel:
        """A kernel function with this step's hints, for cuTile to compile when it is first launched."""
        return compiled_when_launched(function, self.hints)

    def entry(self, problem: Problem, arch: str) -> tuple[Callable, dict]:
        step = self.configured(problem, arch)
        return step.kernel_function(step.variant(problem, arch)), {}

    def beside_the_kernel(self, problem: Problem, arch: str) -> tuple:
        """Hints to the compiler, and the lists that blocks read."""
        order = self.order_for(problem)
        lists = order if order.persistent and not order.counts(problem) else None
        return self.occupancy, self.warps, self.cluster, lists and dataclasses.replace(lists, counted=False)

    def make_ready(self, problem, q, k, v, out, return_lse=False):
        target = target_of(q.device)
        step = self.configured(problem, target)
        variant = dataclasses.replace(step.variant(problem, target), lse=return_lse)
        return step.make_kernel_ready(step.kernel_function(variant), problem, q, k, v, out, return_lse)

    def make_kernel_ready(
        self, function: Callable, problem: Problem, q, k, v, out, return_lse: bool = False, dtype=None
    ):
        """As ``make_ready``, for a kernel function that is given. dtype: of a new output; None: q's.

        With inputs in fp8 the launch takes the scales of q, k and v behind out.
        """
        variant = self.variant(problem, target_of(q.device))
        launched, tile = self.launched(problem, variant)
        blocks, lists = grid(launched, tile), ()
        if variant.scheduler.in_order:
            number, order = self.order.blocks(launched, tile, q.device, self.occupancy or 1)
            blocks, lists = (number, 1, 1), order[: variant.scheduler.lists]
        sign, scale = positive(problem.effective_scale)
        place, lse_place = places_like(q, dtype), return_lse and places_like(empty_lse(q))
        heads = (problem.kv_heads, problem.group_size)
        outputs, beside = 1 + return_lse, 1 if problem.sinks else 3 if problem.fp8 else 0

        def by_group(x):
            """[batch, heads, ...] as the kernel takes it."""
            return x.unflatten(1, heads) if variant.together else x

        def arguments(q, k, v, *more):
            written, factors, others = more[:outputs], more[outputs : outputs + beside], more[outputs + beside :]
            written = tuple(map(by_group, written)) if return_lse else by_group(*written)
            if problem.sinks:
                factors = (factors[0].view(heads if variant.together else (-1, 1)),)
            return by_group(q), k, v, written, (scale, *factors) if factors else scale, *others

        run = launcher([Part(blocks, function, self.hints, arguments)], q.device)

        def launch(q, k, v, out, *more):
            o = place() if out is None else out
            written = (o, lse_place()) if lse_place else (o,)
            begins, factors = more[: len(more) - beside], more[len(more) - beside :]
            run(q if sign == 1 else q * sign, k, v, *written, *factors, *lists, *begins)
            return written if return_lse else o

        return launch

    def compile(self, problem, arch="sm_90"):
        self.refuse(problem, arch)
        step = self.configured(problem, arch)
        return step.compile_kernel(step.kernel_function(step.variant(problem, arch)), problem, arch)

    def compile_kernel(self, function: Callable, problem: Problem, arch: str):
        """As ``compile``, for a kernel function that is given."""
        from tutorial_lib import compiler

        variant = self.variant(problem, arch)
        launched, tile = self.launched(problem, variant)
        lists = self.order_for(problem).lengths(launched, tile, arch)[: variant.scheduler.lists]
        if problem.lengths:
            lists = (len(problem.lengths) + 1,) * 2
        blocks = self.cluster or 1  # that share a tile: each computes its share of every iteration
        compiled = compiler.compile_cutile(
            self.compiled_when_launched(function),
            signature(problem, lists, bool(variant.together)),
            arch,
            variant.tile.scores // blocks,
            self.warps or compiler.COMPUTE_WARPS,
        )
        return dataclasses.replace(
            compiled,
            blocks=blocks * self.order_for(problem).number(launched, tile, arch, self.occupancy or 1),
            kv_tiles=blocks * tiles_visited(launched, tile),
        )


def scheduler_of(order: Order, problem: Problem) -> Scheduler:
    """How blocks find the tiles that an order gives them."""
    if problem.lengths:
        return PACKED
    if order.counts(problem):
        return COUNTING
    if order.persistent:
        return LISTS
    return SECTIONS if order.section(problem) else NATURAL_ORDER


def power_of_two(n: int) -> int:
    """The least power of two that is not less than n."""
    return 1 << (n - 1).bit_length()


def signature(problem: Problem, lists: tuple[int, ...] = (), by_group: bool = False) -> KernelSignature:
    """The kernel's parameters as a launch on contiguous tensors of ``problem`` would compile it for.

    lists: lengths of the arrays order and starts, as far as the kernel reads them, or of where sequences begin.
    by_group: whether queries come as [batch, kv_heads, group_size, query, head_dim].
    """
    dtype = getattr(ct, problem.dtype)
    heads = (problem.kv_heads, problem.group_size) if by_group else (problem.heads,)
    queries = (problem.batch, *heads, problem.seq_len_q, problem.head_dim)
    keys = array((problem.batch, problem.kv_heads, problem.seq_len_kv, problem.head_dim), dtype)
    arrays = [array((length,), ct.int32) for length in lists]
    output = array(queries, ct.bfloat16 if problem.fp8 else dtype)
    scale, more = ScalarConstraint(ct.float32), ()
    if problem.sinks:
        more = (array(heads if by_group else (problem.heads, 1), ct.float32),)
    elif problem.fp8:
        more = (array((problem.batch, problem.kv_heads), ct.float32),) * 3
    if more:
        scale = TupleConstraint((scale, *more))
    return as_launched("fmha", [array(queries, dtype), keys, keys, output, scale, *arrays])


def as_launched(symbol: str, parameters: list) -> KernelSignature:
    """The signature of a kernel by the convention that cuTile 1.7 takes to launch it.

    Its first convention knows no tuples, and no axis that has one element whenever the kernel is launched.
    """
    second = any(isinstance(x, TupleConstraint) or 1 in getattr(x, "shape_constant", ()) for x in parameters)
    how = CallingConvention.cutile_python_v2() if second else CallingConvention.cutile_python_v1()
    return KernelSignature(parameters, how, symbol=symbol)


def array(shape: tuple[int, ...], dtype: ct.DType) -> ArrayConstraint:
    """A contiguous array of this shape, as a launch would compile a kernel for it."""
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    together = 16 * 8 // dtype.bitwidth  # elements in 16 bytes
    return ArrayConstraint(
        dtype,
        len(shape),
        index_dtype=ct.int32,
        stride_lower_bound_incl=0,
        alias_groups=(),
        may_alias_internally=False,
        stride_constant=[1 if stride == 1 else None for stride in strides],
        shape_constant=[1 if length == 1 else None for length in shape],
        stride_divisible_by=[together if stride % together == 0 else 1 for stride in strides],
        shape_divisible_by=[16 if length % 16 == 0 else 1 for length in shape],
        base_addr_divisible_by=16,
    )


@cache
def configured_as(step: CuTileStep, found: BlockShape | None) -> CuTileStep:
    """A step with tile, warps, cluster and occupancy as found, and no hints; None leaves it as it is."""
    if found is None:
        return dataclasses.replace(step, searched=False)
    return dataclasses.replace(
        step,
        tile=found.tile,
        warps=found.warps,
        cluster=found.cluster,
        occupancy=found.occupancy,
        latency=Latency(),
        searched=False,
    )


@cache
def _kernel_function(variant: Variant):
    return variant.scheduler.kernel(variant)
