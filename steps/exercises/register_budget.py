"""How many registers a thread gets when a block starts, and how many when they have been moved to who computes."""

from tutorial_lib.exercises import Plain, Wrong, first_wrong

REGISTERS, GROUP, STEP = 65536, 128, 8


def right(groups, producer):
    threads = GROUP * (groups + 1)
    at_start = REGISTERS // threads // STEP * STEP
    left = at_start * threads - producer * GROUP
    return at_start, left // (GROUP * groups) // STEP * STEP


def told(groups, producer):
    at_start, computing = right(groups, producer)
    used = GROUP * (groups * computing + producer)
    return (
        f"{groups} groups that compute and the producer's are {GROUP * (groups + 1)} threads: {at_start} registers "
        f"each at the start, {at_start * GROUP * (groups + 1)} in all. Afterwards {GROUP * groups} threads with "
        f"{computing} and {GROUP} with {producer} have {used}."
    )


def judge(function, chance):
    cases = [(2, 24), (3, 24), (2, 40), (4, 24), (5, 32)]
    cases += [(chance.randint(2, 7), 8 * chance.randint(3, 7)) for _ in range(10)]
    for case in cases:
        answer = function(*case)
        call = f"`registers{case}`"
        if not (isinstance(answer, tuple) and len(answer) == 2 and all(isinstance(n, int) for n in answer)):
            return f"{call} must be two whole numbers, at the start and for who computes, and yours gives {answer!r}."
        if any(n % STEP for n in answer):
            return f"{call} gives {answer}: registers come in steps of {STEP}, so both must be multiples of {STEP}."
        threads = GROUP * (case[0] + 1)
        if answer[0] * threads > REGISTERS:
            return (
                f"{call} gives {answer[0]} at the start, for {threads} threads more than {REGISTERS} together. The "
                "producer is one warp, but it gets a whole warpgroup, and a number that does not fit is rounded down."
            )
        used = GROUP * (case[0] * answer[1] + case[1])
        if used > answer[0] * threads:
            return (
                f"{call} gives {answer}: afterwards the block has {used} registers, but it started with "
                f"{answer[0] * threads}. `setmaxnreg` moves registers within what the block got at its start; it waits "
                "for ever for more. The producer's registers count for a whole warpgroup."
            )
    return first_wrong(function, right, cases, told)


EXERCISE = Plain(
    name="register_budget",
    function="registers",
    by=judge,
    hints=(
        "How many threads are there? The producer is one warp, but registers are given to groups of four, so three "
        "more warps stand beside it.",
        "At the start: 65536 divided by the number of threads, rounded down to a multiple of 8. What the block has "
        "then is that number times its threads, and it does not get more.",
        "Take the producer's 128 threads times `producer` away from what the block has, divide by the threads that "
        "compute, 128 * groups, and round down to a multiple of 8 again.",
    ),
    solution="""
def registers(groups, producer):
    threads = 128 * (groups + 1)
    at_start = 65536 // threads // 8 * 8
    left = at_start * threads - 128 * producer
    computing = left // (128 * groups) // 8 * 8
    return at_start, computing
""",
    wrong=(
        Wrong("the producer is one warp", "gets a whole warpgroup", old="128 * (groups + 1)", new="128 * groups + 32"),
        Wrong(
            "the producer's registers are one warp's", "a whole warpgroup", old="128 * producer", new="32 * producer"
        ),
        Wrong("no steps of eight", "multiples of 8", old="// (128 * groups) // 8 * 8", new="// (128 * groups)"),
        Wrong(
            "no steps of eight at the start", "multiples of 8", old="65536 // threads // 8 * 8", new="65536 // threads"
        ),
        Wrong("of all that the SM has", "got at its start", old="at_start * threads", new="65536"),
        Wrong("rounded up", "rounded down", old="65536 // threads // 8 * 8", new="-(-65536 // threads // 8) * 8"),
        Wrong("nothing moves", "must be", old="return at_start, computing", new="return at_start, at_start"),
        Wrong(
            "each group gets all that the producer gives up",
            "it started with",
            old="left // (128 * groups)",
            new="(left // 128 - at_start * (groups - 1))",
        ),
    ),
    debrief="With two groups and a producer of 24 registers this gives 168 at the start and 240 afterwards; with three "
    "groups 128 and 160. These are the numbers of the kernels.",
)
