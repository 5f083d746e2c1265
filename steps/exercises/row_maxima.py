"""Split-Q: the maximum of a row, by shuffles among the four lanes that hold it."""

from tutorial_lib.exercises import Plain, Wrong

LANES = 32


def judge(function, chance):
    for _ in range(10):
        own = [round(chance.uniform(-9, 9), 2) for _ in range(LANES)]
        distances = []

        def shuffle(values, distance, distances=distances):
            distances.append(distance)
            return [values[lane ^ distance] for lane in range(LANES)]

        found = list(function(list(own), shuffle))
        rows = [own[lane // 4 * 4 : lane // 4 * 4 + 4] for lane in range(LANES)]
        if len(found) != LANES:
            return f"It must return 32 numbers, one a lane; yours returns {len(found)}."
        wrong = [lane for lane, row in enumerate(rows) if found[lane] != max(row)]
        if wrong:
            mixed = [lane for lane in wrong if found[lane] in own and found[lane] not in rows[lane]]
            lane = (mixed or wrong)[0]
            return _told(lane, rows[lane], own, found)
        if len(distances) > 2:
            return f"Right, but with {len(distances)} shuffles ({distances}); two are enough for four lanes."
    return None


def _told(lane: int, row: list, own: list, found: list) -> str:
    wrong = f"Lane {lane} must end with {max(row)}, the largest of its row's four lanes {row}; yours has {found[lane]}."
    if found[lane] in own and found[lane] not in row:
        theirs = own.index(found[lane])
        return f"{wrong} That number is lane {theirs}'s, which holds row {theirs // 4}: rows got mixed."
    if found[lane] in row:
        return f"{wrong} It has not heard of lane {lane // 4 * 4 + row.index(max(row))}."
    return wrong


EXERCISE = Plain(
    name="row_maxima",
    function="row_maxima",
    by=judge,
    hints=(
        "Lanes 4r to 4r + 3 share row r. Which lanes does lane 5 reach with distances 1, 2 and 4?",
        "After one shuffle at distance 1, neighbors agree. The second shuffle must send what the first one found, not "
        "the numbers of the beginning.",
        "For distance 1 and then 2: other = shuffle(own, distance), and own becomes the larger of own and other, lane "
        "by lane.",
    ),
    solution="""
def row_maxima(own, shuffle):
    for distance in (1, 2):
        other = shuffle(own, distance)
        own = [max(mine, its) for mine, its in zip(own, other)]
    return own
""",
    wrong=(
        Wrong("all lanes of the warp", "rows got mixed", old="(1, 2)", new="(1, 2, 4, 8, 16)"),
        Wrong("only one neighbour", "has not heard of lane", old="(1, 2)", new="(1,)"),
        Wrong("distances of lanes of another row", "rows got mixed", old="(1, 2)", new="(2, 4)"),
        Wrong(
            "the second shuffle sends the old numbers",
            "has not heard of lane",
            source="""
def row_maxima(own, shuffle):
    near, far = shuffle(own, 1), shuffle(own, 2)
    return [max(three) for three in zip(own, near, far)]
""",
        ),
        Wrong("three lanes asked one by one", "two are enough", old="(1, 2)", new="(1, 2, 3)"),
    ),
    debrief="Two shuffles a row, and no shared memory. In split-KV a row also lies in four warps, and they can only "
    "meet in shared memory, at a barrier.",
)
