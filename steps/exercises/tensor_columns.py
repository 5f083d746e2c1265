"""Where scores, weights and outputs of two warpgroups lie in the 512 columns of tensor memory: step warp_roles."""

from tutorial_lib.architectures import TENSOR_COLUMNS
from tutorial_lib.exercises import Plain, Wrong

KEYS, WARPGROUPS = 128, 2  # of a tile, and that compute a softmax
HEAD_DIMS = (128, 64, 32)


def judge(function, chance):
    for head_dim in HEAD_DIMS:
        found = {}
        needed = {"scores": KEYS, "weights": KEYS // 2, "output": head_dim}
        for warpgroup in range(WARPGROUPS):
            for what, count in needed.items():
                asked = f'columns("{what}", {warpgroup}, {head_dim})'
                given = function(what, warpgroup, head_dim)
                if not (isinstance(given, tuple) and len(given) == 2 and all(isinstance(n, int) for n in given)):
                    return f"`{asked}` must be two whole numbers, (first column, columns), and yours gives {given!r}."
                if given[1] != count:
                    return (
                        f"`{asked}` says {given[1]} columns, and {count} are needed. A lane has a query, and a column "
                        "has 32 bits in every lane: one number of float32, or two of 16 bits."
                    )
                if given[0] < 0 or sum(given) > TENSOR_COLUMNS:
                    return (
                        f"`{asked}` is columns {given[0]} to {sum(given) - 1}, and tensor memory has columns 0 to "
                        f"{TENSOR_COLUMNS - 1}."
                    )
                found[what, warpgroup] = given
        if wrong := _overlaps(found, head_dim):
            return wrong
    return None


def _overlaps(found: dict, head_dim: int) -> str | None:
    for (what, warpgroup), (first, count) in found.items():
        for (other, of), (begin, length) in found.items():
            if (what, warpgroup) >= (other, of) or first >= begin + length or begin >= first + count:
                continue
            if warpgroup == of and {what, other} == {"scores", "weights"}:
                if found["scores", warpgroup][0] != found["weights", warpgroup][0]:
                    return (
                        f"At head_dim {head_dim} the weights of warpgroup {warpgroup} begin at column "
                        f"{found['weights', warpgroup][0]}, in the middle of its scores. In this kernel they take the "
                        "first half of the scores' columns."
                    )
                continue
            return (
                f"At head_dim {head_dim} the {what} of warpgroup {warpgroup} and the {other} of warpgroup {of} share "
                f"columns {max(first, begin)} to {min(first + count, begin + length) - 1}. Both are needed at the "
                "same time. Only a warpgroup's weights may lie where its own scores were."
            )
    apart = [
        warpgroup for warpgroup in range(WARPGROUPS) if found["scores", warpgroup][0] != found["weights", warpgroup][0]
    ]
    if apart:
        return (
            f"At head_dim {head_dim} the weights of warpgroup {apart[0]} lie apart from its scores. There is room for "
            "that here, and none at head_dim 128: let them lie where the scores were."
        )
    return None


EXERCISE = Plain(
    name="tensor_columns",
    function="columns",
    by=judge,
    hints=(
        "First count: scores are 128 numbers of float32 a query, weights 128 numbers of 16 bits, an output head_dim "
        "numbers of float32. A column holds 32 bits a query.",
        "Put the scores of warpgroup 0 at column 0 and those of warpgroup 1 after them. The outputs come after both. A "
        "warpgroup's weights begin where its scores begin.",
        "Scores: (128 * warpgroup, 128). Weights: (128 * warpgroup, 64). The outputs begin at column 256: that of "
        "warpgroup 1 lies head_dim columns after that of warpgroup 0.",
    ),
    solution="""
def columns(what, warpgroup, head_dim):
    if what == "scores":
        return 128 * warpgroup, 128
    if what == "weights":
        return 128 * warpgroup, 64
    return 256 + head_dim * warpgroup, head_dim
""",
    wrong=(
        Wrong(
            "weights in columns of their own",
            "and tensor memory has columns 0 to 511",
            source="""
def columns(what, warpgroup, head_dim):
    first = warpgroup * (128 + 64 + head_dim)
    if what == "scores":
        return first, 128
    if what == "weights":
        return first + 128, 64
    return first + 192, head_dim
""",
        ),
        Wrong("a column for each weight", "two of 16 bits", old="warpgroup, 64", new="warpgroup, 128"),
        Wrong(
            "weights over the output",
            "Only a warpgroup's weights may lie",
            old="128 * warpgroup, 64",
            new="256 + 64 * warpgroup, 64",
        ),
        Wrong(
            "the second half of the scores",
            "in the middle of its scores",
            old="128 * warpgroup, 64",
            new="128 * warpgroup + 64, 64",
        ),
        Wrong("both outputs in one place", "share columns 256 to", old="256 + head_dim * warpgroup", new="256"),
        Wrong(
            "the output behind one warpgroup",
            "share columns",
            old="256 + head_dim * warpgroup",
            new="128 + head_dim * warpgroup",
        ),
        Wrong(
            "apart where there is room",
            "lie apart from its scores",
            old="128 * warpgroup, 64",
            new="(128 * warpgroup if head_dim == 128 else 384 + 64 * warpgroup), 64",
        ),
    ),
    debrief="At head_dim 128 not one column is left. So the weights lie where the scores were, and the next "
    "scores must wait until the PV product has read the weights.",
)
