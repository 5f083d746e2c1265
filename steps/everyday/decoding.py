"""A decoding step in cuTile: the holes of its skeleton, into how many splits keys fall, launching and compiling."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import count
from typing import TYPE_CHECKING, ClassVar

import cuda.tile as ct
from cuda.tile.compilation import KernelSignature, ScalarConstraint, TupleConstraint

from steps.core.fused import FusedStep, InCuTile, hole
from steps.core.launch import each_stream, empty_lse
from steps.core.order import processors
from steps.core.step import target_of
from steps.core.tiles import BlockShape, Tile
from steps.core.work import Work, places
from steps.cutile.launching import Part, compiled_when_launched, launcher
from steps.cutile.skeleton import array, as_launched, power_of_two
from steps.cutile.variant import Latency
from steps.everyday.decode_kernel import ALL_KEYS, Splitting, make_merge
from steps.everyday.variant import NUMBERS, DecodeVariant
from tutorial_lib.architectures import REFERENCE_GPUS
from tutorial_lib.problem import Problem, positive

if TYPE_CHECKING:
    import torch

KEY_BYTES = 16 * 2**10  # of a tile of keys: with a ring of them for K and V each, two blocks share an SM
MOST_KEYS = 128
# tileiras 13.5 multiplies tiles of 64 rows by wgmma, with buffers that leave no room for a second block on an SM; the
# registers of tiles of 128 rows spill in the loop.
MOST_ROWS = 64
# What beginning and ending a block costs, in tiles of KEY_BYTES, and what it costs to store and merge partial results:
# estimates, which no record stands behind.
START = 4
MERGE = 10
AT_ONCE = 64  # splits that one iteration of the merging takes, at most
MERGED = 2048  # numbers that it takes: with more, registers spill
MERGING = BlockShape(Tile(1, AT_ONCE), occupancy=8)  # small blocks, which wait for memory most of the time


@dataclass(frozen=True, kw_only=True)
class DecodeStep(InCuTile, FusedStep):
    """Kernels of ``steps.everyday.decode_kernel`` with these holes filled.

    load_key(K, batch, kv_head, j, variant) -> [head_dim, key]: the j-th tile of keys. load_value(V, batch, kv_head, j,
    variant) -> [key, head_dim]: that of values.
    softmax: as that of ``CuTileStep``. latency, occupancy, warps: hints to the compiler; occupancy is that of all tiles
    but those of ``MOST_ROWS`` rows.
    splitting: who takes which keys, and who merges. Where several blocks have a range of the keys each, they are as
    many as ``number_of_splits`` says. Where it says one, the kernel is that of a step that does not split.
    least_rows: of a tile, so many at least; with fewer than 16 tileiras 13.5 multiplies without the tensor cores.
    tile_key: keys of a tile; None: ``KEY_BYTES`` of them, or ``MOST_KEYS``.
    """

    load_key: Callable = hole()
    load_value: Callable = hole()
    softmax: Callable = hole(by_problem=True)
    latency: Latency = hole(default=Latency())
    occupancy: int | None = hole(default=None)
    warps: int | None = hole(default=None)
    splitting: Splitting = hole(default=ALL_KEYS)
    least_rows: int = hole(default=16)
    tile_key: int | None = hole(by_problem=True, default=None, none="by its bytes")

    shown: ClassVar[str] = (
        "The kernel that goes through the keys (steps/everyday/decode_kernel.py has the one that merges)"
    )

    def unsupported(self, problem: Problem, target: str) -> str | None:
        if reason := super().unsupported(problem, target):
            return reason
        if problem.seq_len_q > MOST_ROWS:
            taker = "gathered" if problem.page_size else "pack_gqa"
            return f"made for decoding, at most {MOST_ROWS} queries a head, got {problem.seq_len_q}: take step {taker}"
        if problem.causal and not problem.page_size:
            return "made for queries that see all keys, as the last token of a sequence does: ask for no causal mask"
        if problem.seq_len_kv * problem.kv_heads * problem.head_dim >= 2**31:
            return "kv_heads * seq_len_kv * head_dim must be below 2^31 (cuTile holds strides in 32 bits)"
        return None

    def scratch_bytes(self, problem: Problem) -> int:
        """Partial results and their log-sum-exp in float32, on the reference GPU that splits the keys most often."""
        counts = {gpu.multiprocessors for gpu in REFERENCE_GPUS.values()}
        splits = [self.splits(problem, n) for n in counts if self.on_so_many(problem, n).split]
        return 4 * max(splits, default=0) * self.rows(problem) * (self.in_tiles(problem).head_dim + 1)

    def configured(self, problem: Problem, arch: str) -> DecodeStep:
        gpu = REFERENCE_GPUS.get(arch)
        return self.on_so_many(problem, gpu.multiprocessors if gpu else 1)

    def on_so_many(self, problem: Problem, multiprocessors: int) -> DecodeStep:
        """This step as it is on so many SMs: where one block has all keys of its rows, one that splits nothing."""
        if self.split and self.splits(problem, multiprocessors) == 1:
            return dataclasses.replace(self, splitting=ALL_KEYS)
        return self

    @property
    def split(self) -> bool:
        """Whether several blocks have a range of the same keys each."""
        return self.splitting.split

    @property
    def merges_apart(self) -> bool:
        """Whether a kernel of its own merges."""
        return self.split and not self.splitting.last_block_merges

    def key(self, problem: Problem) -> int:
        """Keys of a tile."""
        return self.for_problem(problem).tile_key or min(MOST_KEYS, KEY_BYTES // self.row_bytes(problem))

    def row_bytes(self, problem: Problem) -> int:
        """Of a key in a tile."""
        return problem.kv_bytes * self.in_tiles(problem).head_dim

    def tile_size(self, problem: Problem) -> int:
        """Of a tile of keys, in ``KEY_BYTES``; 1 where it is smaller."""
        return max(1, self.key(problem) * self.row_bytes(problem) // KEY_BYTES)

    def variant(self, problem: Problem, arch: str) -> DecodeVariant:
        """The constants that ``problem`` is compiled with on ``arch``."""
        queries, members = power_of_two(problem.seq_len_q), power_of_two(problem.group_size)
        members = min(members, MOST_ROWS // queries)
        queries = max(queries, self.least_rows // members)
        key = self.key(problem)
        return DecodeVariant(
            load_key=self.load_key,
            load_value=self.load_value,
            softmax=self.for_problem(problem).softmax,
            latency=self.latency,
            tile=Tile(members * queries, key),
            head_dim=self.in_tiles(problem).head_dim,
            members=members,
            queries=queries,
            seq_len_q=problem.seq_len_q,
            splitting=self.splitting,
            ragged=problem.page_size is not None or problem.seq_len_kv % key != 0,
            page_size=problem.page_size,
            causal=problem.causal and problem.seq_len_q > 1,
            quantized=problem.kv_dtype is not None,
        )

    def groups(self, problem: Problem) -> int:
        """Tiles of rows of all kv heads of a sequence."""
        return problem.kv_heads * -(-problem.group_size // self.variant(problem, self.made_for).members)

    def rows(self, problem: Problem) -> int:
        """Rows of all tiles together, those without a query too."""
        return problem.batch * self.groups(problem) * self.variant(problem, self.made_for).tile.query

    def splits(self, problem: Problem, multiprocessors: int) -> int:
        """How many blocks have a range each of the same keys, on so many SMs."""
        if not self.split:
            return 1
        tiles = -(-problem.seq_len_kv // self.key(problem))
        at_a_time = (self.kernel(self.variant(problem, self.made_for))[1].occupancy or 1) * multiprocessors
        return number_of_splits(tiles, problem.batch * self.groups(problem), at_a_time, self.tile_size(problem))

    def work(self, problem: Problem, arch: str) -> Work:
        """What a launch has to do."""
        step = self.configured(problem, arch)
        variant, held = step.variant(problem, arch), places(arch)
        tiles = -(-problem.seq_len_kv // variant.tile.key)
        splits = step.splits(problem, held)
        rounds = -(-splits * step.groups(problem) * problem.batch // (held * (step.kernel(variant)[1].occupancy or 1)))
        split = splits > 1
        return Work(
            rounds * -(-tiles // splits),
            rounds,
            variant.tile,
            variant.head_dim,
            rows=split * splits * step.rows(problem),
            merged=split * splits * (variant.tile.query if step.splitting.last_block_merges else 1),
        )

    def kernel(self, variant: DecodeVariant) -> tuple[Callable, BlockShape]:
        """The kernel that goes through the keys, and how it is compiled."""
        occupancy = 1 if variant.tile.query == MOST_ROWS else self.occupancy
        return _decode(variant), BlockShape(variant.tile, warps=self.warps, occupancy=occupancy)

    def entry(self, problem: Problem, arch: str) -> tuple[Callable, dict]:
        return _decode(self.configured(problem, arch).variant(problem, arch)), {}

    def make_ready(self, problem, q, k, v, out, return_lse=False):
        step, function = self.decided(problem, q.device, return_lse)
        return step.make_kernel_ready(function, problem, q, k, v, out, return_lse)

    def decided(self, problem: Problem, device, return_lse: bool) -> tuple[DecodeStep, Callable]:
        """This step as it is on a device, and the function of its kernel that goes through the keys."""
        step = self.on_so_many(problem, processors(device))
        variant = step.variant(problem, target_of(device))
        return step, _decode(dataclasses.replace(variant, lse=return_lse and not step.merges_apart))

    def make_kernel_ready(self, function: Callable, problem: Problem, q, k, v, out, return_lse: bool = False):
        """As ``make_ready``, for a function of the kernel that goes through the keys that is given."""
        decoded = self.runner(function, problem, q.device, return_lse)

        def launch(q, k, v, out):
            return decoded(q, (k, v), out)

        return launch

    def runner(self, function: Callable, problem: Problem, device, return_lse: bool = False) -> Callable:
        """``run(q, sources, out, *scales)``: both kernels, where there are two. sources: what the first reads beside Q.

        scales: of keys and values, where these are in fp8.
        """
        import torch

        variant = self.variant(problem, target_of(device))
        splits, groups = self.splits(problem, processors(device)), (problem.kv_heads, problem.group_size)
        sign, scale = positive(problem.effective_scale)
        kept = (splits, self.rows(problem))
        empty = partial(torch.empty, dtype=torch.float32, device=device)
        zeros = partial(torch.zeros, problem.batch * self.groups(problem), dtype=torch.int32, device=device)
        arrived = each_stream(zeros, device)

        def partials() -> tuple:
            return (empty((*kept, variant.head_dim)), empty(kept)) if self.split else ()

        def written(o, *lse):
            """Where the results go, with a dimension for groups."""
            return (o.unflatten(1, groups), lse[0].unflatten(1, groups)) if lse else o.unflatten(1, groups)

        def decoding(q, *others):
            others, scales = others[: len(others) - len(factors)], others[len(others) - len(factors) :]
            ahead, outputs = others[: len(read) - 1], others[len(read) - 1 :]
            factor = (scale, *scales) if scales else scale
            return q.unflatten(1, groups), *ahead, *((written(*outputs),) if outputs else ()), factor

        def results_of(o, lse, *outputs):
            return o, lse, written(*outputs)

        # Of a call: q and the sources, results, what counts blocks, and scales; behind them its scratch memory.
        place = count()
        read = [next(place) for _ in range(1 + len(self.sources(problem)))]
        results = [next(place) for _ in range(1 + return_lse)]
        counts = [next(place)] if self.splitting.last_block_merges else []
        factors = [next(place) for _ in range(2)] if problem.kv_dtype else []
        parts_of_rows = [next(place) for _ in range(2)] if self.split else []
        read += parts_of_rows + counts
        blocks = (splits, self.groups(problem), problem.batch)
        shape = self.kernel(variant)[1]
        ahead = read if self.merges_apart else read + results
        kernels = [Part(blocks, function, shape, decoding, ahead + factors)]
        if self.merges_apart:
            merge, columns = merging(variant, splits, return_lse)
            blocks = (problem.seq_len_q * -(-problem.head_dim // columns), problem.heads, problem.batch)
            kernels.append(Part(blocks, merge, MERGING, results_of, parts_of_rows + results))
        launch = launcher(kernels, device, partials)

        def run(q, sources, out, *scales):
            if scales:
                sources = (*map(in_words, sources[:2]), *sources[2:])
            o = torch.empty(q.shape, dtype=q.dtype, device=device) if out is None else out
            written = (o, empty_lse(q)) if return_lse else (o,)
            launch(q if sign == 1 else q * sign, *sources, *written, *((arrived(),) if counts else ()), *scales)
            return written if return_lse else o

        return run

    def compile(self, problem, arch="sm_90"):
        """The kernel that goes through the keys; the one that merges is among its other kernels."""
        self.refuse(problem, arch)
        return self.configured(problem, arch).compile_kernel(self.entry(problem, arch)[0], problem, arch)

    def compile_kernel(self, function: Callable, problem: Problem, arch: str):
        """As ``compile``, for a function of that kernel that is given."""
        from tutorial_lib import compiler

        self.refuse(problem, arch)
        variant = self.variant(problem, arch)
        gpu = REFERENCE_GPUS.get(arch)
        splits = self.splits(problem, gpu.multiprocessors if gpu else 1)
        compiled = compiler.compile_cutile(
            compiled_when_launched(function, self.kernel(variant)[1]),
            self.signature(problem, splits),
            arch,
            variant.tile.scores,
            self.warps or compiler.COMPUTE_WARPS,
        )
        lengths = problem.lengths_in_pages if problem.page_size else problem.batch * [problem.seq_len_kv]
        tiles = sum(-(-length // variant.tile.key) for length in lengths)
        groups = self.groups(problem)
        others = (self.compile_merge(problem, splits, arch).code,) if self.merges_apart else ()
        blocks = splits * groups * problem.batch
        return dataclasses.replace(compiled, blocks=blocks, kv_tiles=groups * tiles, other_kernels=others)

    def compile_merge(self, problem: Problem, splits: int, arch: str):
        """The kernel that merges so many splits, compiled."""
        from tutorial_lib import compiler

        parameters = [*self.partials(problem, splits), outputs(problem)]
        function, _ = merging(self.variant(problem, arch), splits)
        return compiler.compile_cutile(
            compiled_when_launched(function, MERGING),
            as_launched("merge", parameters),
            arch,
            MERGING.tile.scores,
        )

    def signature(self, problem: Problem, splits: int) -> KernelSignature:
        """The parameters of the kernel that goes through the keys, as a launch on contiguous tensors has them."""
        written = self.partials(problem, splits) if self.split else []
        if self.splitting.last_block_merges:
            written.append(array((problem.batch * self.groups(problem),), ct.int32))
        if not self.merges_apart:
            written.append(outputs(problem))
        scale = ScalarConstraint(ct.float32)
        if problem.kv_dtype:
            scale = TupleConstraint((scale, *(array((problem.batch, problem.kv_heads), ct.float32),) * 2))
        return as_launched("fmha_decode", [outputs(problem), *self.sources(problem), *written, scale])

    def partials(self, problem: Problem, splits: int) -> list:
        """The outputs of so many splits, and their log-sum-exp."""
        kept = (splits, self.rows(problem))
        return [array((*kept, self.in_tiles(problem).head_dim), ct.float32), array(kept, ct.float32)]

    def sources(self, problem: Problem) -> list:
        """What the kernel reads beside Q."""
        return 2 * [keys((problem.batch, problem.kv_heads, problem.seq_len_kv), problem)]


def number_of_splits(tiles: int, groups: int, at_a_time: int, size: int = 1) -> int:
    """How many blocks share the keys of a tile of rows. groups: tiles of rows; at_a_time: blocks that the GPU holds.

    With s splits there are groups * s blocks, which run in so many rounds as it takes with ``at_a_time`` in each; a
    block goes through its share of the ``tiles`` of keys, each of ``size`` times ``KEY_BYTES``, and beginning and
    ending it costs ``START`` tiles of ``KEY_BYTES``. More than one split costs ``MERGE`` of them more. What takes the
    fewest of them one after another is chosen, and of equals the smallest.
    """

    def tiles_one_after_another(splits: int) -> int:
        return -(-groups * splits // at_a_time) * (size * -(-tiles // splits) + START) + MERGE * (splits > 1)

    return min(range(1, tiles + 1), key=lambda splits: (tiles_one_after_another(splits), splits))


def merged_at_once(splits: int, head_dim: int) -> tuple[int, int]:
    """(splits, columns) that one iteration of the merging takes; head_dim: of the tiles.

    All splits where they are few enough, and the fewer columns: a block waits for memory in each iteration.
    """
    at_once = min(power_of_two(splits), AT_ONCE)
    return at_once, min(head_dim, MERGED // at_once)


def keys(rows: tuple[int, ...], problem: Problem):
    """K or V as the kernels see them, so many rows of head_dim numbers, in fp8 of words (``steps.everyday.words``)."""
    if problem.kv_dtype:
        return array((*rows, problem.head_dim // NUMBERS), ct.int32)
    return array((*rows, problem.head_dim), getattr(ct, problem.dtype))


def in_words(x: torch.Tensor) -> torch.Tensor:
    """K or V in fp8, as they are or in pages ``[..., D]``, as words, int32 ``[..., D / 4]``.

    A copy where its memory has none.
    """
    import torch

    whole = x.stride(-1) == 1 and not any(n % NUMBERS for n in (x.data_ptr(), x.storage_offset(), *x.stride()[:-1]))
    return (x if whole else x.clone(memory_format=torch.contiguous_format)).view(torch.int32)


def outputs(problem: Problem):
    """Q and the output as the kernels see them, [batch, kv head, member of its group, query, head_dim]."""
    shape = (problem.batch, problem.kv_heads, problem.group_size, problem.seq_len_q, problem.head_dim)
    return array(shape, getattr(ct, problem.dtype))


def merging(variant: DecodeVariant, splits: int, with_lse: bool = False) -> tuple[Callable, int]:
    """The kernel that merges so many splits, and how many columns a block of it has."""
    at_once, columns = merged_at_once(splits, variant.head_dim)
    return _merge(at_once, columns, variant.members, variant.queries, with_lse), columns


_merge = cache(make_merge)


@cache
def _decode(variant: DecodeVariant) -> Callable:
    return variant.splitting.kernel(variant)
