"""How many blocks add to a tile of dQ before a block does, under a causal mask: step deterministic."""

from tutorial_lib.exercises import Plain, Wrong

TILE_QUERY, TILE_KEY = 64, 128


def judge(function, chance):
    for blocks in (1, 2, chance.randint(3, 12)):
        tiles = blocks * TILE_KEY // TILE_QUERY + chance.choice([-1, 0, 3])
        for i in range(tiles):
            adding = [j for j in range(blocks) if j * TILE_KEY < (i + 1) * TILE_QUERY]
            numbers = {j: function(j, i, blocks) for j in adding}
            if told := _wrong(numbers, i, blocks):
                return told
    return None


def _wrong(numbers: dict, i: int, blocks: int) -> str | None:
    where = f"With {blocks} blocks of {TILE_KEY} keys, tile {i} of dQ"
    for j, number in numbers.items():
        if not isinstance(number, int):
            return f"`blocks_before({j}, {i}, {blocks})` must be a whole number, and yours gives {number!r}."
    told = ", ".join(f"block {j}: {number}" for j, number in numbers.items())
    if not any(number == 0 for number in numbers.values()):
        return f"{where}: nobody may begin, all of them wait for ever ({told})."
    if sorted(numbers.values()) != list(range(len(numbers))):
        return f"{where} is added to by {len(numbers)} blocks, whose numbers must be 0 to {len(numbers) - 1} ({told})."
    first, last = min(numbers, key=numbers.get), max(numbers)
    if first != last:
        return (
            f"{where}: block {first} is the first to add. But the tile is the first that block {last} comes to: it "
            f"would wait while block {first} goes through all tiles before this one ({told})."
        )
    for j, number in numbers.items():
        if number != last - j:
            return (
                f"{where}: block {j} has the number {number}. The nearer its keys are to the tile's queries, the fewer "
                f"tiles a block has gone through before, and the earlier it should add ({told})."
            )
    return None


EXERCISE = Plain(
    name="turn_order",
    function="blocks_before",
    by=judge,
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
        Wrong("the first keys first", "would wait while", old="return last - j", new="return j"),
        Wrong(
            "behind the end",
            "nobody may begin",
            old="min(blocks - 1, ((i + 1) * 64 - 1) // 128)",
            new="(i + 1) * 64 // 128",
        ),
        Wrong(
            "the tile's end is another's",
            "nobody may begin",
            old="((i + 1) * 64 - 1) // 128",
            new="(i + 1) * 64 // 128",
        ),
        Wrong("from one", "nobody may begin", old="return last - j", new="return last - j + 1"),
        Wrong("all at once", "whose numbers must be", old="return last - j", new="return 0"),
        Wrong(
            "another order behind the first",
            "should add",
            old="return last - j",
            new="return 0 if j == last else j + 1",
        ),
    ),
    debrief="Block 0 adds last to every tile, and it is also the block with the most tiles. It comes to a tile when "
    "all others have long gone on, so it seldom waits. For the first tiles there is nobody else.",
)
