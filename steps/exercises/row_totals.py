"""A first cuTile kernel: every block owns four rows, and walks over their columns."""

import random

import torch

from tutorial_lib import interpreter
from tutorial_lib.exercises import Plain, Wrong

ROWS, COLUMNS = 4, 8  # of a tile


def judge(function, chance: random.Random) -> str | None:
    """Totals of random matrices, whose last tiles stick out, beside what torch gives."""
    import cuda.tile as ct

    kernel = type(function)(function.__code__, function.__globals__ | {"ct": ct}, function.__name__)
    for rows, columns in ((4, 8), (chance.randint(5, 15), 8 * chance.randint(2, 4)), (7, 8 * chance.randint(1, 3) + 3)):
        x = torch.tensor([[chance.uniform(-1, 1) for _ in range(columns)] for _ in range(rows)])
        found = torch.full((rows, 1), float("nan"))
        interpreter.launch((-(-rows // ROWS),), kernel, (x, found))
        right = x.sum(1, keepdim=True)
        wrong = [row for row in range(rows) if not abs(found[row, 0] - right[row, 0]) <= 1e-4]
        if wrong:
            row = wrong[0]
            what = f"The total of row {row} of {rows}, over {columns} columns, is {right[row, 0]:.4g}"
            if torch.isnan(found[row, 0]):
                return f"{what}, and nobody wrote it, or it was summed with what lies outside of the array."
            return f"{what}, and yours is {found[row, 0]:.4g}.{_known(x[row], float(found[row, 0]))}"
    return None


def _known(row: torch.Tensor, mine: float) -> str:
    """Which mistake gives this total, as far as one is known."""
    whole = len(row) // COLUMNS * COLUMNS
    last = row[(len(row) - 1) // COLUMNS * COLUMNS :]
    for total, why in (
        (
            row[:COLUMNS].sum() * -(-len(row) // COLUMNS),
            "That is the first tile, in every iteration: whose index is it?",
        ),
        (last.sum(), "That is the last tile alone: is it added to the total so far?"),
        (row[:whole].sum(), "That leaves out the columns of the last tile, which is not full."),
    ):
        if abs(mine - float(total)) <= 1e-4:
            return f" {why}"
    return ""


EXERCISE = Plain(
    name="row_totals",
    function="row_totals",
    by=judge,
    hints=(
        "The index of a load counts tiles. Which tile of rows belongs to this block? Which tile of columns belongs to "
        "this iteration?",
        "The last tile of columns may reach beyond the array: ct.cdiv counts it, and padding with zeros adds nothing.",
        "ct.sum(x, axis=1, keepdims=True) is [4, 1], like the total: add it to the total in every iteration.",
    ),
    solution="""
def row_totals(X, Out):
    i = ct.bid(0)
    total = ct.zeros((4, 1), ct.float32)
    for j in range(ct.cdiv(X.shape[1], 8)):
        x = ct.load(X, (i, j), (4, 8), padding_mode=ct.PaddingMode.ZERO)
        total = total + ct.sum(x, axis=1, keepdims=True)
    ct.store(Out, (i, 0), total)
""",
    wrong=(
        Wrong(
            "the same tile in every iteration",
            "first tile, in every iteration",
            old="(i, j), (4, 8)",
            new="(i, 0), (4, 8)",
        ),
        Wrong(
            "the index counts elements",
            "lies entirely outside the array",
            old="(i, j), (4, 8)",
            new="(4 * i, 8 * j), (4, 8)",
        ),
        Wrong("last tile left out", "leaves out the columns", old="ct.cdiv(X.shape[1], 8)", new="X.shape[1] // 8"),
        Wrong("the last tile alone", "last tile alone", old="total = total + ct.sum", new="total = ct.sum"),
        Wrong("all blocks store to the first place", "The total of row 0", old="Out, (i, 0)", new="Out, (0, 0)"),
        Wrong("nothing is padded", "outside of the array", old=", padding_mode=ct.PaddingMode.ZERO", new=""),
        Wrong("axes swapped", "The total of row", old="axis=1, keepdims=True", new="axis=0, keepdims=True"),
    ),
    debrief="The number of the block and the iteration choose a tile. Padding and `ct.store` take care of its elements "
    "outside the array.",
)
