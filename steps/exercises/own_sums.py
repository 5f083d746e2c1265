"""The deferred sum: every lane adds up its own columns, and corrects its partial sum."""

from __future__ import annotations

import re
from dataclasses import dataclass

from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import Wrong

LAYOUT = re.compile(r"DistributedLinearLayout\(.*?shape=(\[[\d, ]+\])\)")


@dataclass(frozen=True, kw_only=True)
class InShort(InKernel):
    """Tells a layout's shape, not its bits."""

    def judge(self, function, chance):
        wrong = super().judge(function, chance)
        return wrong and LAYOUT.sub(r"layout of \1", wrong)


EXERCISE = InShort(
    name="own_sums",
    step="deferred_sum",
    function="add_own",
    kinds=({"causal": True},),
    lengths=(130, 190),
    schedules=1,
    edits=(
        ("own = gl.convert_layout(correction, gl.SliceLayout(1, row_sum.type.layout))", "pass"),
        ("row_sum = row_sum * own[:, None] + sum_own(weights)", "row_sum = add_own(row_sum, correction, weights)"),
    ),
    typical=(
        (
            "tiles of different layouts",
            "Your sums lie in other lanes than row_sum does. So columns of other lanes were added up, or axes of other "
            "lengths were summed.",
        ),
        (
            r"\) \* correction\[",
            "The new weights refer to the new maximum already: only the old sums need the correction.",
        ),
        (r"first wrong number.*# source(?!.*correction\[:, None\])", "The old sums are never corrected."),
    ),
    hints=(
        "A lane holds columns 2t and 2t + 1 of every eight, where t is its number in the group of four. Which axis "
        "of a tile "
        "[query, key / 8, 4, 2] is t?",
        "Sum over the last axis (the lane's two columns) and over axis 1 (the groups of eight). Axis 2, the four "
        "lanes, "
        "stays. And the sums of earlier tiles refer to an older maximum.",
        "own = gl.sum(gl.sum(eights, 3), 1), and the result is row_sum * correction[:, None] + own.",
    ),
    solution="""
def add_own(row_sum, correction, weights):
    correction = gl.convert_layout(correction, gl.SliceLayout(1, row_sum.type.layout))
    eights = gl.reshape(weights, [TILE_QUERY, TILE_KEY // 8, 4, 2])
    own = gl.sum(gl.sum(eights, 3), 1)
    return row_sum * correction[:, None] + own
""",
    wrong=(
        Wrong(
            "the old sums are not corrected",
            "never corrected",
            old="row_sum * correction[:, None] + own",
            new="row_sum + own",
        ),
        Wrong(
            "the new weights are corrected, too",
            "refer to the new maximum already",
            old="row_sum * correction[:, None] + own",
            new="(row_sum + own) * correction[:, None]",
        ),
        Wrong(
            "lanes are added up, too",
            "lie in other lanes",
            old="gl.sum(gl.sum(eights, 3), 1)",
            new="gl.sum(gl.sum(eights, 3), 2)",
        ),
        Wrong(
            "columns of other lanes",
            "lie in other lanes",
            old="[TILE_QUERY, TILE_KEY // 8, 4, 2]",
            new="[TILE_QUERY, 4, TILE_KEY // 8, 2]",
        ),
    ),
    debrief="All four lanes of a row know its maximum, so each can correct its own part of the sum. The parts meet "
    "once, after "
    "the loop.",
)
