"""Two warpgroups exchange dS through two slots: for which phase do they wait? Step decoupled_warpgroups."""

from tutorial_lib.exercises import Plain, Wrong

ITERATIONS = 12


def judge(function, chance):
    for iteration in range(ITERATIONS + chance.randrange(4)):
        found = function(iteration)
        if not (isinstance(found, tuple) and len(found) == 2 and all(isinstance(x, int) for x in found)):
            return (
                f"`before_writing({iteration})` must be two whole numbers, (slot, parity), and yours gives {found!r}."
            )
        slot, parity = found
        if slot != iteration % 2:
            return f"In iteration {iteration} dS goes to slot {iteration % 2}, and yours waits for slot {slot}."
        if parity not in (0, 1):
            return f"A parity is 0 or 1, and `before_writing({iteration})` asks for {parity}."
        releases = sum((earlier - 1) % 2 == slot for earlier in range(iteration))
        if parity == (releases + 1) % 2:
            continue
        if not releases:
            return (
                f"In iteration {iteration} it waits for ever: nobody releases slot {slot} before it was written, and "
                "on a fresh barrier a wait with parity 1 passes, and not one with parity 0."
            )
        return (
            f"Before iteration {iteration} writes, slot {slot} must have been released {_times(releases)}. A wait with "
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
def before_writing(iteration):
    released = (iteration + 1) // 2
    return iteration % 2, (released - 1) % 2
""",
    wrong=(
        Wrong(
            "iteration 0 releases nothing",
            "must have been released once",
            old="(iteration + 1) // 2",
            new="iteration // 2",
        ),
        Wrong("the phase that comes, not the one that is over", "waits for ever", old="(released - 1)", new="released"),
        Wrong("never waits", "released never", old="(released - 1) % 2", new="1"),
        Wrong("always the same", "waits for ever", old="(released - 1) % 2", new="0"),
        Wrong("the other slot", "yours waits for slot", old="iteration % 2,", new="(iteration + 1) % 2,"),
        Wrong("every iteration is a phase", "must have been released", old="(iteration + 1) // 2", new="iteration"),
    ),
    debrief="The simulator judges such counting, too: with a parity that passes too early it finds the race, whatever "
    "the schedule of a single run.",
)
