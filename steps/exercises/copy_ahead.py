"""When the loop over keys ends, if so many stages hold tiles that have been copied and are not used up yet."""

from tutorial_lib.exercises import Compared, Wrong

KNOWN = [  # times of the copies and of the computations, stages
    *(([3] * 4, [5] * 4, 1), ([3] * 4, [5] * 4, 2), ([5] * 4, [3] * 4, 2)),
    *(([2, 2, 9, 2, 2], [4] * 5, stages) for stages in (1, 2, 3)),
]


def cases(chance):
    yield from KNOWN
    for stages in (1, 2, 2, 3, 3, 4):
        tiles = chance.randint(stages + 3, 9)
        yield *([chance.randint(1, 9) for _ in range(tiles)] for _ in range(2)), stages


EXERCISE = Compared(
    name="copy_ahead",
    function="last_done",
    cases=cases,
    hints=(
        "Go through the tiles in order, and keep two lists: when the copy of each tile ended, and when the computation "
        "with it ended. What does each of the two wait for?",
        "A copy waits for the copy before it, and for its stage: tile j goes where tile j - stages was, so it waits "
        "until the computation with that one has ended. The first tiles find their stages free.",
        "copied: max(end of copy j - 1, done[j - stages] if j >= stages else 0) + copy[j]. done: max(copied[j], end of "
        "computation j - 1) + compute[j]. The answer is the last of done.",
    ),
    solution="""
def last_done(copy, compute, stages):
    copied, done = [], []
    for j in range(len(copy)):
        free = done[j - stages] if j >= stages else 0
        before = copied[j - 1] if j else 0
        copied.append(max(free, before) + copy[j])
        done.append(max(copied[j], done[j - 1] if j else 0) + compute[j])
    return done[-1]
""",
    wrong=(
        Wrong(
            "a copy never waits for the stage that it goes into: one is free only after the computation with the tile "
            "that was there",
            old="max(free, before)",
            new="before",
        ),
        Wrong("a copy does not wait for the copy before it", old="max(free, before)", new="free"),
        Wrong(
            "a computation does not wait for the one before it",
            old="max(copied[j], done[j - 1] if j else 0)",
            new="copied[j]",
        ),
        Wrong(
            "there is one stage more: tile j then waits for tile j - stages - 1",
            old="done[j - stages] if j >= stages else 0",
            new="done[j - stages - 1] if j > stages else 0",
        ),
        Wrong(
            "nothing runs at the same time as anything else",
            source="def last_done(copy, compute, stages):\n    return sum(copy) + sum(compute)",
        ),
    ),
    debrief="With one stage, copies and computations alternate. With two, each runs under the other, and the slower of "
    "them decides. More stages help only where times vary, and a stage costs shared memory. Loops with "
    "producers and consumers, later in the course, follow the same two rules.",
)
