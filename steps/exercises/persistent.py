"""Dealing tiles of queries to persistent blocks: the longest first, each to the block that is free first."""

from steps.exercises.lpt_scheduler import judged
from tutorial_lib.exercises import Plain, Wrong

EXERCISE = Plain(
    name="persistent",
    function="deal",
    by=judged,
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
            "begin with the longest",
            old="sorted(range(len(lengths)), key=lambda tile: -lengths[tile])",
            new="range(len(lengths))",
        ),
        Wrong("the shortest first", "has most to do", old="-lengths[tile]", new="lengths[tile]"),
        Wrong("time stands still", "has most to do", old="when + lengths[tile]", new="when"),
        Wrong("lengths for numbers", "there is no tile", old="append(tile)", new="append(100 + lengths[tile])"),
    ),
    debrief="Long tiles first leave short ones for the end, and those fill the gaps. It is called LPT scheduling, "
    "longest processing time first, and `steps/core/order.py` deals so for each section of heads.",
)
