"""The two factors of a gain in time: fewer cycles, and another clock."""

from tutorial_lib.exercises import Compared, Wrong


def cases(chance):
    for _ in range(20):
        yield tuple(round(chance.uniform(*between), 3) for between in ((0.5, 2), (1.2, 1.98)) * 2)


EXERCISE = Compared(
    name="split_gain",
    function="split_gain",
    cases=cases,
    told=lambda before_ms, _, now_ms, __: f"Their product must be the gain in time, {before_ms / now_ms:.3f}.",
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
            "the first number is the whole gain in time, with the clock still in it",
            old="before_ms * before_ghz / (now_ms * now_ghz)",
            new="before_ms / now_ms",
        ),
        Wrong(
            "fewer cycles than before give a number below 1",
            old="before_ms * before_ghz / (now_ms * now_ghz)",
            new="now_ms * now_ghz / (before_ms * before_ghz)",
        ),
        Wrong(
            "a clock higher than before gives a number below 1",
            old="now_ghz / before_ghz\n",
            new="before_ghz / now_ghz\n",
        ),
        Wrong(
            "time is divided by the clock: cycles are time *times* clock",
            old="before_ms * before_ghz / (now_ms * now_ghz)",
            new="before_ms / before_ghz / (now_ms / now_ghz)",
        ),
    ),
    debrief="The product of both numbers is the gain in time. At the power limit, a kernel that saves cycles may pay "
    "back a part of them with a lower clock.",
)
