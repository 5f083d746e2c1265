"""MFMA's layout: which lane of a wave holds a score, and in which register, when the transposed product is computed."""

from functools import cache
from itertools import product

from tutorial_lib.exercises import Compared, Wrong

ROWS = COLUMNS = 32


@cache
def holders_of() -> dict:
    """(row, column) -> (lane, register), by Triton's own layout."""
    from triton.experimental.gluon.language.amd import AMDMFMALayout

    from tutorial_lib.holders import holders

    layout = AMDMFMALayout(version=4, instr_shape=[32, 32, 16], transposed=True, warps_per_cta=[1, 1])
    return {place: who[0][1:] for place, who in holders(layout, (ROWS, COLUMNS)).items()}


EXERCISE = Compared(
    name="mfma_lane",
    function="holder",
    cases=lambda chance: product(range(ROWS), range(COLUMNS)),
    right=lambda row, column: holders_of()[row, column],
    told=lambda row, column: "That is (lane, register). A wave has lanes 0 to 63, and a lane holds 16 results.",
    hints=(
        "Take the rule of the product as it is, and let rows and columns change places: the row now says which two "
        "lanes it is, and the column says which of the two, and which register.",
        "Columns come in groups of four. Groups 0, 2, 4 and so on are in the lane with the row's number, groups 1, 3, "
        "5 and so on in the lane 32 further on. Within a lane, each of its groups fills the next four registers.",
        "The lane is row + 32 * (column // 4 % 2). The register is 4 * (column // 8) + column % 4.",
    ),
    solution="""
def holder(row, column):
    lane = row + 32 * (column // 4 % 2)
    register = 4 * (column // 8) + column % 4
    return lane, register
""",
    wrong=(
        Wrong(
            "the product is computed as it is, and a lane holds results of one column: here the transposed product is "
            "computed, so rows and columns change places",
            source="""
def holder(row, column):
    lane = column + 32 * (row // 4 % 2)
    register = 4 * (row // 8) + row % 4
    return lane, register
""",
        ),
        Wrong("each of the two lanes has a half of the row in one piece", old="column // 4 % 2", new="column // 16"),
        Wrong(
            "one lane holds the whole row",
            source="def holder(row, column):\n    return row, column",
        ),
        Wrong("a row is in one lane, which holds two results in a register", old=" + 32 * (column // 4 % 2)", new=""),
        Wrong("a lane holds every group of four columns, and not every second", old="column // 8", new="column // 4"),
        Wrong("the groups of a lane are all in the same registers", old="4 * (column // 8) + ", new=""),
        Wrong(
            "a lane's groups take turns in its registers",
            old="4 * (column // 8) + column % 4",
            new="column // 8 + 4 * (column % 4)",
        ),
        Wrong("there are more lanes than a wave has", old="32 * (column // 4 % 2)", new="32 * (column // 4)"),
        Wrong(
            "the lanes of a row are neighbours, and not 32 apart",
            old="row + 32 * (column // 4 % 2)",
            new="2 * row + column // 4 % 2",
        ),
    ),
    debrief="A row lies in two lanes, 32 apart. Each finds the maximum of its 16 scores without asking anybody. One "
    "exchange between the two lanes then gives the maximum of the row.",
)
