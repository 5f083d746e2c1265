"""Which block computes which tiles of queries, and in which order.

Two things are worth an order of one's own. Tiles of a causal mask differ in length, and the last to begin should be
short. And K and V of the heads that are computed at the same time should fit in the L2 cache together: heads come in
sections, of which L2 holds one. A GPU that is given a block a tile hands the blocks out by their numbers, each to the
SM that is free first; there it is enough to number them well. Persistent blocks, as many as the SMs hold, must know
their tiles: these are dealt out here, before the launch, as the GPU would; or, where all are as long, they count; or
they take them one after the other from a counter.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from steps.core.fused import grid, tiles_seen
from steps.core.tiles import Tile
from tutorial_lib.architectures import REFERENCE_GPUS
from tutorial_lib.problem import BYTES_PER_ELEMENT, Problem

SECTION_BYTES = 8 * 2**20  # K and V of heads that run together; chosen in a short trial on an H100, not recorded
FEW = 4  # tiles of queries of a head, up to which blocks can compute which are theirs
WORTH = 0.01  # how much sooner the end must come, as a share, for another last section
START = 1  # what beginning and ending a tile of queries costs, in tiles of keys


@dataclass(frozen=True)
class Order:
    """persistent: as many blocks as the SMs hold, each with its list of tiles; else a block a tile.

    section_bytes: of K and V of a section, the heads that run together, in which the longest tiles come first; None:
    head after head. counted: where all tiles are as long as each other, persistent blocks need no list: of n blocks
    each computes every n-th tile.
    taken: blocks have no lists, but take the next tile when they are ready for one. balanced_tail: the last section has
    more heads, where blocks would else end at different times (``deal``). computed: where a head has few tiles of
    queries, up to ``FEW``, blocks have no lists, but compute which tiles are theirs.

    Raises ValueError for values that do not go together.
    """

    persistent: bool
    section_bytes: int | None
    counted: bool = False
    taken: bool = False
    balanced_tail: bool = False
    computed: bool = False

    def __post_init__(self):
        kinds = self.counted + self.taken + self.computed
        if kinds > self.persistent:
            raise ValueError("an order is counted, or taken, or computed, for persistent blocks, and one of these")

    def __str__(self) -> str:
        if self.counted:
            return "counted by persistent blocks, under a mask dealt to them"
        if self.taken:
            return "taken by persistent blocks"
        if self.persistent:
            few = f", or computed by them where a head has up to {FEW} tiles" if self.computed else ""
            return "dealt to persistent blocks" + (", that end together" if self.balanced_tail else "") + few
        return "one block per tile, longest first in sections of heads" if self.section_bytes else "one block per tile"

    def counts(self, problem: Problem) -> bool:
        """Whether blocks count through the tiles of ``problem``, and read no list."""
        return self.persistent and self.counted and not problem.causal

    def computes(self, problem: Problem, tile: Tile) -> bool:
        """Whether blocks compute which tiles of ``problem`` are theirs, and read no list."""
        return self.computed and problem.lengths is None and tiles_a_head(problem, tile) <= FEW

    def places(self, problem: Problem, tile: Tile, places: int) -> int:
        """How many blocks stay, of so many that would run at once.

        Where they compute which tiles of different lengths are theirs, a multiple of a head's tiles: see step
        hopper_static_scheduler."""
        a_head = tiles_a_head(problem, tile)
        uneven = problem.causal and self.computes(problem, tile) and places > a_head
        return places - places % a_head if uneven else places

    def section(self, problem: Problem) -> int:
        """Heads of a section, where a block's number tells its tile: they divide all heads evenly. 0: no sections."""
        if self.persistent or self.section_bytes is None:
            return 0
        heads = problem.batch * problem.heads
        return next(n for n in range(section_heads(problem, self.section_bytes), 0, -1) if heads % n == 0)

    def lengths(self, problem: Problem, tile: Tile, arch: str) -> tuple[int, ...]:
        """Lengths of the lists that blocks which stay read, on the reference GPU of ``arch``; else nothing."""
        if not self.persistent or self.counts(problem) or self.computes(problem, tile):
            return ()
        number = tiles_a_head(problem, tile) * problem.heads * problem.batch
        gpu = REFERENCE_GPUS.get(arch)
        blocks = min(number, gpu.multiprocessors if gpu else number)
        return number, blocks + 1

    def lists(self, problem: Problem, tile: Tile, arch: str, a_processor: int = 1, together: int = 1) -> str | None:
        """A fingerprint of the lists on the reference GPU of ``arch``, where ``balanced_tail`` makes them others; else
        None.

        Two steps with the same machine code are not the same where their blocks read other lists.
        """
        gpu = REFERENCE_GPUS.get(arch)
        if not (self.balanced_tail and gpu):
            return None
        held = max(1, a_processor * gpu.multiprocessors // together)
        evenly, before = (deal(problem, tile, held, self.section_bytes, balanced) for balanced in (True, False))
        return None if evenly == before else hashlib.sha256(repr(evenly).encode()).hexdigest()[:16]

    def number(self, problem: Problem, tile: Tile, arch: str, a_processor: int = 1, together: int = 1) -> int:
        """How many blocks are launched on the reference GPU of ``arch``; see ``blocks``."""
        number = math.prod(grid(problem, tile))
        gpu = REFERENCE_GPUS.get(arch)
        if not (self.persistent and gpu):
            return number
        return min(number, self.places(problem, tile, a_processor * gpu.multiprocessors // together))

    def blocks(
        self, problem: Problem, tile: Tile, device, a_processor: int = 1, together: int = 1
    ) -> tuple[int, tuple]:
        """(number of blocks, (order, starts)): block b computes the tiles order[starts[b] : starts[b + 1]].

        Both are int32 tensors on the device. A tile of queries has the number
        (batch * heads + head) * tiles_a_head + tile. Without ``persistent``, or where blocks count or compute which
        tiles are theirs, nobody reads them.
        a_processor: blocks that an SM holds. together: SMs whose blocks share a tile, and count as one here. Where
        blocks take tiles, order has all of them (of packed sequences none), and starts says how many were taken beyond
        the first of every block, and how many there are. Kernels count in a copy of it: two that run at the same time
        must not have the same.
        """
        number = math.prod(grid(problem, tile))
        if not self.persistent:
            return number, _nothing(device)
        places = self.places(problem, tile, max(1, a_processor * processors(device) // together))
        if self.counts(problem) or self.computes(problem, tile):
            return min(number, places), _nothing(device)
        if self.taken:
            if problem.lengths is not None:  # which the GPU alone knows
                return min(number, places), (_nothing(device)[0], _taken(number, device))
            order, _ = _on_device(problem, tile, 1, self.section_bytes, False, device)
            return min(number, places), (order, _taken(number, device))
        lists = _on_device(problem, tile, places, self.section_bytes, self.balanced_tail, device)
        return len(lists[1]) - 1, lists


NATURAL = Order(persistent=False, section_bytes=None)
SECTIONS = Order(persistent=False, section_bytes=SECTION_BYTES)
DEALT = Order(persistent=True, section_bytes=SECTION_BYTES)
COUNTED = Order(persistent=True, section_bytes=SECTION_BYTES, counted=True)
TAKEN = Order(persistent=True, section_bytes=SECTION_BYTES, taken=True)


def processors(device) -> int:
    """SMs of a device; the CPU, on which the interpreter runs a block after the other, stands for a few."""
    import torch

    return 3 if device.type == "cpu" else torch.cuda.get_device_properties(device).multi_processor_count


def tiles_a_head(problem: Problem, tile: Tile) -> int:
    return -(-problem.seq_len_q // tile.query)


def length(problem: Problem, tile: Tile, i: int) -> int:
    """What the i-th tile of queries of a head costs, in tiles of keys."""
    return START + tiles_seen(problem, tile, i)


def deal(
    problem: Problem,
    tile: Tile,
    processors: int,
    section_bytes: int | None = SECTION_BYTES,
    balanced_tail: bool = False,
) -> list[list[int]]:
    """The tiles of queries of every block, in order: each goes to the block that is free first, long ones early.

    Heads come in sections whose K and V fit in L2 together; inside a section the longest tiles come first, those of the
    same length head by head. balanced_tail: where a long tile of the last section would begin too late, that section
    has so many heads that their tiles keep all blocks busy for as long as the longest of them takes."""
    heads = problem.batch * problem.heads
    section = section_heads(problem, section_bytes)
    lengths = [length(problem, tile, i) for i in range(tiles_a_head(problem, tile))]
    dealt, ends = _deal(lengths, heads, section, 0, processors)
    if balanced_tail and max(ends) * len(ends) > (1 + WORTH) * sum(ends):
        last = min(heads, -(-processors * max(lengths) // sum(lengths)))
        other, its_ends = _deal(lengths, heads, section, last, processors)
        if max(ends) > (1 + WORTH) * max(its_ends):
            return other
    return dealt


def _deal(
    lengths: list[int], heads: int, section: int, last: int, processors: int
) -> tuple[list[list[int]], list[int]]:
    """(The tiles of every block, when each block ends), with so many heads at least in the last section."""
    a_head = len(lengths)
    longest_first = sorted(range(a_head), key=lambda i: -lengths[i])
    free = [(0, block) for block in range(min(processors, a_head * heads))]  # (when, which)
    dealt: list[list[int]] = [[] for _ in free]
    before = max(0, heads - last) // section * section if last > section else heads
    firsts = [*range(0, before, section), before, heads] if before < heads else [*range(0, heads, section), heads]
    for first, end in pairwise(firsts):
        for i in longest_first:
            for head in range(first, end):
                when, block = heapq.heappop(free)
                dealt[block].append(head * a_head + i)
                heapq.heappush(free, (when + lengths[i], block))
    return dealt, [when for when, _ in free]


def shares(problem: Problem, tile: Tile, processors: int) -> dict[str, list[int]]:
    """What every block, or SM, has to do, in tiles of keys, by how tiles of queries are handed out.

    "by number, in turn": a block takes every ``processors``-th. "by number, to whoever is free": as the GPU hands out
    blocks of a tile each. "LPT lists": from the longest to the shortest, to whoever is free.
    """
    a_head = tiles_a_head(problem, tile)
    total = a_head * problem.heads * problem.batch
    lengths = [length(problem, tile, i) for i in range(a_head)]
    in_turn = [range(block, total, processors) for block in range(min(processors, total))]
    free = [0 for _ in in_turn]  # when each SM is
    for n in range(total):
        heapq.heapreplace(free, free[0] + lengths[n % a_head])

    def loads(dealt: Iterable[Iterable[int]]) -> list[int]:
        return [sum(lengths[n % a_head] for n in tiles) for tiles in dealt]

    return {
        "by number, in turn": loads(in_turn),
        "by number, to whoever is free": free,
        "LPT lists": loads(deal(problem, tile, processors)),
    }


def section_heads(problem: Problem, section_bytes: int | None = SECTION_BYTES) -> int:
    """How many heads run together: as many as K and V of fit in a part of L2; with None one after the other."""
    if section_bytes is None:
        return 1
    shared = 2 * problem.seq_len_kv * problem.head_dim * BYTES_PER_ELEMENT / problem.group_size
    return max(1, min(problem.batch * problem.heads, int(section_bytes / shared)))


@lru_cache(maxsize=32)
def _on_device(problem: Problem, tile: Tile, processors: int, section_bytes: int | None, balanced_tail: bool, device):
    import torch

    dealt = deal(problem, tile, processors, section_bytes, balanced_tail)
    starts = [0]
    for tiles in dealt:
        starts.append(starts[-1] + len(tiles))
    order = [number for tiles in dealt for number in tiles]
    return tuple(torch.tensor(x, dtype=torch.int32, device=device) for x in (order, starts))


def _taken(number: int, device):
    import torch

    return torch.tensor([0, number], dtype=torch.int32, device=device)


@lru_cache(maxsize=32)
def _nothing(device):
    import torch

    return (torch.zeros(1, dtype=torch.int32, device=device),) * 2
