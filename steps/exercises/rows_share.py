"""Which rows of another head a block's spare warps have, by the iterations of the block: step fused_pre_post."""

from itertools import pairwise

from tutorial_lib.exercises import Plain, Wrong


def judge(function, chance):
    shapes = [([1], 8), ([4, 4, 4], 12), ([64, 62, 60, 58], 4096)]
    shapes += [([chance.randint(0, 64) for _ in range(chance.randint(2, 9))] + [3], chance.randint(100, 5000))]
    for iterations, rows in shapes:
        shares = [function(j, iterations, rows) for j in range(len(iterations))]
        if told := _wrong(shares, iterations, rows):
            return told
    return None


def _wrong(shares: list, iterations: list[int], rows: int) -> str | None:
    where = f"{rows} rows, and blocks of {iterations} iterations"
    for j, share in enumerate(shares):
        if not (isinstance(share, tuple) and len(share) == 2 and all(isinstance(row, int) for row in share)):
            return f"`own_rows` must return two whole numbers, (first, end), and yours gives {share!r} for block {j}."
    told = ", ".join(f"block {j}: {first} to {end}" for j, (first, end) in enumerate(shares))
    for j, ((_, end), (first, _)) in enumerate(pairwise(shares)):
        if first > end:
            return f"{where}: nobody has the rows from {end} to {first}, between blocks {j} and {j + 1} ({told})."
        if first < end:
            return f"{where}: blocks {j} and {j + 1} both have the rows from {first} to {end} ({told})."
    if shares[0][0] != 0 or shares[-1][1] != rows:
        return f"{where}: the first share must begin at row 0, and the last end at row {rows} ({told})."
    for j, (first, end) in enumerate(shares):
        if abs((end - first) * sum(iterations) - iterations[j] * rows) > sum(iterations):
            return (
                f"{where}: block {j} takes {iterations[j]} of {sum(iterations)} iterations, and has {end - first} "
                "rows. A block with more rows than its iterations leave time for keeps its SM when its products are "
                f"done ({told})."
            )
    return None


EXERCISE = Plain(
    name="rows_share",
    function="own_rows",
    by=judge,
    hints=(
        "Count iterations from the first block on: block j has those from sum(iterations[:j]) to sum(iterations[: j + "
        "1]). Which rows belong to an iteration?",
        "If t of all T iterations are before a block, rows * t // T rows are before it. Use the same formula for both "
        "ends.",
        "first is rows * sum(iterations[:j]) // sum(iterations), and end is the same with sum(iterations[: j + 1]).",
    ),
    solution="""
def own_rows(j, iterations, rows):
    before, every = sum(iterations[:j]), sum(iterations)
    return rows * before // every, rows * (before + iterations[j]) // every
""",
    wrong=(
        Wrong(
            "as many for all",
            "more rows than its iterations",
            old="before, every = sum(iterations[:j]), sum(iterations)\n    return rows * before // every, "
            "rows * (before + iterations[j]) // every",
            new="return rows * j // len(iterations), rows * (j + 1) // len(iterations)",
        ),
        Wrong(
            "every share rounded down",
            "nobody has the rows",
            old="rows * (before + iterations[j]) // every",
            new="rows * before // every + iterations[j] * (rows // every)",
        ),
        Wrong(
            "one too many",
            "both have the rows",
            old="rows * (before + iterations[j]) // every",
            new="rows * (before + iterations[j]) // every + (j + 1 < len(iterations))",
        ),
        Wrong("the last block forgotten", "must begin at row 0", old="sum(iterations)\n", new="sum(iterations) + 1\n"),
    ),
    debrief="Both ends come from one formula, and the end of a share is the beginning of the next one. So rounding "
    "loses no row, and gives none to two blocks. Step fused_pre_post computes it so, with the number of iterations "
    "before a block as a formula in place of a sum.",
)
