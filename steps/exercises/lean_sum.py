"""Row sums that every lane keeps for itself, and that are put together once, after the last tile."""

from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import Wrong


class OwnSums(InKernel):
    """The simulator follows layouts: sums that lie otherwise than ``row_sum`` would have to move between lanes."""

    def judge(self, function, chance):
        wrong = super().judge(function, chance)
        if wrong and "tiles of different layouts" in wrong:
            return (
                "What you add to `row_sum` is spread over the lanes otherwise than `row_sum`, so lanes would have to "
                "exchange numbers. `row_sum` is [row, 4], and column n is in the lane that holds the columns 2 n and "
                "2 n + 1 of every 8 neighbouring ones. Reshape the weights so that the lane is an axis of its own, and "
                "sum over the other two."
            )
        return wrong


EXERCISE = OwnSums(
    name="lean_sum",
    step="lean_sum",
    function="add_up",
    edits=(
        (
            """\
        # What each lane holds of the sums so far, and of one more tile.
        own = gl.convert_layout(correction, gl.SliceLayout(1, row_sum.type.layout))
        row_sum = row_sum * own[:, None] + sum_own(weights)
""",
            "        row_sum = add_up(row_sum, correction, weights)\n",
        ),
    ),
    kinds=({"head_dim": 128, "heads": 1},),
    lengths=(256, 384),
    multiple=128,
    schedules=1,
    hints=(
        "The sums so far were made with the old maximum. What has to happen to them before anything is added?",
        "Of 8 neighbouring columns each of the four lanes has 2. gl.reshape(weights, [rows, columns // 8, 4, 2]) gives "
        "the lane an axis of its own; sum over the axes around it.",
        "gl.sum(gl.sum(eights, 3), 1) leaves [rows, 4], which is the shape of row_sum. The correction has one number a "
        "row: row_sum * own[:, None] + those sums.",
    ),
    solution="""
def add_up(row_sum, correction, weights):
    eights = gl.reshape(weights, [weights.shape[0], weights.shape[1] // 8, 4, 2])
    sums = gl.sum(gl.sum(eights, 3), 1)
    own = gl.convert_layout(correction, gl.SliceLayout(1, row_sum.type.layout))
    return row_sum * own[:, None] + sums
""",
    wrong=(
        Wrong("the old sums are not corrected", "wrong number", old="row_sum * own[:, None]", new="row_sum"),
        Wrong(
            "the new sums are corrected, too",
            "wrong number",
            old="row_sum * own[:, None] + sums",
            new="(row_sum + sums) * own[:, None]",
        ),
        Wrong(
            "whole sums",
            "lanes would have to exchange",
            old="sums = gl.sum(gl.sum(eights, 3), 1)",
            new="sums = gl.sum(weights, 1)[:, None]",
        ),
        Wrong(
            "a lane's columns are taken for neighbours",
            "lanes would have to exchange",
            old="""eights = gl.reshape(weights, [weights.shape[0], weights.shape[1] // 8, 4, 2])
    sums = gl.sum(gl.sum(eights, 3), 1)""",
            new="""eights = gl.reshape(weights, [weights.shape[0], 4, weights.shape[1] // 4])
    sums = gl.sum(eights, 2)""",
        ),
        Wrong(
            "the axis of the lanes is summed",
            "lanes would have to exchange",
            old="gl.sum(gl.sum(eights, 3), 1)",
            new="gl.sum(gl.sum(eights, 2), 1)",
        ),
    ),
    debrief="All four lanes of a row know its maximum, so each can correct its own part. Only sums may wait like this: "
    "the maximum is needed by all lanes in every turn.",
)
