"""The order of columns in the sums for dQ, so that a lane adds four numbers at once: step vectorized_atomics."""

from tutorial_lib.exercises import Plain, Wrong


def judge(function, chance):
    columns = chance.choice([64, 128])
    found = {}
    for column in range(columns):
        place = function(column)
        if not isinstance(place, int):
            return f"`place({column})` must be a whole number, and yours gives {place!r}."
        if not 0 <= place < columns:
            return f"`place({column})` is {place}: a row of {columns} columns has places 0 to {columns - 1} only."
        if place in found:
            return f"Columns {found[place]} and {column} both go to place {place}: their sums would be mixed up."
        found[place] = column
    for first in range(0, columns, 16):
        for lane in range(4):
            own = [first + 2 * lane + n for n in (0, 1, 8, 9)]
            places = [function(column) for column in own]
            if places != list(range(places[0], places[0] + 4)):
                return (
                    f"A lane has columns {', '.join(map(str, own))}, in this order. Yours lie at "
                    f"{places}: they must lie "
                    "side by side, or the lane cannot add them at once."
                )
            if places[0] % 4:
                return (
                    f"Columns {', '.join(map(str, own))} lie side by side, but begin at place "
                    f"{places[0]}. An addition of "
                    "four numbers wants a place that four divides: 16 bytes."
                )
            if places[0] // 16 * 16 != first:
                return (
                    f"Columns {', '.join(map(str, own))} lie side by side, but among the columns "
                    f"from {places[0] // 16 * 16} "
                    "on. Let every 16 columns stay together: the last kernel puts them back 16 at a time."
                )
    return None


EXERCISE = Plain(
    name="sums_place",
    function="place",
    by=judge,
    hints=(
        "Think of 16 columns at a time: `column // 16 * 16` is where they begin. Of what is "
        "left, which lane has it, and "
        "which of the lane's four is it?",
        "Within 16 columns, bit 0 tells left from right in a pair, bits 1 and 2 are the lane, "
        "and bit 3 tells the near pair "
        "from the far one. In the sums the lane comes first, then near or far, then left or right.",
        "The lane is column % 8 // 2, and near or far is column % 16 // 8: its place is 4 * lane "
        "+ 2 * far + column % 2.",
    ),
    solution="""
def place(column):
    lane, far = column % 8 // 2, column % 16 // 8
    return column // 16 * 16 + 4 * lane + 2 * far + column % 2
""",
    wrong=(
        Wrong("as they are", "must lie side by side", source="\ndef place(column):\n    return column\n"),
        Wrong("far and lane exchanged", "must lie side by side", old="4 * lane + 2 * far", new="8 * far + 2 * lane"),
        Wrong("left and right lost", "both go to place", old=" + column % 2", new=""),
        Wrong("the sixteen lost", "both go to place", old="column // 16 * 16 + ", new=""),
        Wrong("a lane of sixteen columns", "both go to place", old="column % 8 // 2", new="column % 16 // 4"),
        Wrong("pairs turned round", "must lie side by side", old="2 * far", new="2 * (1 - far)"),
        Wrong(
            "sixteens in another order",
            "stay together",
            source="""
def place(column):
    lane, far = column % 8 // 2, column % 16 // 8
    return (column // 16 ^ 1) * 16 + 4 * lane + 2 * far + column % 2
""",
        ),
    ),
    debrief="No number moves from lane to lane: only the addresses are others. The kernel that rounds dQ "
    "at the end reads "
    "the sums in this order and writes them in the usual one.",
)
