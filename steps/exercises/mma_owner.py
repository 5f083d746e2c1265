"""Layouts: which lane holds an element of what mma.sync leaves, and in which register."""

from tutorial_lib.exercises import Plain, Wrong


def right(row: int, column: int) -> tuple[int, int]:
    """By Triton's own layout."""
    from steps.primers.first_kernels import MMA
    from tutorial_lib.holders import holders

    [(_, lane, register)] = holders(MMA.value, (16, 8))[row, column]
    return lane, register


def judge(function, chance):
    places = [(row, column) for row in range(16) for column in range(8)]
    chance.shuffle(places)
    for place in places:
        mine, theirs = function(*place), right(*place)
        if not isinstance(mine, tuple) or len(mine) != 2:
            return f"It must return two numbers, the lane and the register, and returns {mine!r}."
        if tuple(map(int, mine)) != theirs or any(x != int(x) for x in mine):
            row, column = place
            return _told(function, row, column, mine, theirs)
    return None


def _told(function, row: int, column: int, mine, theirs) -> str:
    """Says first what is wrong everywhere, then an example."""
    every = [(r, c) for r in range(16) for c in range(8)]
    lanes = [place for place in every if function(*place)[0] != right(*place)[0]]
    if lanes:
        row, column = lanes[0]
        where = "in the lower eight rows only" if all(r >= 8 for r, _ in lanes) else "for example"
        return (
            f"The lane is wrong in {len(lanes)} of 128 places, {where}: row {row}, column {column} is in lane "
            f"{right(row, column)[0]}, and yours says {function(row, column)[0]}."
        )
    if {function(*place)[1] for place in every} - {0, 1, 2, 3}:
        return f"A lane holds four of the 128 elements, in registers 0 to 3; yours has others, too: {mine[1]}."
    held = {}
    for place in every:
        held.setdefault(tuple(function(*place)), []).append(place)
    (lane, register), twice = max(held.items(), key=lambda item: len(item[1]))
    if len(twice) > 1:
        return f"The lane is right. But register {register} of lane {lane} cannot hold {len(twice)} elements: {twice}."
    return (
        f"The lane is right, the register is not: row {row}, column {column} is in register {theirs[1]} of lane "
        f"{theirs[0]}, and yours says {mine[1]}."
    )


EXERCISE = Plain(
    name="mma_owner",
    function="owner",
    by=judge,
    hints=(
        "Look at the picture of the accumulator. Four neighboring lanes hold a row, and two neighboring columns "
        "lie in "
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
        Wrong("rows are not taken modulo 8", "the lower eight rows only", old="row % 8 * 4", new="row * 4"),
        Wrong("a lane holds a column of its own", "The lane is wrong", old="column // 2", new="column % 4"),
        Wrong(
            "the lower half is forgotten", "cannot hold 2 elements", old="row // 8 * 2 + column % 2", new="column % 2"
        ),
        Wrong(
            "registers go down before across",
            "register is not",
            old="row // 8 * 2 + column % 2",
            new="row // 8 + column % 2 * 2",
        ),
        Wrong(
            "rows along the lanes",
            "The lane is wrong",
            old="row % 8 * 4 + column // 2",
            new="column // 2 * 8 + row % 8",
        ),
    ),
    debrief="A row lies in four neighboring lanes of one warp, so the maximum of a row takes two exchanges between "
    "lanes. All the kernels of this part, and those with wgmma later, rest on this picture.",
)
