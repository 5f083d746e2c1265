"""LDS: a swizzle with which neither the reads of K nor the transposed ones of V meet a bank twice."""

from collections import Counter

from tutorial_lib.exercises import Plain, Wrong

ROWS, CHUNKS = 64, 16  # of a tile: rows of 128 elements, chunks of 16 bytes, which fill four banks each
QUARTER = 4  # chunks, and rows, that one half of a wave meets in a transposed read


def judge(function, chance):
    rows = list(range(ROWS))
    chance.shuffle(rows)
    place = {}
    for row in rows:
        for chunk in range(CHUNKS):
            found = place[row, chunk] = function(row, chunk)
            if not isinstance(found, int) or not 0 <= found < CHUNKS:
                return (
                    f"`place({row}, {chunk})` must be a whole number from 0 to {CHUNKS - 1}, and yours gives {found!r}."
                )
        if len({place[row, chunk] for chunk in range(CHUNKS)}) < CHUNKS:
            return f"In row {row} two chunks lie at the same place: one overwrites the other."
    return _keys(place, chance) or _values(place, rows)


def _keys(place: dict, chance) -> str | None:
    """What is wrong with the reads of K: lane n of a half of the wave reads a chunk of row n."""
    from tutorial_lib.layouts import LANES, groups_of_lanes

    chunk, first = chance.randrange(CHUNKS), chance.choice((0, LANES // 2))
    for group in groups_of_lanes("gfx950", "ds_read_b128"):
        rows = [first + lane % (LANES // 2) for lane in group]
        turns = max(Counter(place[row, chunk] for row in rows).values())
        if turns > 1:
            return (
                f"No chunk is lost. But reading K takes {turns} turns: of chunk {chunk} of the rows "
                f"{', '.join(map(str, sorted(rows)))}, which LDS serves together, {turns} lie in the same four banks."
            )
    return None


def _values(place: dict, rows: list[int]) -> str | None:
    """What is wrong with the reads of V: a half of the wave reads four chunks side by side of four rows."""
    for row in rows:
        above = row - row % QUARTER
        for first in range(0, CHUNKS, QUARTER):
            met = [place[r, first + n] for r in range(above, above + QUARTER) for n in range(QUARTER)]
            if (turns := max(Counter(met).values())) > 1:
                return (
                    f"K is read without conflicts. But reading V takes {turns} turns: half a wave reads chunks {first} "
                    f"to {first + QUARTER - 1} of rows {above} to {above + QUARTER - 1} together, and {turns} of these "
                    "16 chunks lie in the same four banks."
                )
    return None


EXERCISE = Plain(
    name="lds_swizzle",
    function="place",
    by=judge,
    hints=(
        "XOR with a number from 0 to 15 that depends on the row alone loses no chunk. Which number for which row?",
        "For K, 16 rows that differ modulo 16 need 16 different numbers. For V, four rows that follow each other meet "
        "four chunks that differ in their two lower bits. Their places differ if the numbers of the rows differ in the "
        "two *upper* bits.",
        "Let the two lower bits of the row be the upper bits of the number, and the next two bits of the row the lower "
        "bits: row % 4 << 2 | row // 4 % 4.",
    ),
    solution="""
def place(row, chunk):
    return chunk ^ (row % 4 << 2 | row // 4 % 4)
""",
    wrong=(
        Wrong(
            "no swizzle",
            "reading K takes 16 turns",
            source="""
def place(row, chunk):
    return chunk
""",
        ),
        Wrong(
            "that of step direct_to_lds",
            "But reading V takes 4 turns",
            source="""
def place(row, chunk):
    return chunk ^ row % 16
""",
        ),
        Wrong(
            "shifted by the row",
            "But reading V takes 4 turns",
            source="""
def place(row, chunk):
    return (chunk + row) % 16
""",
        ),
        Wrong("only the upper bits", "reading K takes 4 turns", old=" | row // 4 % 4", new=""),
        Wrong("eight places", "two chunks lie at the same place", old="chunk ^", new="chunk % 8 ^"),
        Wrong("the row is not cut off", "must be a whole number from 0 to 15", old="row % 4 << 2", new="row << 2"),
    ),
    debrief="XOR with the bits of the row in another order. Triton's swizzled layouts take the row as it is; in Triton "
    "3.7 the copies straight to LDS do not take a layout with these bits.",
)
