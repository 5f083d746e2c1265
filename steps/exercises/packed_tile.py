"""Which sequence a tile of queries belongs to, where sequences stand behind each other in one tensor."""

from itertools import accumulate

from tutorial_lib.exercises import Plain, Wrong


def judge(function, chance):
    known = [(256, 128, 384), (1, 1, 1), (100, 300, 128), (129,)]
    drawn = [tuple(chance.randint(1, 400) for _ in range(chance.randint(2, 9))) for _ in range(12)]
    for lengths in [*known, *drawn]:
        if told := _wrong(function, lengths, chance.choice([64, 128])):
            return told
    return None


def _wrong(function, lengths: tuple[int, ...], rows: int) -> str | None:
    begins = [0, *accumulate(lengths)]
    where = f"Tiles of {rows} queries; sequences of {', '.join(map(str, lengths))} tokens, so that begins is {begins}. "
    wanted = {(s, i) for s, length in enumerate(lengths) for i in range(-(-length // rows))}
    found: dict[tuple[int, int], int] = {}
    for number in range(begins[-1] // rows + len(lengths)):
        mine = function(number, begins, rows)
        if not (isinstance(mine, tuple) and len(mine) == 2 and all(isinstance(n, int) for n in mine)):
            return f"Two whole numbers must come back, the sequence and its tile. These came: `{mine!r}`."
        which, i = mine
        said = f"{where}For block {number} you return sequence {which} and tile {i}: "
        if not 0 <= which < len(lengths):
            return f"{said}there are only sequences 0 to {len(lengths) - 1}."
        if i < 0:
            return f"{said}the tile has a number below 0, so the block would compute queries of another sequence."
        if i * rows >= lengths[which]:
            continue  # a block that has nothing to do
        if mine in found:
            return f"{said}that is what block {found[mine]} computes already."
        found[mine] = number
    if missing := wanted - set(found):
        which, i = min(missing)
        return f"{where}Tile {i} of sequence {which} (of {lengths[which]} tokens) is computed by no block."
    return None


EXERCISE = Plain(
    name="packed_tile",
    function="find",
    by=judge,
    hints=(
        "Sequence s has the block numbers from begins[s] // rows + s on. These first numbers grow with s. So the "
        "sequence of a block is the last one whose first number is not larger than the block's own.",
        "Go through the sequences in order, and remember s as long as begins[s] // rows + s <= number. The last entry "
        "of begins belongs to no sequence: it is the end of the last one.",
        "The tile's number inside its sequence is number - (begins[which] // rows + which): count from the first "
        "number of that sequence.",
    ),
    solution="""
def find(number, begins, rows):
    which = 0
    for s in range(1, len(begins) - 1):
        if begins[s] // rows + s <= number:
            which = s
    return which, number - (begins[which] // rows + which)
""",
    wrong=(
        Wrong(
            "no room for tiles that are not full",
            "has a number below 0",
            old="if begins[s] // rows + s <= number",
            new="if begins[s] // rows <= number",
        ),
        Wrong("one block too late", "computed by no block", old="+ s <= number", new="+ s < number"),
        Wrong(
            "the last sequence is never found", "computed by no block", old="len(begins) - 1)", new="len(begins) - 2)"
        ),
        Wrong(
            "the sequence's first number lacks the sequences before",
            "by no block",
            old="return which, number - (begins[which] // rows + which)",
            new="return which, number - begins[which] // rows",
        ),
    ),
    debrief="How many tiles a sequence has follows from lengths that the host need not know. It launches as many "
    "blocks as there can be tiles: the whole ones of all tokens, and one more a sequence. A few find nothing to do.",
)
