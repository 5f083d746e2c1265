"""How many warps a tile needs, so that scores and output fit in the registers of their threads."""

from tutorial_lib.exercises import Plain, Wrong, first_wrong

KNOWN = [  # query, key, head_dim, blocks an SM
    (64, 128, 128, 2),
    (128, 128, 128, 1),
    (128, 128, 128, 2),
    (64, 128, 256, 2),
    (128, 128, 256, 1),
    (256, 128, 128, 1),
    (64, 64, 64, 4),
]


def _room(warps: int, blocks: int) -> int:
    return min(255, (65536 // blocks - 4096) // (32 * warps))


def _warps_needed(query: int, key: int, head_dim: int, blocks: int) -> int | None:
    held = {warps: query * (key + head_dim) / (32 * warps) for warps in (4, 8, 16)}
    return next((warps for warps in held if held[warps] + 40 <= _room(warps, blocks)), None)


def _told(query: int, key: int, head_dim: int, blocks: int) -> str:
    held = [query * (key + head_dim) // (32 * warps) for warps in (4, 8, 16)]
    return (
        f"Blocks an SM: {blocks}. A thread of 4, 8, 16 warps holds {held[0]}, {held[1]}, {held[2]} scores and outputs. "
        f"With 40 registers more it needs {held[0] + 40}, {held[1] + 40}, {held[2] + 40}, and it may have "
        f"{_room(4, blocks)}, {_room(8, blocks)}, {_room(16, blocks)}."
    )


def _judge(function, chance):
    sizes = [
        (chance.choice((64, 128, 256)), chance.choice((32, 64, 128)), chance.choice((64, 128, 256)), blocks)
        for blocks in (1, 2, 1, 2, 3)
    ]
    return first_wrong(function, _warps_needed, [*KNOWN, *sizes], _told)


EXERCISE = Plain(
    name="larger_tile",
    function="warps_needed",
    by=_judge,
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
        Wrong("the output is forgotten", "(128, 128, 128, 1)` must be 8", old=" + query * head_dim", new=""),
        Wrong("the scores are forgotten", "(128, 128, 128, 1)` must be 8", old="query * key + ", new=""),
        Wrong(
            "only the limit of a thread",
            "may have 224, 112",
            old="min(255, (65536 // blocks - 4096) // threads)",
            new="255",
        ),
        Wrong("the warps that copy are forgotten", "may have 224, 112", old=" - 4096", new=""),
        Wrong("all registers for each block", "(128, 128, 128, 2)` must be None", old="65536 // blocks", new="65536"),
        Wrong("a warp is taken for a thread", "(64, 128, 128, 2)` must be 4", old="32 * warps", new="warps"),
    ),
    debrief="Twice the warps halve what a thread holds, as long as the SM has the registers. That is why 128 queries "
    "take eight warps and an SM of their own, and why 256 queries fit in no number of warps.",
)
