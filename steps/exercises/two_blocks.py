"""What a block may take, if so many blocks shall fit on an SM."""

import random

from tutorial_lib.exercises import Plain, Wrong

SM = 228 * 1024  # bytes of shared memory
OWN = 3 * 1024  # that every block needs for itself
KNOWN = [  # blocks, threads, query, key, head_dim
    (1, 256, 64, 128, 128),
    (2, 256, 64, 128, 128),
    (3, 256, 64, 128, 128),
    (2, 256, 64, 128, 64),
    (1, 256, 64, 128, 256),
    (2, 256, 64, 128, 256),
    (2, 384, 128, 64, 64),
    (1, 128, 64, 16, 32),  # so that no two of the mistakes below are alike on all of these
    (5, 256, 128, 128, 256),  # not even Q fits
    (5, 128, 64, 16, 16),  # a share that is no whole number of KiB
    (6, 128, 64, 1, 36),  # 3 KiB are not 3000 bytes
]


def room(blocks: int, threads: int, query: int, key: int, head_dim: int) -> tuple[int, int]:
    """Registers of a thread, and tiles of K or V that find a place beside Q in a block's shared memory."""
    registers = min(255, 65536 // (blocks * threads) // 8 * 8)
    shared = SM // blocks - OWN
    return registers, max(0, shared - 2 * query * head_dim) // (2 * key * head_dim)


# What people leave out, and how many registers, or tiles, they then find.
REGISTERS = {
    "registers come in units of 8 a thread": lambda blocks, threads: min(255, 65536 // (blocks * threads)),
    "all blocks share the registers": lambda blocks, threads: min(255, 65536 // threads // 8 * 8),
    "all threads of a block share its registers": lambda blocks, threads: min(255, 65536 // blocks // 8 * 8),
}
TILES = {  # of the number of blocks, bytes of Q, bytes of a tile
    "Q takes a place, too": lambda blocks, q, tile: (SM // blocks - OWN) // tile,
    "a number takes 2 bytes": lambda blocks, q, tile: (SM // blocks - OWN - q // 2) // (tile // 2),
    "3 KiB of every block are no room for tiles": lambda blocks, q, tile: (SM // blocks - q) // tile,
    "every block needs 3 KiB, not all of them together": lambda blocks, q, tile: ((SM - OWN) // blocks - q) // tile,
    "every block has a Q of its own": lambda blocks, q, tile: ((SM - q) // blocks - OWN) // tile,
    "the blocks share the memory": lambda blocks, q, tile: (SM - OWN - q) // tile,
}


def _forgotten(mistakes: dict, mine: list[int], cases: list[tuple]) -> str:
    """The one mistake that explains all that was returned, as a sentence."""
    found = [
        what
        for what, wrong in mistakes.items()
        if all(max(0, wrong(*case)) == max(0, one) for one, case in zip(mine, cases))
    ]
    return f" **Something is left out: {found[0]}.**" if len(found) == 1 else ""


def _judge(function, chance: random.Random):
    sizes = [
        (blocks, 128 * chance.randint(1, 3), chance.choice((64, 128)), chance.choice((32, 64)), chance.choice((32, 64)))
        for blocks in (1, 2, 3, 4, 5)
    ]
    cases = [*KNOWN, *sizes]
    mine = [function(*case) for case in cases]
    for case, one in zip(cases, mine):
        if not (isinstance(one, tuple) and len(one) == 2 and all(isinstance(n, int) for n in one)):
            return f"`room{case}` must be two whole numbers, registers and tiles. Yours gives `{one!r}`."
    for case, one in zip(cases, mine):
        if one == (right := room(*case)):
            continue
        blocks, threads, query, key, head_dim = case
        told = f"`room{case}` must be {right}, and yours gives {one}. "
        if one[0] != right[0]:
            if one[0] > 255:
                return f"{told}{blocks} × {threads} threads share 65536 registers, but no thread has more than 255."
            why = _forgotten(REGISTERS, [n for n, _ in mine], [case[:2] for case in cases])
            return f"{told}{blocks} × {threads} threads share 65536 registers.{why}"
        if one[1] < 0:
            return f"{told}Where not even Q fits, no tile does: 0."
        sizes = [(blocks, 2 * query * head_dim, 2 * key * head_dim) for blocks, _, query, key, head_dim in cases]
        why = _forgotten(TILES, [n for _, n in mine], sizes)
        each = f"Each of {blocks} blocks has" if blocks > 1 else "The block has"
        return (
            f"{told}{each} {SM // blocks} bytes; Q takes {2 * query * head_dim} and a tile of K or V "
            f"{2 * key * head_dim}.{why}"
        )
    return None


EXERCISE = Plain(
    name="two_blocks",
    function="room",
    by=_judge,
    hints=(
        "All threads of all blocks share 65536 registers. Two more rules: registers come in units of 8 a thread, and "
        "255 is the most.",
        "A block's share of shared memory is 228 KiB divided by the number of blocks, less 3 KiB. Q takes tile_query * "
        "head_dim numbers of 2 bytes of it.",
        "registers = min(255, 65536 // (blocks * threads) // 8 * 8). Tiles: what is left of the share without Q, // (2 "
        "* tile_key * head_dim), and at least 0.",
    ),
    solution="""
def room(blocks, threads, tile_query, tile_key, head_dim):
    registers = min(255, 65536 // (blocks * threads) // 8 * 8)
    shared = 228 * 1024 // blocks - 3 * 1024
    left = shared - 2 * tile_query * head_dim
    return registers, max(0, left // (2 * tile_key * head_dim))
""",
    wrong=(
        Wrong("a thread has 256 registers", "no thread has more than 255", old="min(255, 65536", new="min(256, 65536"),
        Wrong("registers are not in units of 8", "in units of 8", old=" // 8 * 8", new=""),
        Wrong("the threads are left out", "threads of a block share", old="(blocks * threads)", new="blocks"),
        Wrong("Q is forgotten", "Q takes a place, too", old=" - 2 * tile_query * head_dim", new=""),
        Wrong(
            "numbers are counted, not bytes",
            "a number takes 2 bytes",
            source="""
def room(blocks, threads, tile_query, tile_key, head_dim):
    registers = min(255, 65536 // (blocks * threads) // 8 * 8)
    left = 228 * 1024 // blocks - 3 * 1024 - tile_query * head_dim
    return registers, max(0, left // (tile_key * head_dim))
""",
        ),
        Wrong("the 3 KiB are forgotten", "3 KiB of every block", old=" - 3 * 1024", new=""),
        Wrong(
            "less than no tile",
            "no tile does",
            old="max(0, left // (2 * tile_key * head_dim))",
            new="left // (2 * tile_key * head_dim)",
        ),
        Wrong("at least one tile", "must be", old="max(0, left", new="max(1, left"),
        Wrong("whole KiB for every block", "must be", old="228 * 1024 // blocks", new="228 // blocks * 1024"),
        Wrong(
            "one Q for all blocks",
            "every block has a Q",
            source="""
def room(blocks, threads, tile_query, tile_key, head_dim):
    registers = min(255, 65536 // (blocks * threads) // 8 * 8)
    left = (228 * 1024 - 2 * tile_query * head_dim) // blocks - 3 * 1024
    return registers, max(0, left // (2 * tile_key * head_dim))
""",
        ),
        Wrong("every block gets all shared memory", "the blocks share the memory", old="1024 // blocks", new="1024"),
    ),
    debrief="For the tile of 64 queries and 128 keys at head_dim 128: one block has room for six tiles of K or V, two "
    "blocks for two each, one of K and one of V. Three blocks have room for one, so they cannot run at all. At "
    "head_dim 256 not even two blocks can.",
)
