"""How many warps a tile needs, so that scores and output fit in the registers of their threads."""

from tutorial_lib.exercises import Compared, Wrong

KNOWN = [  # query, key, head_dim, blocks an SM
    *((64, 128, 128, 2), (128, 128, 128, 1), (128, 128, 128, 2), (64, 128, 256, 2)),
    *((128, 128, 256, 1), (256, 128, 128, 1), (64, 64, 64, 4)),
]
WARPS = (4, 8, 16)


def told(query: int, key: int, head_dim: int, blocks: int) -> str:
    held = [query * (key + head_dim) // (32 * warps) for warps in WARPS]
    room = [min(255, (65536 // blocks - 4096) // (32 * warps)) for warps in WARPS]
    return (
        f"Blocks per SM: {blocks}. A thread of 4, 8, 16 warps holds {', '.join(map(str, held))} scores and outputs. "
        f"With 40 registers more it needs {', '.join(str(own + 40) for own in held)}, and it may have "
        f"{', '.join(map(str, room))}."
    )


def cases(chance):
    yield from KNOWN
    for blocks in (1, 2, 1, 2, 3):
        yield chance.choice((64, 128, 256)), chance.choice((32, 64, 128)), chance.choice((64, 128, 256)), blocks


EXERCISE = Compared(
    name="larger_tile",
    function="warps_needed",
    cases=cases,
    told=told,
    hints=(
        "A warp has 32 threads, and the elements of a tile are shared out evenly among all threads that compute.",
        "What is held: query * key scores and query * head_dim numbers of the output, both in float32, one register "
        "each.",
        "A block may have 65536 // blocks registers. The warps that copy take 4096 of them, the threads that compute "
        "share the rest; and no thread has more than 255.",
    ),
    solution="""
def warps_needed(query, key, head_dim, blocks):
    for warps in (4, 8, 16):
        threads = 32 * warps
        held = (query * key + query * head_dim) / threads
        room = min(255, (65536 // blocks - 4096) // threads)
        if held + 40 <= room:
            return warps
    return None
""",
    wrong=(
        Wrong("the output is forgotten", old=" + query * head_dim", new=""),
        Wrong("the scores are forgotten", old="query * key + ", new=""),
        Wrong(
            "only the limit of a thread counts",
            old="min(255, (65536 // blocks - 4096) // threads)",
            new="255",
        ),
        Wrong("the warps that copy are forgotten", old=" - 4096", new=""),
        Wrong("each block has all registers", old="65536 // blocks", new="65536"),
        Wrong("a warp is taken for a thread", old="32 * warps", new="warps"),
    ),
    debrief="Twice the warps halve what a thread holds, as long as the SM has the registers. That is why 128 queries "
    "take eight warps and an SM of their own, and why 256 queries fit in no number of warps.",
)
