"""How many lines of global memory an instruction of a warp touches: step coalesced_atomics."""

from tutorial_lib.exercises import Plain, Wrong

LINE, BYTES = 128, 16


def judge(function, chance):
    side_by_side = [BYTES * lane for lane in range(32)]
    rows_of_four = [1024 * (lane // 4) + BYTES * (lane % 4) for lane in range(32)]
    rows_of_eight = [1024 * (lane // 8) + BYTES * (lane % 8) for lane in range(32)]
    second_halves = [place + LINE // 2 for place in rows_of_four]
    anywhere = [BYTES * chance.randrange(1000) for _ in range(32)]
    one = [BYTES * chance.randrange(8)] * 32
    for places in (side_by_side, rows_of_four, rows_of_eight, second_halves, anywhere, one):
        lines = len({place // LINE for place in places})
        told = function(list(places))
        if told != lines:
            shown = ", ".join(map(str, places[:10]))
            return f"Lanes at {shown}, … touch {lines} lines of {LINE} bytes, and `lines_touched` gives {told!r}."
    return None


EXERCISE = Plain(
    name="lines_touched",
    function="lines_touched",
    by=judge,
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
        Wrong("every lane counted", "touch 4 lines", old="len({place // 128 for place in places})", new="len(places)"),
        Wrong(
            "as many as the bytes fill",
            "touch 8 lines",
            old="len({place // 128 for place in places})",
            new="len(places) * 16 // 128",
        ),
        Wrong("from the first place on", "lines", old="place // 128", new="(place - places[0]) // 64"),
    ),
    debrief="With four lanes in a row 32 lanes touch eight lines, with eight lanes in a row four. Both add 512 bytes.",
)
