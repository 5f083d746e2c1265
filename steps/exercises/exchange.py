"""Two warpgroups exchange dS through two slots: for which phase do they wait? Step decoupled_warpgroups."""

from tutorial_lib.exercises import Plain, Wrong

TURNS = 12


def judge(function, chance):
    for turn in range(TURNS + chance.randrange(4)):
        found = function(turn)
        if not (isinstance(found, tuple) and len(found) == 2 and all(isinstance(x, int) for x in found)):
            return f"`before_writing({turn})` must be two whole numbers, (place, parity), and yours gives {found!r}."
        place, parity = found
        if place != turn % 2:
            return f"In iteration {turn} dS goes to slot {turn % 2}, and yours waits for slot {place}."
        if parity not in (0, 1):
            return f"A parity is 0 or 1, and `before_writing({turn})` asks for {parity}."
        releases = sum((earlier - 1) % 2 == place for earlier in range(turn))
        if parity == (releases + 1) % 2:
            continue
        if not releases:
            return (
                f"In iteration {turn} it waits for ever: nobody releases slot {place} before it was written, and on a "
                "fresh barrier a wait with parity 1 passes, and not one with parity 0."
            )
        return (
            f"Before iteration {turn} writes, slot {place} must have been released {_times(releases)}. A wait with "
            f"parity {parity} passes when it was released {_times(releases - 1)}: the other warpgroup may still be "
            f"multiplying its contents. And when it was released {_times(releases)}, the wait does not pass any more."
        )
    return None


def _times(number: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(number, f"{number} times")


EXERCISE = Plain(
    name="exchange",
    function="before_writing",
    by=judge,
    hints=(
        "dS of iteration n goes to slot n % 2. Before that the slot held dS of iteration n - 2, which both warpgroups "
        "multiply in iteration n - 1. So the release to wait for is that of iteration n - 1.",
        "Count the releases of a slot: slot 1 is released in iterations 0, 2, 4 and so on, slot 0 in iterations 1, 3, "
        "5. Before iteration n writes, its slot has been released (n + 1) // 2 times.",
        "After r releases r phases are over, and a wait passes with the parity of the last of them, which is number "
        "r - 1: (r - 1) % 2, also for r = 0, where that is 1.",
    ),
    solution="""
def before_writing(turn):
    released = (turn + 1) // 2
    return turn % 2, (released - 1) % 2
""",
    wrong=(
        Wrong("iteration 0 releases nothing", "must have been released once", old="(turn + 1) // 2", new="turn // 2"),
        Wrong("the phase that comes, not the one that is over", "waits for ever", old="(released - 1)", new="released"),
        Wrong("never waits", "released never", old="(released - 1) % 2", new="1"),
        Wrong("always the same", "waits for ever", old="(released - 1) % 2", new="0"),
        Wrong("the other slot", "yours waits for slot", old="turn % 2,", new="(turn + 1) % 2,"),
        Wrong("every iteration is a phase", "must have been released", old="(turn + 1) // 2", new="turn"),
    ),
    debrief="The simulator judges such counting, too: with a parity that passes too early it finds the race, whatever "
    "the schedule of a single run.",
)
