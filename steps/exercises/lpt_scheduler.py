"""Dealing tiles of queries to persistent blocks: each tile once, and no block works much longer than the others."""

import heapq
import random

from tutorial_lib.exercises import Plain, Wrong


def longest_first(lengths, blocks):
    """The lists of the solution, and what the blocks then have to do."""
    free = [(0, block) for block in range(blocks)]
    dealt = [[] for _ in range(blocks)]
    for tile in sorted(range(len(lengths)), key=lambda tile: -lengths[tile]):
        when, block = heapq.heappop(free)
        dealt[block].append(tile)
        heapq.heappush(free, (when + lengths[tile], block))
    return dealt


def makespan(dealt, lengths) -> int:
    return max(sum(lengths[tile] for tile in tiles) for tiles in dealt)


def causal(tiles: int, heads: int) -> list[int]:
    """Lengths of the tiles of queries of some heads under a causal mask: the n-th sees n + 1 tiles of keys."""
    return [n + 1 for _ in range(heads) for n in range(tiles)]


def judged(function, chance: random.Random) -> str | None:
    cases = [
        ([5, 4, 3, 3, 3], 2),
        (causal(8, 3), 5),
        (causal(chance.randint(6, 9), chance.randint(3, 5)), chance.choice((4, 7))),
        ([chance.randint(1, 9) for _ in range(40)], 6),
    ]
    for lengths, blocks in cases:
        dealt = function(list(lengths), blocks)
        case = f"Lengths {lengths}, {blocks} blocks: "
        if not isinstance(dealt, list) or not all(isinstance(tiles, list | tuple) for tiles in dealt):
            return f"{case}there must be a list of lists of tiles, one for each block. This came: `{dealt!r}`."
        if len(dealt) != blocks:
            return f"{case}there must be {blocks} lists, one for each block, and yours are {len(dealt)}."
        taken = [tile for tiles in dealt for tile in tiles]
        unknown = [tile for tile in taken if tile not in range(len(lengths))]
        if unknown:
            return f"{case}there is no tile {unknown[0]!r}. The lists hold numbers of tiles, from 0, and not lengths."
        for tile in range(len(lengths)):
            if taken.count(tile) != 1:
                told = "by nobody" if tile not in taken else f"{taken.count(tile)} times"
                shared = " Is it one list, many times? `[[]] * n` makes that." if dealt[0] is dealt[-1] else ""
                return f"{case}tile {tile} must be taken once, and is taken {told}.{shared}"
        mine, best = makespan(dealt, lengths), makespan(longest_first(lengths, blocks), lengths)
        if mine > best:
            loads = [sum(lengths[tile] for tile in tiles) for tiles in dealt]
            ends = [lengths[tiles[-1]] for tiles in dealt if tiles]
            late = " A long tile comes last somewhere: begin with the longest." if max(ends) > min(lengths) + 2 else ""
            return (
                f"{case}every tile is taken once, but the block that has most to do has {mine} tiles of keys, where "
                f"{best} are enough. Your blocks have {loads}.{late}"
            )
    return None


EXERCISE = Plain(
    name="lpt_scheduler",
    function="deal",
    by=judged,
    hints=(
        "Think of a GPU that hands out tiles by itself: whoever is free first gets the next one. Keep, for every "
        "block, the time at which it is free.",
        "A long tile that begins last makes all others wait at the end. So go through the tiles from the longest to "
        "the shortest: sorted(range(len(lengths)), key=...).",
        "For each tile: block = the one whose time is least (min over a list of times, or a heap of pairs (time, "
        "block)); append the tile's number to its list, and add the tile's length to its time.",
    ),
    solution="""
def deal(lengths, blocks):
    free = [0] * blocks  # when each block has done what it was given so far
    dealt = [[] for _ in range(blocks)]
    for tile in sorted(range(len(lengths)), key=lambda tile: -lengths[tile]):
        block = free.index(min(free))
        dealt[block].append(tile)
        free[block] += lengths[tile]
    return dealt
""",
    wrong=(
        Wrong(
            "in turn, as they come",
            "has most to do",
            source="""
def deal(lengths, blocks):
    return [list(range(block, len(lengths), blocks)) for block in range(blocks)]
""",
        ),
        Wrong(
            "to whoever is free first, but in the order of their numbers",
            "longest",
            old="sorted(range(len(lengths)), key=lambda tile: -lengths[tile])",
            new="range(len(lengths))",
        ),
        Wrong("shortest first", "has most to do", old="-lengths[tile])", new="lengths[tile])"),
        Wrong("lengths in place of numbers", "numbers of tiles", old="append(tile)", new="append(lengths[tile])"),
        Wrong("one list, many times", "one list, many times", old="[[] for _ in range(blocks)]", new="[[]] * blocks"),
        Wrong("what blocks have to do, not what", "a list of lists", old="return dealt", new="return free"),
        Wrong("tiles are counted, and not their lengths", "has most to do", old="+= lengths[tile]", new="+= 1"),
    ),
    debrief="This is LPT scheduling (longest processing time first). The short tiles come last and fill the gaps, so "
    "all blocks end nearly together. It is not always the best possible (5 + 4 and 3 + 3 + 3 would do with 9 each), "
    "but it is never far from it.",
)
