"""When the loop over keys ends, if so many stages hold tiles that have been copied and are not used up yet."""

import random

from tutorial_lib.exercises import Plain, Wrong


def _last_done(copy, compute, stages):
    copied, done = [], []
    for j in range(len(copy)):
        free = done[j - stages] if j >= stages else 0
        begin = max(free, copied[j - 1] if j else 0)
        copied.append(begin + copy[j])
        done.append(max(copied[j], done[j - 1] if j else 0) + compute[j])
    return done[-1]


def _never_full(copy, compute, stages):
    return _last_done(copy, compute, len(copy))


def _one_more(copy, compute, stages):
    return _last_done(copy, compute, stages + 1)


def _copies_at_once(copy, compute, stages):
    done = []
    for j in range(len(copy)):
        free = done[j - stages] if j >= stages else 0
        done.append(max(free + copy[j], done[j - 1] if j else 0) + compute[j])
    return done[-1]


def _computes_at_once(copy, compute, stages):
    copied, done = [], []
    for j in range(len(copy)):
        free = done[j - stages] if j >= stages else 0
        copied.append(max(free, copied[j - 1] if j else 0) + copy[j])
        done.append(copied[j] + compute[j])
    return done[-1]


def _alternating(copy, compute, stages):
    return sum(copy) + sum(compute)


MISTAKES = {
    _never_full: "a copy never waits for the stage that it goes into: one is free only after the computation with the "
    "tile that was there",
    _one_more: "there is one stage more: tile j then waits for tile j - stages - 1",
    _copies_at_once: "a copy does not wait for the copy before it",
    _computes_at_once: "a computation does not wait for the one before it",
    _alternating: "nothing runs at the same time as anything else",
}


def _judge(function, chance: random.Random):
    cases = [([3, 3, 3, 3], [5, 5, 5, 5], 1), ([3, 3, 3, 3], [5, 5, 5, 5], 2), ([5, 5, 5, 5], [3, 3, 3, 3], 2)]
    cases += [([2, 2, 9, 2, 2], [4, 4, 4, 4, 4], stages) for stages in (1, 2, 3)]
    for stages in (1, 2, 2, 3, 3, 4):
        tiles = chance.randint(stages + 3, 9)
        cases.append((*([chance.randint(1, 9) for _ in range(tiles)] for _ in range(2)), stages))
    wrong, alike = None, dict.fromkeys(MISTAKES, True)
    for copy, compute, stages in cases:
        mine, right = function(list(copy), list(compute), stages), _last_done(copy, compute, stages)
        alike = {mistake: same and mine == mistake(copy, compute, stages) for mistake, same in alike.items()}
        if mine != right and wrong is None:
            wrong = (
                f"With {stages} stage{'s' * (stages > 1)}, copies that take {copy} and computations that take "
                f"{compute}, the last computation ends at {right}. Your function says {mine}."
            )
    found = [MISTAKES[mistake] for mistake, same in alike.items() if same]
    return f"{wrong} **Yours is the time if {found[0]}.**" if wrong and found else wrong


EXERCISE = Plain(
    name="copy_ahead",
    function="last_done",
    by=_judge,
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
        Wrong("a copy never waits for a stage", "never waits for the stage", old="max(free, before)", new="before"),
        Wrong(
            "copies run at once",
            "does not wait for the copy before it",
            old="max(free, before)",
            new="free",
        ),
        Wrong(
            "computations run at once",
            "does not wait for the one before it",
            old="max(copied[j], done[j - 1] if j else 0)",
            new="copied[j]",
        ),
        Wrong(
            "one stage too many",
            "one stage more",
            old="done[j - stages] if j >= stages else 0",
            new="done[j - stages - 1] if j > stages else 0",
        ),
        Wrong(
            "a stage is free once it is copied",
            "never waits for the stage",
            old="free = done[j - stages]",
            new="free = copied[j - stages]",
        ),
        Wrong(
            "one thing after the other",
            "nothing runs at the same time",
            source="""
def last_done(copy, compute, stages):
    return sum(copy) + sum(compute)
""",
        ),
    ),
    debrief="With one stage, copies and computations alternate. With two, each runs under the other, and the slower of "
    "them decides. More stages help only where times vary, and a stage costs shared memory. Loops with "
    "producers and consumers, later in the course, follow the same two rules.",
)
