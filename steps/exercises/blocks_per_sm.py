"""How many blocks of a kernel fit on an SM of an H100: counted as tutorial_lib.architectures counts."""

from tutorial_lib.architectures import KIB, blocks_per_multiprocessor
from tutorial_lib.exercises import Plain, Wrong


def right(registers: int, threads: int, shared_bytes: int) -> int:
    return blocks_per_multiprocessor("sm_90", threads, registers, shared_bytes)[0]


def count(registers, threads, shared_bytes, mistake=None):
    warps = threads // 32 if mistake == "warps" else -(-threads // 32)
    per_warp = 32 * registers
    if mistake != "units":
        per_warp = -(-per_warp // 256) * 256
    if mistake == "rounded down":
        per_warp = 32 * registers // 256 * 256
    if mistake == "one unit more":
        per_warp = 32 * (registers // 8 + 1) * 8
    by_registers = 65536 // max(1, per_warp * warps)
    if mistake == "threads":
        by_registers = 65536 // (registers * threads)
    all_of_it = {"thousands": 228_000, "system once": 227 * KIB}.get(mistake, 228 * KIB)
    by_shared_memory = all_of_it // max(1, shared_bytes + (0 if mistake == "system" else KIB))
    by_warps = 32 if mistake == "no limit of warps" else 64 // max(1, warps)
    if mistake == "limit of threads":
        by_warps = 2048 // threads
    return min(by_registers, by_shared_memory, by_warps, 1000 if mistake == "no limit of blocks" else 32)


MISTAKES = {
    "units": "registers are not handed out one by one: round 32 * registers up to a multiple of 256 for each warp",
    "rounded down": "the registers of a warp are rounded down: they must be rounded up to a multiple of 256",
    "one unit more": "a number that is a multiple of 256 already is rounded up, too: it stays as it is",
    "threads": "the registers of single threads are counted: registers are handed out to whole warps, in units of 256",
    "warps": "the number of warps is rounded down: a warp that is not full takes the room of a whole one",
    "system": "the 1 KiB is forgotten that every block takes for the system, beside its own shared memory",
    "system once": "an SM has 228 KiB for its blocks and what the system takes for each; nothing else is taken off",
    "thousands": "a KiB is taken for 1000 bytes: it has 1024",
    "no limit of warps": "the limit of 64 warps is forgotten",
    "limit of threads": "threads are counted for the limit of warps: a warp that is not full counts as a whole one",
    "no limit of blocks": "the limit of 32 blocks is forgotten",
}


def cases(chance):
    """Kernels as they occur; and for each mistake one that exposes it."""

    def kernel():
        return chance.randint(24, 255), chance.choice((32, 48, 64, 128, 160, 256, 384, 512)), chance.randint(0, 200_000)

    def exposing(mistake):
        while True:
            case = kernel()
            if mistake in ("no limit of blocks", "no limit of warps"):
                case = chance.randint(16, 32), chance.choice((32, 256)), chance.randint(0, 2000)
            if mistake == "warps":
                case = chance.randint(24, 64), 48, chance.randint(0, 2000)
            if mistake in ("system", "system once", "thousands"):
                case = chance.randint(24, 64), 128, chance.randint(5_000, 60_000)
            if mistake == "one unit more":
                case = chance.randrange(32, 256, 8), chance.choice((128, 256)), chance.randint(0, 2000)
            if mistake == "limit of threads":
                case = chance.randint(16, 24), 80, chance.randint(0, 2000)
            if count(*case, mistake) != right(*case):
                return case

    yield chance.randint(129, 168), 128, chance.randint(20_000, 50_000)
    yield from (exposing(mistake) for mistake in MISTAKES)
    yield from (kernel() for _ in range(50))


def judge(function, chance):
    wrong, left = "", dict(MISTAKES)
    for case in cases(chance):
        mine, theirs = function(*case), right(*case)
        if mine != theirs and not wrong:
            registers, threads, shared_bytes = case
            wrong = (
                f"With {registers} registers a thread, {threads} threads and {shared_bytes:,} bytes of shared memory a "
                f"block it must be {theirs!r}, limited by "
                f"{blocks_per_multiprocessor('sm_90', threads, registers, shared_bytes)[1]}; yours gives {mine!r}."
            )
        left = {mistake: told for mistake, told in left.items() if mine == count(*case, mistake)}
    if wrong and left:
        return f"{wrong} This is what comes when {', or when '.join(left.values())}."
    return wrong or None


EXERCISE = Plain(
    name="blocks_per_sm",
    function="blocks_per_sm",
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
            "registers one by one",
            "not handed out one by one",
            old="-(-32 * registers // 256) * 256",
            new="32 * registers",
        ),
        Wrong(
            "registers rounded down",
            "rounded down",
            old="-(-32 * registers // 256) * 256",
            new="32 * registers // 256 * 256",
        ),
        Wrong("warps rounded down", "a warp that is not full", old="-(-threads // 32)", new="threads // 32"),
        Wrong(
            "what the system takes",
            "every block takes for the system",
            old="shared_bytes + 1024",
            new="max(1, shared_bytes)",
        ),
        Wrong("taken off once too often", "nothing else is taken off", old="228 * 1024", new="227 * 1024"),
        Wrong("threads of warps that are not full", "threads are counted", old="64 // warps", new="2048 // threads"),
        Wrong(
            "a unit more for a whole number of them",
            "it stays as it is",
            old="-(-32 * registers // 256) * 256",
            new="32 * (registers // 8 + 1) * 8",
        ),
        Wrong("a KiB of 1000 bytes", "it has 1024", old="228 * 1024", new="228_000"),
        Wrong(
            "no limit of warps",
            "limit of 64 warps is forgotten",
            old="by_shared_memory, by_warps",
            new="by_shared_memory",
        ),
        Wrong("no limit of blocks", "limit of 32 blocks is forgotten", old="by_warps, 32", new="by_warps"),
    ),
    debrief="The scarcest of four things decides. For the kernels of this course that is mostly registers or shared "
    "memory, and one register more a thread can cost a whole block.",
    by=judge,
)
