"""Layouts: which lane holds an element of what mma.sync leaves, and in which register."""

from functools import cache
from itertools import product

from tutorial_lib.exercises import Compared, Wrong


@cache
def right(row: int, column: int) -> tuple[int, int]:
    """By Triton's own layout."""
    from steps.primers.first_kernels import MMA
    from tutorial_lib.holders import holders

    [(_, lane, register)] = holders(MMA.value, (16, 8))[row, column]
    return lane, register


EXERCISE = Compared(
    name="mma_owner",
    function="owner",
    cases=lambda chance: product(range(16), range(8)),
    right=right,
    told=lambda row, column: "That is (lane, register). A lane holds four of the 128 elements, in registers 0 to 3.",
    hints=(
        "Look at the picture of the accumulator. Four neighboring lanes hold a row, and two neighboring columns lie in "
        "one lane. Row 8 begins with lane 0 again.",
        "lane = 4 times something of the row, plus something of the column. Rows 0 and 8 have the same lanes, so only "
        "row % 8 counts. For the register: which of the two columns, and is it the upper or the lower half?",
        "The lane is row % 8 * 4 + column // 2. The register is column % 2, plus 2 in the lower eight rows.",
    ),
    solution="""
def owner(row, column):
    lane = row % 8 * 4 + column // 2
    register = row // 8 * 2 + column % 2
    return lane, register
""",
    wrong=(
        Wrong("row 8 is taken to begin with another lane than row 0", old="row % 8 * 4", new="row * 4"),
        Wrong("neighbouring columns are taken to lie in different lanes", old="column // 2", new="column % 4"),
        Wrong("the upper and the lower half share their registers", old="row // 8 * 2 + column % 2", new="column % 2"),
        Wrong(
            "registers go down before they go across",
            old="row // 8 * 2 + column % 2",
            new="row // 8 + column % 2 * 2",
        ),
        Wrong(
            "neighbouring lanes hold a column, and not a row",
            old="row % 8 * 4 + column // 2",
            new="column // 2 * 8 + row % 8",
        ),
    ),
    debrief="A row lies in four neighboring lanes of one warp, so the maximum of a row takes two exchanges between "
    "lanes. All the kernels of this part, and those with wgmma later, rest on this picture.",
)
