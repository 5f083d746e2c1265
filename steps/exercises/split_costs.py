"""How the division of the scores among warps decides what each must get from the others, and from shared memory."""

from tutorial_lib.exercises import Plain, Wrong

HEAD_DIM = 64


def right(queries: int, keys: int, rows: int, columns: int) -> tuple[int, int]:
    """By Triton's layouts: weights that a warp needs and does not hold, and rows of K that it reads."""
    from triton.experimental.gluon import language as gl

    from tutorial_lib.layouts import held_by

    scores = gl.NVMMADistributedLayout([2, 0], [rows, columns], [16, 8])
    held = held_by(scores, (queries, keys))[0]
    needed = held_by(gl.DotOperandLayout(0, scores, 2), (queries, keys))[0]
    read = held_by(gl.DotOperandLayout(1, scores, 2), (HEAD_DIM, keys))[0]
    return int((needed & ~held).sum()), int(read.any(axis=0).sum())


def judge(function, chance):
    cases = [(64, 64, 4, 1), (64, 64, 1, 4), (64, 64, 2, 2), (128, 64, 2, 4), (64, 128, 2, 2), (128, 64, 8, 1)]
    chance.shuffle(cases)
    for case in cases:
        queries, keys, rows, columns = case
        mine, (missing, read) = function(*case), right(*case)
        if not isinstance(mine, tuple) or len(mine) != 2:
            return f"It must return two numbers, missing and read; yours returns {mine!r}."
        which = f"With {queries} queries, {keys} keys, and warps {rows} x {columns} (queries x keys):"
        if mine[0] != missing:
            needs = queries // rows * keys
            return (
                f"{which} a warp holds {needs - missing} weights. For its rows of the output it needs {needs}, so "
                f"{missing} "
                f"are missing; yours says {mine[0]}."
            )
        if mine[1] != read:
            return f"{which} a warp reads {read} keys from shared memory; yours says {mine[1]}."
    return None


EXERCISE = Plain(
    name="split_costs",
    function="costs",
    by=judge,
    hints=(
        "Each warp computes queries / rows rows of the output. A row of the output is a sum over all keys. How many "
        "weights "
        "are that?",
        "It holds the weights that it has computed itself: its rows, and only its share of the keys. To compute "
        "them, it "
        "read that share of the keys.",
        "needed = queries // rows * keys; held = queries // rows * (keys // columns); read = keys // columns.",
    ),
    solution="""
def costs(queries, keys, rows, columns):
    own_rows = queries // rows
    read = keys // columns
    missing = own_rows * keys - own_rows * read
    return missing, read
""",
    wrong=(
        Wrong(
            "every warp needs the weights of all rows",
            "For its rows of the output",
            old="own_rows * keys - own_rows * read",
            new="queries * keys - own_rows * read",
        ),
        Wrong(
            "rows and columns swapped",
            "For its rows of the output",
            source="""
def costs(queries, keys, rows, columns):
    own_rows = queries // columns
    read = keys // rows
    return own_rows * keys - own_rows * read, read
""",
        ),
        Wrong(
            "every warp reads all keys",
            "keys from shared memory",
            old="return missing, read",
            new="return missing, keys",
        ),
        Wrong("what is held is not taken off", "are missing", old=" - own_rows * read", new=""),
    ),
    debrief="One column of warps: nothing is missing, and every warp reads all keys. Four columns: each reads a "
    "quarter, and "
    "three quarters of the weights must come from other warps. Split-Q chooses the reading.",
)
