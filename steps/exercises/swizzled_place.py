"""The swizzle: where an element of a tile lies, so that ldmatrix meets every bank once."""

from tutorial_lib.exercises import Plain, Wrong

ROWS, COLUMNS, CHUNK = 64, 64, 8


def judge(function, chance):
    from tutorial_lib.layouts import words_a_bank

    rows = list(range(ROWS))
    chance.shuffle(rows)
    elements = [(row, column) for row in rows for column in range(COLUMNS)]
    for row, column in elements:
        found = function(row, column)
        if not isinstance(found, int):
            return f"`place({row}, {column})` must be a whole number, and yours gives {found!r}."
        if not 0 <= found < ROWS * COLUMNS:
            return f"`place({row}, {column})` is {found}: the tile has places 0 to {ROWS * COLUMNS - 1} only."
    holds: dict[int, tuple[int, int]] = {}
    for element in elements:
        found = function(*element)
        if found in holds:
            return f"Elements {holds[found]} and {element} both lie at place {found}: one overwrites the other."
        holds[found] = element
    for row in rows:
        for first in range(0, COLUMNS, CHUNK):
            places = [function(row, first + n) for n in range(CHUNK)]
            if places[0] % CHUNK or places != list(range(places[0], places[0] + CHUNK)):
                return (
                    f"Columns {first} to {first + CHUNK - 1} of row {row} must stay together, in order, in one piece "
                    "of 16 "
                    f"bytes, because ldmatrix and cp.async move such pieces. Yours lie at {places}."
                )
    for row in range(0, ROWS, 8):
        for first in range(0, COLUMNS, CHUNK):
            words = words_a_bank([2 * function(row + n, first) for n in range(8)])
            if (wavefronts := max(words.values())) > 1:
                return (
                    f"No element is lost. But the matrix of rows {row} to {row + 7} and columns {first} to "
                    f"{first + CHUNK - 1} takes {wavefronts} wavefronts: {wavefronts} of its rows lie in the same "
                    "banks."
                )
    return None


EXERCISE = Plain(
    name="swizzled_place",
    function="place",
    by=judge,
    hints=(
        "Only whole chunks move, and only within their row. So the place is 64 * row + 8 * (new number of the chunk) + "
        "(column within the chunk).",
        "The chunk is column // 8. Eight neighboring rows need eight different new numbers for the same chunk, and the "
        "eight chunks of a row need eight different ones, too. Exclusive or (`^`) with a number from 0 to 7 does it.",
        "The new number is (column // 8) ^ (row % 8).",
    ),
    solution="""
def place(row, column):
    chunk = column // 8 ^ row % 8
    return row * 64 + chunk * 8 + column % 8
""",
    wrong=(
        Wrong("no swizzle", "takes 8 wavefronts", old=" ^ row % 8", new=""),
        Wrong("four phases only", "takes 2 wavefronts", old="row % 8", new="row % 4"),
        Wrong("the row itself, not modulo 8", "the tile has places", old="^ row % 8", new="^ row"),
        Wrong(
            "elements move, not chunks",
            "must stay together",
            source="""
def place(row, column):
    return row * 64 + (column ^ row % 8)
""",
        ),
        Wrong("changes every eight rows", "takes 8 wavefronts", old="row % 8", new="row // 8"),
        Wrong("the column within the chunk is lost", "both lie at place", old=" + column % 8", new=""),
    ),
    debrief="XOR with a fixed number swaps places and loses none, and different rows give different numbers. (chunk + "
    "row) % 8 would do, too; XOR is what the hardware's TMA and wgmma use later.",
)
