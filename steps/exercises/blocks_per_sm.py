"""How many blocks of a kernel fit on an SM of an H100: counted as tutorial_lib.architectures counts."""

from tutorial_lib.architectures import blocks_per_multiprocessor
from tutorial_lib.exercises import Compared, Wrong

EXPOSING = (  # registers, threads, bytes: each exposes other mistakes
    *(
        (129, 128, 20_000),
        (24, 32, 0),
        (28, 256, 0),
        (30, 48, 0),
        (40, 128, 7_100),
        (40, 128, 28_160),
        (40, 128, 28_884),
    ),
    *((64, 128, 0), (16, 80, 0), (41, 64, 0), (168, 384, 100_000)),
)


def right(registers: int, threads: int, shared_bytes: int) -> int:
    return blocks_per_multiprocessor("sm_90", threads, registers, shared_bytes)[0]


def told(registers: int, threads: int, shared_bytes: int) -> str:
    limit = blocks_per_multiprocessor("sm_90", threads, registers, shared_bytes)[1]
    return f"With {shared_bytes:,} bytes of shared memory and these threads and registers it is limited by {limit}."


def cases(chance):
    """Kernels as they occur, and some that expose a mistake each."""
    yield chance.randint(129, 168), 128, chance.randint(20_000, 50_000)
    yield from EXPOSING
    for _ in range(50):
        threads = chance.choice((32, 48, 64, 128, 160, 256, 384, 512))
        yield (
            chance.randint(24, 255),
            threads,
            chance.choice((0, chance.randint(0, 60_000), chance.randint(0, 200_000))),
        )


EXERCISE = Compared(
    name="blocks_per_sm",
    function="blocks_per_sm",
    cases=cases,
    right=right,
    told=told,
    hints=(
        "For each of the four limits ask: how many blocks would fit if only this one counted? The smallest answer "
        "decides. In whole numbers, `-(-a // b)` is a / b rounded up.",
        "A warp takes 32 * registers, rounded up to a multiple of 256. A block takes that for each of its warps, and "
        "an SM has 65536 registers. A block also takes its shared memory and 1024 bytes, of 228 * 1024.",
        "by_registers = 65536 // (warps * registers_of_a_warp), by_shared_memory = 228 * 1024 // (shared_bytes + "
        "1024), by_warps = 64 // warps.",
    ),
    solution="""
def blocks_per_sm(registers, threads, shared_bytes):
    warps = -(-threads // 32)
    registers_of_a_warp = -(-32 * registers // 256) * 256
    by_registers = 65536 // (warps * registers_of_a_warp)
    by_shared_memory = 228 * 1024 // (shared_bytes + 1024)
    by_warps = 64 // warps
    return min(by_registers, by_shared_memory, by_warps, 32)
""",
    wrong=(
        Wrong(
            "registers are handed out one by one, and not for a warp in multiples of 256",
            old="-(-32 * registers // 256) * 256",
            new="32 * registers",
        ),
        Wrong(
            "the registers of a warp are rounded down to a multiple of 256",
            old="-(-32 * registers // 256) * 256",
            new="32 * registers // 256 * 256",
        ),
        Wrong(
            "the registers of a warp are rounded up where they are a multiple of 256 already",
            old="-(-32 * registers // 256) * 256",
            new="32 * (registers // 8 + 1) * 8",
        ),
        Wrong(
            "the number of warps is rounded down: a warp that is not full takes the room of a whole one",
            old="-(-threads // 32)",
            new="threads // 32",
        ),
        Wrong(
            "the 1 KiB is forgotten that every block takes for the system, beside its own shared memory",
            old="shared_bytes + 1024",
            new="max(1, shared_bytes)",
        ),
        Wrong(
            "the system takes a KiB of the SM as well: it takes one of each block, and nothing else",
            old="228 * 1024",
            new="227 * 1024",
        ),
        Wrong("a KiB is taken for 1000 bytes", old="228 * 1024", new="228_000"),
        Wrong(
            "threads are counted for the limit of warps: a warp that is not full counts as a whole one",
            old="64 // warps",
            new="2048 // threads",
        ),
        Wrong("the limit of 64 warps is forgotten", old="by_shared_memory, by_warps", new="by_shared_memory"),
        Wrong("the limit of 32 blocks is forgotten", old="by_warps, 32", new="by_warps"),
    ),
    debrief="The scarcest of four things decides. For the kernels of this course that is mostly registers or shared "
    "memory, and one register more a thread can cost a whole block.",
)
