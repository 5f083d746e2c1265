"""What a block may take, if so many blocks shall fit on an SM."""

from tutorial_lib.exercises import Compared, Wrong

KNOWN = [  # blocks, threads, query, key, head_dim
    *((1, 256, 64, 128, 128), (2, 256, 64, 128, 128), (3, 256, 64, 128, 128), (2, 256, 64, 128, 64)),
    *((1, 256, 64, 128, 256), (2, 256, 64, 128, 256), (2, 384, 128, 64, 64)),
    (1, 128, 64, 16, 32),  # so that no two of the mistakes below are alike on all of these
    (5, 256, 128, 128, 256),  # not even Q fits
    (5, 128, 64, 16, 16),  # a share that is no whole number of KiB
    (6, 128, 64, 1, 36),  # 3 KiB are not 3000 bytes
]


def cases(chance):
    yield from KNOWN
    for blocks in (1, 2, 3, 4, 5):
        tile = chance.choice((64, 128)), chance.choice((32, 64)), chance.choice((32, 64))
        yield blocks, 128 * chance.randint(1, 3), *tile


def told(blocks: int, threads: int, query: int, key: int, head_dim: int) -> str:
    return (
        f"{blocks} × {threads} threads share 65536 registers. A block has {228 * 1024 // blocks} bytes, 3 KiB of them "
        f"for itself; Q takes {2 * query * head_dim} and a tile of K or V {2 * key * head_dim}."
    )


EXERCISE = Compared(
    name="two_blocks",
    function="room",
    cases=cases,
    told=told,
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
        Wrong("a thread has more than 255 registers", old="min(255, 65536", new="min(256, 65536"),
        Wrong("registers do not come in units of 8 a thread", old=" // 8 * 8", new=""),
        Wrong("the threads of a block do not share its registers", old="(blocks * threads)", new="blocks"),
        Wrong("Q takes no place", old=" - 2 * tile_query * head_dim", new=""),
        Wrong(
            "a number takes one byte, and not 2",
            source="""
def room(blocks, threads, tile_query, tile_key, head_dim):
    registers = min(255, 65536 // (blocks * threads) // 8 * 8)
    left = 228 * 1024 // blocks - 3 * 1024 - tile_query * head_dim
    return registers, max(0, left // (tile_key * head_dim))
""",
        ),
        Wrong("the 3 KiB of every block are room for tiles", old=" - 3 * 1024", new=""),
        Wrong(
            "less than no tile finds a place: where not even Q fits, no tile does",
            old="max(0, left // (2 * tile_key * head_dim))",
            new="left // (2 * tile_key * head_dim)",
        ),
        Wrong(
            "one tile at least finds a place",
            old="max(0, left // (2 * tile_key * head_dim))",
            new="max(1, left // (2 * tile_key * head_dim))",
        ),
        Wrong("every block has whole KiB", old="228 * 1024 // blocks", new="228 // blocks * 1024"),
        Wrong(
            "all blocks share one Q",
            source="""
def room(blocks, threads, tile_query, tile_key, head_dim):
    registers = min(255, 65536 // (blocks * threads) // 8 * 8)
    left = (228 * 1024 - 2 * tile_query * head_dim) // blocks - 3 * 1024
    return registers, max(0, left // (2 * tile_key * head_dim))
""",
        ),
        Wrong("every block has all shared memory", old="1024 // blocks", new="1024"),
    ),
    debrief="For the tile of 64 queries and 128 keys at head_dim 128: one block has room for six tiles of K or V, two "
    "blocks for two each, one of K and one of V. Three blocks have room for one, so they cannot run at all. At "
    "head_dim 256 not even two blocks can.",
)
