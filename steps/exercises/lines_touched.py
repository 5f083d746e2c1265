"""How many lines of global memory an instruction of a warp touches: step coalesced_atomics."""

from tutorial_lib.exercises import Compared, Wrong

LINE, BYTES = 128, 16


def cases(chance):
    """Where 32 lanes begin: side by side, in rows of four and of eight, in the second halves of lines, anywhere."""
    rows_of_four = [1024 * (lane // 4) + BYTES * (lane % 4) for lane in range(32)]
    yield ([BYTES * lane for lane in range(32)],)
    yield (rows_of_four,)
    yield ([1024 * (lane // 8) + BYTES * (lane % 8) for lane in range(32)],)
    yield ([place + LINE // 2 for place in rows_of_four],)
    yield ([BYTES * chance.randrange(1000) for _ in range(32)],)
    yield ([BYTES * chance.randrange(8)] * 32,)


EXERCISE = Compared(
    name="lines_touched",
    function="lines_touched",
    cases=cases,
    named=lambda places: f"lines_touched([{', '.join(map(str, places[:10]))}, …])",
    hints=(
        "Lines begin at 0, 128, 256 and so on. In which line is a place?",
        "`place // 128` numbers the lines. Two lanes in the same line count once. No lane's 16 bytes cross a line.",
        "`{place // 128 for place in places}` is the set of the lines.",
    ),
    solution="""
def lines_touched(places):
    return len({place // 128 for place in places})
""",
    wrong=(
        Wrong("every lane is counted", old="len({place // 128 for place in places})", new="len(places)"),
        Wrong(
            "the bytes are taken to lie together",
            old="len({place // 128 for place in places})",
            new="len(places) * 16 // 128",
        ),
        Wrong("lines begin with the first place", old="place // 128", new="(place - places[0]) // 64"),
    ),
    debrief="With four lanes in a row 32 lanes touch eight lines, with eight lanes in a row four. Both add 512 bytes.",
)
