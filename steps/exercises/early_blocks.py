"""When the first blocks of a kernel that begins early can use what the kernel before has written: step
dependent_launch.
"""

from tutorial_lib.exercises import Plain, Wrong


def judge(function, chance):
    shapes = [([10, 10, 10], 2), ([4, 9, 7], 1), ([4, 9, 7], 3), ([5], 2)]
    shapes += [([chance.randint(50, 90) for _ in range(chance.randint(3, 6))], chance.randint(5, 30))]
    for ends, setup in shapes:
        wanted = [max(end + setup, max(ends)) for end in ends]
        told = function(list(ends), setup)
        times = isinstance(told, list) and all(isinstance(time, int | float) for time in told)
        if not times or len(told) != len(ends):
            return f"`usable_at` must return a list with a time for each of {len(ends)} SMs, and yours gives {told!r}."
        for n, (mine, right) in enumerate(zip(told, wanted, strict=True)):
            if mine == right:
                continue
            where = f"SMs that are free at {ends}, a setup of {setup}: the block on SM {n} can go on at {right}"
            if right > mine:
                return f"{where}, and yours does at {mine}, before its setup is done or the kernel before has ended."
            return f"{where}, and yours waits until {mine}. Its setup need not wait for other SMs."
    return None


EXERCISE = Plain(
    name="early_blocks",
    function="usable_at",
    by=judge,
    hints=(
        "A block waits for two things. One depends on its own SM alone, the other on all of them.",
        "The setup is done at `end + setup`, where `end` is when the SM was free. All has ended at `max(ends)`.",
        "Whichever of the two is later decides.",
    ),
    solution="""
def usable_at(ends, setup):
    return [max(end + setup, max(ends)) for end in ends]
""",
    wrong=(
        Wrong("nobody waits for the kernel before", "before", old="max(end + setup, max(ends))", new="end + setup"),
        Wrong("no setup", "before", old="end + setup, ", new="end, "),
        Wrong("the setup comes last", "need not wait", old="max(end + setup, max(ends))", new="max(ends) + setup"),
    ),
    debrief="Without beginning early each of them could go on at max(ends) + setup, and the launch would come on top.",
)
