"""Which tile of queries a block computes in which of its turns, when blocks count."""

from dataclasses import dataclass
from types import SimpleNamespace

from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import Wrong, define, source_of


@dataclass(frozen=True, kw_only=True)
class Counted(InKernel):
    """The function's numbers are looked at first: a tile that is left out, or in another order, is told by name."""

    def judge(self, function, chance):
        source = source_of(function)
        for seq_len, heads, batches, blocks in [(640, 3, 2, 4), (chance.randint(200, 700), 2, 3, chance.randint(3, 5))]:
            a_head = -(-seq_len // 128)
            tiles = a_head * heads * batches
            told = f"{batches} batches of {heads} heads of {a_head} tiles, {blocks} blocks: "
            for block in range(blocks):
                known = SimpleNamespace(
                    cdiv=lambda a, b: -(-a // b), bid=lambda axis, b=block: b, num_blocks=lambda axis, n=blocks: n
                )
                own = define(source, function.__name__, ct=known, TILE_QUERY=128)
                for turn in range(-(-(tiles - block) // blocks)):
                    number = block + turn * blocks
                    right = (number % a_head, number // a_head % heads, number // (a_head * heads))
                    mine = tuple(own(turn, SimpleNamespace(shape=(batches, heads, seq_len, 64))))
                    if mine != right:
                        return told + (
                            f"in turn {turn}, block {block} computes tile number {number}, which is tile {right[0]} of "
                            f"head {right[1]} in batch {right[2]}. Yours gives i, head, batch = {mine}."
                        )
        return super().judge(function, chance)


EXERCISE = Counted(
    name="counted",
    step="counted",
    function="position",
    kinds=({"batch": 2, "heads": 2, "kv_heads": 1, "seq_len_kv": 128},),
    lengths=(270, 380),
    edits=(
        (
            "    for n in range(ct.bid(0), tiles, ct.num_blocks(0)):\n",
            "    for turn in range(ct.cdiv(tiles - ct.bid(0), ct.num_blocks(0))):\n",
        ),
        (
            """        tiles_a_head, heads = ct.cdiv(Q.shape[2], TILE_QUERY), Q.shape[1]
        head = n // tiles_a_head
        i, head, batch = n % tiles_a_head, head % heads, head // heads
""",
            "        i, head, batch = position(turn, Q)\n",
        ),
    ),
    hints=(
        "Block ct.bid(0) begins with the tile of its own number. From one turn to the next the number grows by how "
        "many blocks there are.",
        "number = ct.bid(0) + turn * ct.num_blocks(0). A head has ct.cdiv(Q.shape[2], TILE_QUERY) tiles, and the tiles "
        "of a head have numbers in a row.",
        "number % tiles_a_head is the tile, and number // tiles_a_head counts heads of all batches: % heads is the "
        "head, and // heads the batch.",
    ),
    solution="""
def position(turn, Q):
    number = ct.bid(0) + turn * ct.num_blocks(0)
    tiles_a_head, heads = ct.cdiv(Q.shape[2], TILE_QUERY), Q.shape[1]
    head = number // tiles_a_head
    return number % tiles_a_head, head % heads, head // heads
""",
    wrong=(
        Wrong("the next tile, not the n-th", "in turn 1, block 0", old="turn * ct.num_blocks(0)", new="turn"),
        Wrong(
            "the factors are swapped",
            "in turn 1, block 0",
            old="ct.bid(0) + turn * ct.num_blocks(0)",
            new="turn + ct.bid(0) * ct.num_blocks(0)",
        ),
        Wrong(
            "the heads change fastest",
            "in turn 1, block 0",
            old="""    head = number // tiles_a_head
    return number % tiles_a_head, head % heads, head // heads""",
            new="""    batch = number // (heads * tiles_a_head)
    return number // heads % tiles_a_head, number % heads, batch""",
        ),
        Wrong(
            "tiles a head are rounded down",
            "i, head, batch",
            old="ct.cdiv(Q.shape[2], TILE_QUERY)",
            new="(Q.shape[2] - 1) // TILE_QUERY",
        ),
        Wrong(
            "head and batch are swapped",
            "i, head, batch",
            old="head % heads, head // heads",
            new="head // heads, head % heads",
        ),
    ),
    debrief="The number of the next tile is an addition. Nothing has to be loaded before Q can be fetched, and blocks "
    "that run together work on neighbouring tiles of the same head.",
)
