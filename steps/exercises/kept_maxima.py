"""A row keeps its old maximum until a new one exceeds it by more than a threshold. In the kernel of step
lazy_rescaling.
"""

from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import Wrong


def rarely(run, problem) -> str | None:
    """On scores like ours the output is hardly ever rescaled."""
    if problem.scale is not None:
        return None
    rescaled = sum(
        lane.startswith("correct") and label == "store" for _, lane, kind, label, *_ in run.trace if kind == "tmem"
    )
    if rescaled:
        return (
            f"The output is right, but it was rescaled {rescaled} times, and no maximum had grown by more than "
            "THRESHOLD after the first tile. Which maximum do you return where it grew by less?"
        )
    return None


EXERCISE = InKernel(
    name="kept_maxima",
    step="lazy_rescaling",
    function="next_maxima",
    kinds=({"heads": 1}, {"heads": 1, "scale": 4.0}),
    lengths=(400, 600),
    schedules=1,
    watch=rarely,
    typical=(
        (
            r"scale=4.*it is (nan|-?inf)",
            "Here scores are far apart, and maxima grow by more than THRESHOLD. Weights relative to a maximum that is "
            "too small do not fit into float16.",
        ),
        (
            r"whole row is NaN",
            "Already the first tile goes wrong. Before it the old maximum is the least float32: that one must not be "
            "kept, and the correction must be 0.",
        ),
        (
            r"first wrong number",
            "The output and the sum are relative to different maxima. The correction must be 2 to the power of the old "
            "maximum minus the one that you return.",
        ),
    ),
    hints=(
        "`raised` is the maximum of the row so far. Decide for each row whether it has grown enough to take the "
        "place of `row_max`.",
        "`gl.where(condition, a, b)` decides for each row. The condition: the new maximum exceeds the old one by more "
        "than THRESHOLD. Where it does not, the row keeps the old one.",
        "The correction is `exp2(row_max - new_max)`, with `new_max` as you return it. Where the row keeps its "
        "maximum, that is 1.",
    ),
    solution="""
def next_maxima(scores, row_max, scale):
    raised = gl.maximum(row_max, gl.max(scores, 1) * scale)
    new_max = gl.where(raised - row_max > THRESHOLD, raised, row_max)
    return new_max, exp2(row_max - new_max)
""",
    wrong=(
        Wrong(
            "the new maximum counts at once",
            "but it was rescaled",
            old="gl.where(raised - row_max > THRESHOLD, raised, row_max)",
            new="raised",
        ),
        Wrong(
            "both exchanged", "Already the first tile goes wrong", old="raised, row_max)\n", new="row_max, raised)\n"
        ),
        Wrong(
            "the correction of the raised maximum",
            "relative to different maxima",
            old="exp2(row_max - new_max)",
            new="exp2(row_max - raised)",
        ),
        Wrong(
            "the first maximum for ever",
            "do not fit into float16",
            old="raised - row_max > THRESHOLD",
            new="row_max < -1e38",
        ),
        Wrong(
            "the correction upside down",
            "and the correction must be 0",
            old="exp2(row_max - new_max)",
            new="exp2(new_max - row_max)",
        ),
    ),
    debrief="A row's output, its sum and its weights must be relative to the same maximum. Which one that is does not "
    "matter, as long as no weight leaves the range of float16.",
)
