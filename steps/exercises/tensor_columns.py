"""Where scores, weights and outputs of two parts lie in the 512 columns of tensor memory: step warp_roles."""

from tutorial_lib.architectures import TENSOR_COLUMNS
from tutorial_lib.exercises import Plain, Wrong

KEYS, PARTS = 128, 2  # of a tile
HEAD_DIMS = (128, 64, 32)


def judge(function, chance):
    for head_dim in HEAD_DIMS:
        found = {}
        needed = {"scores": KEYS, "weights": KEYS // 2, "output": head_dim}
        for part in range(PARTS):
            for what, count in needed.items():
                asked = f'columns("{what}", {part}, {head_dim})'
                place = function(what, part, head_dim)
                if not (isinstance(place, tuple) and len(place) == 2 and all(isinstance(n, int) for n in place)):
                    return f"`{asked}` must be two whole numbers, (first column, columns), and yours gives {place!r}."
                if place[1] != count:
                    return (
                        f"`{asked}` says {place[1]} columns, and {count} are needed. A lane has a query, and a column "
                        "has 32 bits in every lane: one number of float32, or two of 16 bits."
                    )
                if place[0] < 0 or sum(place) > TENSOR_COLUMNS:
                    return (
                        f"`{asked}` is columns {place[0]} to {sum(place) - 1}, and tensor memory has columns 0 to "
                        f"{TENSOR_COLUMNS - 1}."
                    )
                found[what, part] = place
        if wrong := _overlaps(found, head_dim):
            return wrong
    return None


def _overlaps(found: dict, head_dim: int) -> str | None:
    for (what, part), (first, count) in found.items():
        for (other, of), (begin, length) in found.items():
            if (what, part) >= (other, of) or first >= begin + length or begin >= first + count:
                continue
            if part == of and {what, other} == {"scores", "weights"}:
                if found["scores", part][0] != found["weights", part][0]:
                    return (
                        f"At head_dim {head_dim} the weights of part {part} begin at column "
                        f"{found['weights', part][0]}, in the middle of its scores. In this kernel they take the first "
                        "half of the scores' columns."
                    )
                continue
            return (
                f"At head_dim {head_dim} the {what} of part {part} and the {other} of part {of} share columns "
                f"{max(first, begin)} to {min(first + count, begin + length) - 1}. Both are needed at the same time. "
                "Only a part's weights may lie where its own scores were."
            )
    apart = [part for part in range(PARTS) if found["scores", part][0] != found["weights", part][0]]
    if apart:
        return (
            f"At head_dim {head_dim} the weights of part {apart[0]} lie apart from its scores. There is room for that "
            "here, and none at head_dim 128: let them lie where the scores were."
        )
    return None


EXERCISE = Plain(
    name="tensor_columns",
    function="columns",
    by=judge,
    hints=(
        "First count: scores are 128 numbers of float32 a query, weights 128 numbers of 16 bits, an output head_dim "
        "numbers of float32. A column holds 32 bits a query.",
        "Put the scores of part 0 at column 0 and those of part 1 after them. The outputs come after both. A "
        "part's weights begin where its scores begin.",
        "Scores: (128 * part, 128). Weights: (128 * part, 64). The outputs begin at column 256: that of part 1 lies "
        "head_dim columns after that of part 0.",
    ),
    solution="""
def columns(what, part, head_dim):
    if what == "scores":
        return 128 * part, 128
    if what == "weights":
        return 128 * part, 64
    return 256 + head_dim * part, head_dim
""",
    wrong=(
        Wrong(
            "weights in columns of their own",
            "and tensor memory has columns 0 to 511",
            source="""
def columns(what, part, head_dim):
    first = part * (128 + 64 + head_dim)
    if what == "scores":
        return first, 128
    if what == "weights":
        return first + 128, 64
    return first + 192, head_dim
""",
        ),
        Wrong("a column for each weight", "two of 16 bits", old="part, 64", new="part, 128"),
        Wrong(
            "weights over the output", "Only a part's weights may lie", old="128 * part, 64", new="256 + 64 * part, 64"
        ),
        Wrong(
            "the other part's scores", "Only a part's weights may lie", old="128 * part, 64", new="128 - 128 * part, 64"
        ),
        Wrong(
            "the second half of the scores",
            "in the middle of its scores",
            old="128 * part, 64",
            new="128 * part + 64, 64",
        ),
        Wrong("both outputs in one place", "share columns 256 to", old="256 + head_dim * part", new="256"),
        Wrong("the output behind one part", "share columns", old="256 + head_dim * part", new="128 + head_dim * part"),
        Wrong(
            "apart where there is room",
            "lie apart from its scores",
            source="""
def columns(what, part, head_dim):
    if what == "scores":
        return 128 * part, 128
    if what == "weights":
        return (128 * part if head_dim == 128 else 384 + 64 * part), 64
    return 256 + head_dim * part, head_dim
""",
        ),
    ),
    debrief="At head_dim 128 not one column is left. So the weights lie where the scores were, and the next "
    "scores must wait until the PV product has read the weights.",
)
