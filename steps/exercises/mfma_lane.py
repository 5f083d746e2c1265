"""MFMA's layout: which lane of a wave holds a score, and in which register, when the transposed product is computed."""

from tutorial_lib.exercises import Plain, Wrong

ROWS = COLUMNS = 32
RESULTS = 16  # that a lane holds


def holders_of() -> dict:
    """(row, column) -> (lane, register), by Triton's own layout."""
    from triton.experimental.gluon.language.amd import AMDMFMALayout

    from tutorial_lib.holders import holders

    layout = AMDMFMALayout(version=4, instr_shape=[32, 32, 16], transposed=True, warps_per_cta=[1, 1])
    return {place: who[0][1:] for place, who in holders(layout, (ROWS, COLUMNS)).items()}


def judge(function, chance):
    theirs = holders_of()
    places = list(theirs)
    chance.shuffle(places)
    mine = {}
    for row, column in places:
        found = function(row, column)
        if not isinstance(found, tuple) or len(found) != 2:
            return f"It must return two numbers, the lane and the register, and returns {found!r}."
        if not all(isinstance(number, int) for number in found):
            return f"`holder({row}, {column})` must be two whole numbers, and yours gives {found!r}."
        mine[row, column] = found
    return _told(mine, theirs)


def _told(mine: dict, theirs: dict) -> str | None:
    """Says first what is wrong everywhere, then an example."""
    for (row, column), (lane, register) in mine.items():
        if not 0 <= lane < 64:
            return f"A wave has lanes 0 to 63, and yours has row {row}, column {column} in lane {lane}."
        if not 0 <= register < RESULTS:
            return (
                f"A lane holds {RESULTS} of the {ROWS * COLUMNS} results, in registers 0 to {RESULTS - 1}. Yours has "
                f"row {row}, column {column} in register {register}."
            )
    if all(mine[row, column] == theirs[column, row] for row, column in mine):
        return (
            "That is the layout of the product as it is: a lane holds results of one column. Here the transposed "
            "product is computed, so rows and columns change places: a lane holds results of one row."
        )
    held: dict = {}
    for place, who in sorted(mine.items()):
        held.setdefault(who, []).append(place)
    lanes = sorted(place for place in mine if mine[place][0] != theirs[place][0])
    if lanes:
        row, column = lanes[0]
        rows = {r for r, c in mine if mine[r, c][0] == mine[row, column][0]}
        spread = f" Your lane {mine[row, column][0]} has results of {len(rows)} rows." if len(rows) > 1 else ""
        return (
            f"The lane is wrong in {len(lanes)} of {len(mine)} places. For example, row {row}, column {column} is in "
            f"lane {theirs[row, column][0]}, and yours says {mine[row, column][0]}.{spread}"
        )
    (lane, register), twice = max(held.items(), key=lambda item: len(item[1]))
    if len(twice) > 1:
        return f"The lane is right. But register {register} of lane {lane} cannot hold {len(twice)} results: {twice}."
    wrong = sorted(place for place in mine if mine[place] != theirs[place])
    if wrong:
        row, column = wrong[0]
        return (
            f"The lane is right, the register is not: row {row}, column {column} is in register "
            f"{theirs[row, column][1]} of lane {theirs[row, column][0]}, and yours says {mine[row, column][1]}."
        )
    return None


EXERCISE = Plain(
    name="mfma_lane",
    function="holder",
    by=judge,
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
            "the product as it is",
            "rows and columns change places",
            source="""
def holder(row, column):
    lane = column + 32 * (row // 4 % 2)
    register = 4 * (row // 8) + row % 4
    return lane, register
""",
        ),
        Wrong("the two halves of a row", "The lane is wrong in 512", old="column // 4 % 2", new="column // 16"),
        Wrong(
            "one lane holds the whole row",
            "registers 0 to 15",
            source="\ndef holder(row, column):\n    return row, column\n",
        ),
        Wrong("one lane for each row, folded", "The lane is wrong in 512", old=" + 32 * (column // 4 % 2)", new=""),
        Wrong("a group for each four registers", "registers 0 to 15", old="column // 8", new="column // 4"),
        Wrong("the group is lost", "cannot hold 4 results", old="4 * (column // 8) + ", new=""),
        Wrong(
            "columns in turn",
            "the register is not",
            old="4 * (column // 8) + column % 4",
            new="column // 8 + 4 * (column % 4)",
        ),
        Wrong("too many lanes", "lanes 0 to 63", old="32 * (column // 4 % 2)", new="32 * (column // 4)"),
        Wrong(
            "neighbouring lanes",
            "The lane is wrong",
            old="row + 32 * (column // 4 % 2)",
            new="2 * row + column // 4 % 2",
        ),
    ),
    debrief="A row lies in two lanes, 32 apart. Each finds the maximum of its 16 scores without asking anybody. One "
    "exchange between the two lanes then gives the maximum of the row.",
)
