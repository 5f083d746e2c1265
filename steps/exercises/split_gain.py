"""The two factors of a gain in time: fewer cycles, and another clock."""

from __future__ import annotations

import math

from tutorial_lib.exercises import Plain, Wrong


def judge(function, chance) -> str | None:
    for _ in range(20):
        before, now = ((chance.uniform(0.5, 2), chance.uniform(1.2, 1.98)) for _ in range(2))
        cycles, clock = before[0] * before[1] / (now[0] * now[1]), now[1] / before[1]
        call = f"`split_gain({before[0]:.3f}, {before[1]:.3f}, {now[0]:.3f}, {now[1]:.3f})`"
        found = function(*before, *now)
        if not (isinstance(found, tuple | list) and len(found) == 2):
            return f"{call} must give two numbers, and yours gives `{found!r}`."
        mine = tuple(map(float, found))
        if all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(mine, (cycles, clock), strict=True)):
            continue
        told = f"{call} must give ({cycles:.3f}, {clock:.3f}), and yours gives ({mine[0]:.3f}, {mine[1]:.3f})."
        if math.isclose(mine[0], before[0] / now[0], rel_tol=1e-9):
            return f"{told} The first number is the whole gain in time, with the clock still in it."
        if math.isclose(mine[0], 1 / cycles, rel_tol=1e-9):
            return f"{told} Fewer cycles than before must give a number above 1."
        if math.isclose(mine[1], 1 / clock, rel_tol=1e-9):
            return f"{told} A clock higher than before must give a number above 1."
        if math.isclose(mine[0], before[0] / before[1] / (now[0] / now[1]), rel_tol=1e-9):
            return f"{told} A clock says how many cycles pass in a second: cycles are time *times* clock."
        return f"{told} Their product must be the gain in time, {before[0] / now[0]:.3f}."
    return None


EXERCISE = Plain(
    name="split_gain",
    function="split_gain",
    by=judge,
    hints=(
        "How many cycles does a call take that lasts so many milliseconds at so many GHz?",
        "Cycles are time times clock. Divide the old cycles by the new ones: then fewer cycles give more than 1. "
        "Divide the new clock by the old one: then a higher clock gives more than 1.",
        "cycles = (before_ms * before_ghz) / (now_ms * now_ghz), and clock = now_ghz / before_ghz.",
    ),
    solution="""
def split_gain(before_ms, before_ghz, now_ms, now_ghz):
    cycles = before_ms * before_ghz / (now_ms * now_ghz)
    clock = now_ghz / before_ghz
    return cycles, clock
""",
    wrong=(
        Wrong(
            "the gain in time",
            "the clock still in it",
            old="before_ms * before_ghz / (now_ms * now_ghz)",
            new="before_ms / now_ms",
        ),
        Wrong(
            "cycles upside down",
            "Fewer cycles than before",
            old="before_ms * before_ghz / (now_ms * now_ghz)",
            new="now_ms * now_ghz / (before_ms * before_ghz)",
        ),
        Wrong(
            "the clock upside down",
            "A clock higher than before",
            old="now_ghz / before_ghz\n",
            new="before_ghz / now_ghz\n",
        ),
        Wrong(
            "time over clock",
            "time *times* clock",
            old="before_ms * before_ghz / (now_ms * now_ghz)",
            new="before_ms / before_ghz / (now_ms / now_ghz)",
        ),
    ),
    debrief="The product of both numbers is the gain in time. At the power limit, a kernel that saves cycles may pay "
    "back a part of them with a lower clock.",
)
