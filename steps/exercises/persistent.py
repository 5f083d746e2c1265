"""Dealing tiles of queries to persistent blocks: the longest first, each to the block that is free first."""

import heapq

from tutorial_lib.exercises import Plain, Wrong


def _loads(lengths, blocks, tiles, cost=lambda length: length):
    """What each block gets to do when the tiles go, in this order, to the block that is free first."""
    free, loads = [(0, block) for block in range(blocks)], [0] * blocks
    for tile in tiles:
        when, block = heapq.heappop(free)
        loads[block] += lengths[tile]
        heapq.heappush(free, (when + cost(lengths[tile]), block))
    return loads


def _cases(chance):
    """Lengths of a causal mask's tiles for which the order matters, and the time of a tile, too."""
    found = []
    while len(found) < 4:
        a_head, heads, blocks = chance.randint(5, 9), chance.randint(2, 3), chance.randint(3, 5)
        lengths = [1 + n for n in range(a_head)] * heads
        longest_first = sorted(range(len(lengths)), key=lambda n: -lengths[n])
        best = max(_loads(lengths, blocks, longest_first))
        others = [
            _loads(lengths, blocks, range(len(lengths))),
            _loads(lengths, blocks, longest_first[::-1]),
            _loads(lengths, blocks, longest_first, cost=lambda _: 1),
        ]
        if min(map(max, others)) > best:
            found.append((lengths, blocks, best))
    return found


def _judge(function, chance):
    for lengths, blocks, best in _cases(chance):
        told = f"With tiles of {lengths} iterations for {blocks} blocks: "
        dealt = function(list(lengths), blocks)
        if len(dealt) != blocks:
            return told + f"there must be a list for each block, and you give {len(dealt)}."
        taken = [tile for tiles in dealt for tile in tiles]
        if unknown := [tile for tile in taken if tile not in range(len(lengths))]:
            return told + f"there is no tile {unknown[0]}: tiles have the numbers 0 to {len(lengths) - 1}."
        for tile in range(len(lengths)):
            if (times := taken.count(tile)) != 1:
                return told + f"tile {tile} must be taken once, and is taken {times} times."
        loads = [sum(lengths[tile] for tile in tiles) for tiles in dealt]
        if max(loads) > best:
            most = loads.index(max(loads))
            return told + (
                f"your blocks have {loads} iterations, and all wait for block {most}, with the tiles {dealt[most]}. "
                f"Dealt the longest first, each to the block that is free first, none has more than {best}."
            )
    return None


EXERCISE = Plain(
    name="persistent",
    function="deal",
    by=_judge,
    hints=(
        "A heap gives its smallest entry first. Entries (when, block) come out by the time when a block is free.",
        "`sorted(range(len(lengths)), key=lambda tile: -lengths[tile])` gives the numbers of the tiles, longest first.",
        "Pop (when, block), append the tile to `dealt[block]`, and push (when + lengths[tile], block) back.",
    ),
    solution="""
def deal(lengths, blocks):
    import heapq

    free = [(0, block) for block in range(blocks)]
    dealt = [[] for _ in range(blocks)]
    for tile in sorted(range(len(lengths)), key=lambda tile: -lengths[tile]):
        when, block = heapq.heappop(free)
        dealt[block].append(tile)
        heapq.heappush(free, (when + lengths[tile], block))
    return dealt
""",
    wrong=(
        Wrong(
            "the tiles by their numbers",
            "all wait for block",
            old="sorted(range(len(lengths)), key=lambda tile: -lengths[tile])",
            new="range(len(lengths))",
        ),
        Wrong("the shortest first", "all wait for block", old="-lengths[tile]", new="lengths[tile]"),
        Wrong("a tile counts as one iteration", "all wait for block", old="when + lengths[tile]", new="when + 1"),
        Wrong("time stands still", "all wait for block 0", old="when + lengths[tile]", new="when"),
        Wrong("lengths for numbers", "there is no tile", old="append(tile)", new="append(100 + lengths[tile])"),
        Wrong(
            "one list for all blocks",
            "times",
            old="[[] for _ in range(blocks)]",
            new="[[]] * blocks",
        ),
    ),
    debrief="Long tiles first leave short ones for the end, and those fill the gaps. It is called LPT scheduling, "
    "longest processing time first, and `steps/core/order.py` deals so for each section of heads.",
)
