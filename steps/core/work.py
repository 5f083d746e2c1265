"""What a launch has to do: how much falls to the place on the GPU that has most.

A GPU holds so many blocks at a time. Each of these *places* computes one tile of queries after the other, and the
launch ends with the place that ends last. ``steps.core.cost`` has a model of the time that this takes.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from steps.core.fused import queries_seen, tiles_seen
from steps.core.tiles import Tile
from tutorial_lib.architectures import REFERENCE_GPUS
from tutorial_lib.problem import BYTES_PER_ELEMENT, Problem

DEALT_BY_HAND = 8  # blocks a place, up to which it is computed which place takes which; with more, ends hardly differ
OF_SDPA = Tile(128, 128)  # cuDNN's, which PyTorch's attention mostly calls on Hopper


@dataclass(frozen=True)
class Work:
    """What a launch has to do.

    iterations: tiles of scores that the place which ends last computes, one after the other. tiles: of queries (in the
    backward pass of keys) that it begins. tile, head_dim: of the kernel. rows: of partial results in float32 that go
    through memory. merged: of these, those of one query tile that are merged one after the other. kernels: that a call
    launches, one after the other.
    """

    iterations: float
    tiles: float
    tile: Tile
    head_dim: int
    rows: int = 0
    merged: int = 0
    kernels: int = 1

    @classmethod
    def dealt(cls, lengths: Sequence[int], heads: int, places: int, longest_first: bool, *args, **fields) -> Work:
        """The work of blocks that go to the place that is free first.

        lengths: iterations of a head's blocks, in the order of their numbers. longest_first: whether these go first, of
        all heads; else head comes after head.
        """
        return cls(*_of_the_last(tuple(lengths), heads, places, longest_first), *args, **fields)

    @classmethod
    def of_queries(cls, problem: Problem, rows: Tile, places: int, longest_first: bool, *args, **fields) -> Work:
        """The work of blocks that own tiles of queries; rows: the tile as the problem counts it."""
        lengths = [
            tiles_seen(each, rows, i) for each in problem.sequences for i in range(-(-each.seq_len_q // rows.query))
        ]
        return cls.dealt(lengths, problem.batch * problem.heads, places, longest_first, *args, **fields)

    @classmethod
    def of_keys(
        cls, problem: Problem, tile: Tile, heads: int, held: int, head_dim: int, of_a_block: int = 1, parts: int = 1,
        added: bool = True,
    ) -> Work:  # fmt: skip
        """The work of a backward pass, whose blocks own tiles of keys of so many heads of a sequence.

        of_a_block: tiles of keys that a block has. parts: blocks that share their queries. added: whether dQ is
        added up.
        """
        lengths = []
        for each in problem.sequences:
            blocks, group = range(-(-each.seq_len_kv // tile.key)), problem.heads // heads
            seen = [queries_seen(each, tile, j) * group for j in blocks]
            shares = [-(-sum(seen[j : j + of_a_block]) // parts) for j in blocks[::of_a_block]]
            lengths += [share for share in shares for _ in range(parts)]
        rows = 2 * problem.batch * problem.heads * problem.seq_len_q if added else 0  # of dQ: written, and read
        return cls.dealt(lengths, problem.batch * heads, held, True, tile, head_dim, rows=rows, kernels=3)

    @classmethod
    def of_sdpa(cls, problem: Problem, arch: str) -> Work:
        """What PyTorch's attention has to do, as far as its times tell, whichever kernel it is.

        One query of a head: its keys are split over all places. Several: a block for each tile of queries of a query
        head reads all keys, however few blocks there are. A window is a mask in memory, and hides no tile. Tiles have
        a multiple of 64 columns.
        """
        held, columns = places(arch), 64 * -(-problem.head_dim // 64)
        if problem.seq_len_q == 1:
            tiles = problem.batch * problem.kv_heads * -(-problem.seq_len_kv // OF_SDPA.key)
            return cls(tiles / held, 1.0, OF_SDPA, columns)
        if problem.window:
            problem = replace(problem, window=None, causal=False)
        return cls.of_queries(problem, OF_SDPA, held, True, OF_SDPA, columns)

    @classmethod
    def of_sdpa_gradients(cls, problem: Problem, arch: str) -> Work:
        """The same of the gradients of PyTorch's attention: a block for each tile of keys of a query head."""
        return cls.of_keys(problem, OF_SDPA, problem.heads, places(arch), problem.head_dim)

    def counts(self, problem: Problem) -> tuple[float, ...]:
        """What each cost is multiplied with: products, softmax, ends of tiles, a launch, merging, bytes.

        In units that each take about a microsecond: of the first three a tile of 128 by 128, and head_dim 128. Of
        several kernels no record is so short that it tells what a launch costs: a fit finds anything.
        """
        scores = self.iterations * self.tile.query * self.tile.key
        keys = 2 * problem.batch * problem.kv_heads * problem.seq_len_kv * problem.head_dim * BYTES_PER_ELEMENT
        return (
            scores * self.head_dim / 128**3,
            scores / 128**2,
            self.tiles * self.tile.query * self.head_dim / 128**2,
            1.0 if self.kernels == 1 else 0.0,
            self.merged * self.head_dim / 128**2,
            (keys + 4 * self.rows * self.head_dim) / 3e6,
        )


def places(arch: str, a_processor: int = 1, together: int = 1) -> int:
    """Blocks that the reference GPU of ``arch`` holds; together: SMs that share one."""
    gpu = REFERENCE_GPUS.get(arch)
    return max(1, (gpu.multiprocessors if gpu else 1) * a_processor // together)


@lru_cache(maxsize=1024)  # many steps have the same tiles
def _of_the_last(lengths: tuple[int, ...], heads: int, held: int, longest_first: bool) -> tuple[float, float]:
    """(iterations, tiles) of the place that ends last."""
    blocks = len(lengths) * heads
    if min(lengths) == max(lengths):
        waves = -(-blocks // held)
        return waves * lengths[0], waves
    if blocks > DEALT_BY_HAND * held:
        late = min(lengths) if longest_first else max(lengths)  # what begins last; half of it is beyond the mean
        return sum(lengths) * heads / held + late / 2, blocks / held
    ordered = sorted(lengths, reverse=True) if longest_first else lengths
    free = [(0, 0)] * min(held, blocks)  # (when, tiles so far)
    for length in (n for n in ordered for _ in range(heads)) if longest_first else ordered * heads:
        when, tiles = heapq.heappop(free)
        heapq.heappush(free, (when + length + 1, tiles + 1))  # 1: to begin and to end
    when, tiles = max(free)
    return when - tiles, tiles
