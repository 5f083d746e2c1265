"""Two warpgroups exchange dS through two slots: for which phase do they wait? Step decoupled_warpgroups."""

from tutorial_lib.exercises import Compared, Wrong


def told(iteration: int) -> str:
    """How often the slot was released before."""
    slot = iteration % 2
    times = sum((earlier - 1) % 2 == slot for earlier in range(iteration))
    if not times:
        return f"Nobody releases slot {slot} before it was written. On a fresh barrier a wait with parity 1 passes."
    often = {1: "once", 2: "twice"}.get(times, f"{times} times")
    return (
        f"Before iteration {iteration} writes, slot {slot} must have been released {often}. With the other parity the "
        "wait passes one release earlier, when the other warpgroup may still be multiplying, and not any more later."
    )


EXERCISE = Compared(
    name="exchange",
    function="before_writing",
    cases=lambda chance: [(iteration,) for iteration in range(12 + chance.randrange(4))],
    told=told,
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
        Wrong("iteration 0 is taken to release nothing", old="(iteration + 1) // 2", new="iteration // 2"),
        Wrong(
            "it waits for the phase that comes, and not for the one that is over", old="(released - 1)", new="released"
        ),
        Wrong("it never waits", old="(released - 1) % 2", new="1"),
        Wrong("the parity is always the same", old="(released - 1) % 2", new="0"),
        Wrong("it waits for the other slot", old="iteration % 2,", new="(iteration + 1) % 2,"),
        Wrong("every iteration is taken for a release", old="(iteration + 1) // 2", new="iteration"),
    ),
    debrief="The simulator judges such counting, too: with a parity that passes too early it finds the race, whatever "
    "the schedule of a single run.",
)
