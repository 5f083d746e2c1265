"""How many blocks add to a tile of dQ before a block does, under a causal mask: step deterministic."""

from tutorial_lib.exercises import Compared, Wrong

TILE_QUERY, TILE_KEY = 64, 128


def adding(i: int, blocks: int) -> list[int]:
    """The blocks that add to tile i of dQ."""
    return [j for j in range(blocks) if j * TILE_KEY < (i + 1) * TILE_QUERY]


def cases(chance):
    for blocks in (1, 2, chance.randint(3, 12)):
        tiles = blocks * TILE_KEY // TILE_QUERY + chance.choice([-1, 0, 3])
        yield from ((j, i, blocks) for i in range(tiles) for j in adding(i, blocks))


def told(j: int, i: int, blocks: int) -> str:
    last = adding(i, blocks)[-1]
    return (
        f"To tile {i} add the blocks 0 to {last}. It is the first tile that block {last} comes to. The nearer the keys "
        "of a block are to the tile's queries, the fewer tiles it has gone through before, and the earlier it adds."
    )


EXERCISE = Compared(
    name="turn_order",
    function="blocks_before",
    cases=cases,
    told=told,
    hints=(
        "Block j begins with tile j * 128 // 64, as the mask hides all queries before it. So of all blocks that add to "
        "a tile, which one begins with it? That is the first.",
        "Let `last` be the last block that adds to tile i. Block `last` adds first, then `last - 1`, and so on down to "
        "block 0. What number has block j?",
        "The number is `last - j`. The last query of the tile is (i + 1) * 64 - 1, and its block of keys is that "
        "divided by 128. There is no block behind block blocks - 1.",
    ),
    solution="""
def blocks_before(j, i, blocks):
    last = min(blocks - 1, ((i + 1) * 64 - 1) // 128)
    return last - j
""",
    wrong=(
        Wrong("the block with the first keys adds first, and the others wait", old="return last - j", new="return j"),
        Wrong(
            "blocks are counted that there are not: nobody may begin",
            old="min(blocks - 1, ((i + 1) * 64 - 1) // 128)",
            new="(i + 1) * 64 // 128",
        ),
        Wrong(
            "the first query of the next tile is counted with this one: nobody may begin",
            old="((i + 1) * 64 - 1) // 128",
            new="(i + 1) * 64 // 128",
        ),
        Wrong("the first block has number 1: nobody may begin", old="return last - j", new="return last - j + 1"),
        Wrong("all add at once", old="return last - j", new="return 0"),
        Wrong(
            "behind the first block the others add in the order of their keys",
            old="return last - j",
            new="return 0 if j == last else j + 1",
        ),
    ),
    debrief="Block 0 adds last to every tile, and it is also the block with the most tiles. It comes to a tile when "
    "all others have long gone on, so it seldom waits. For the first tiles there is nobody else.",
)
