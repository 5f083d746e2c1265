"""What each of two CTAs holds of every tile when both compute one product: step two_cta_mma."""

from tutorial_lib.exercises import Plain, Wrong

QUERIES, KEYS = 256, 128  # of a cluster's tile
HEAD_DIMS = (128, 64)
HALVED = {"queries": 0, "keys": 0, "values": 1, "scores": 0, "output": 0}  # along which axis
WHY = {
    "queries": "A CTA computes the scores of its own 128 queries, and needs all of their numbers.",
    "keys": "The product takes the keys transposed, as [head_dim, keys]. Of a second factor each CTA holds half of the "
    "columns, and these are keys.",
    "values": "Of a second factor each CTA holds half of the columns. Values are taken as they are, so these are "
    "columns of the output.",
    "scores": "A tile of tensor memory has the rows of its own CTA, so that no row's maximum needs the other one.",
    "output": "The output has the rows of the weights that it is computed from, in the tensor memory of their CTA.",
}


def shape_of(what: str, head_dim: int) -> tuple[int, int]:
    """Rows and columns of a cluster's tile."""
    rows = KEYS if what in ("keys", "values") else QUERIES
    return rows, KEYS if what == "scores" else head_dim


def judge(function, chance):
    for head_dim in HEAD_DIMS:
        for what, axis in HALVED.items():
            shape = shape_of(what, head_dim)
            held = []
            for cta in (0, 1):
                asked = f'held("{what}", {cta}, {head_dim})'
                found = function(what, cta, head_dim)
                if not _is_box(found):
                    return (
                        f"`{asked}` must be two pairs of whole numbers, (first row, rows) and (first column, columns), "
                        f"and yours gives {found!r}."
                    )
                if any(first < 0 or count < 1 or first + count > of for (first, count), of in zip(found, shape)):
                    return f"`{asked}` is {found}, and the tile has {shape[0]} rows and {shape[1]} columns."
                held.append(found)
            tile = f"The {what} [{shape[0]}, {shape[1]}]"
            if held[0] == held[1]:
                return f"{tile} are the same part in both CTAs, {held[0]}: nobody holds the rest."
            rows, columns = (_common(*axis_of) for axis_of in zip(*held))
            if rows and columns:
                return f"{tile}: both CTAs hold {rows * columns} of the same numbers. Each number has one place."
            if sum(count[1] * width[1] for count, width in held) < shape[0] * shape[1]:
                return f"{tile}: there are numbers that neither CTA holds."
            if held[0][1 - axis][1] != shape[1 - axis]:
                return f"{tile} are halved along their {('rows', 'columns')[1 - axis]}. {WHY[what]}"
            if held[0][axis] != (0, shape[axis] // 2):
                return f"{tile}: CTA 0 has the first half, and CTA 1 the second. Yours are {held[0]} and {held[1]}."
    return None


def _is_box(found) -> bool:
    return (
        isinstance(found, tuple)
        and len(found) == 2
        and all(isinstance(pair, tuple) and len(pair) == 2 for pair in found)
        and all(isinstance(n, int) for pair in found for n in pair)
    )


def _common(one: tuple[int, int], other: tuple[int, int]) -> int:
    """How many rows, or columns, both have."""
    return max(0, min(sum(one), sum(other)) - max(one[0], other[0]))


EXERCISE = Plain(
    name="halves_held",
    function="held",
    by=judge,
    hints=(
        "Which rows of the output does a CTA compute? Everything with a row a query follows from that. Then look at "
        "the second factor of either product: half of its columns is in each CTA.",
        "The second factor of QK is the tile of keys transposed: its columns are keys. The second factor of PV is the "
        "tile of values: its columns are those of the output.",
        'Halve rows everywhere but in "values", where columns are halved: CTA 0 has (0, head_dim // 2) of them.',
    ),
    solution="""
def held(what, cta, head_dim):
    rows = 128 if what in ("keys", "values") else 256
    columns = 128 if what == "scores" else head_dim
    if what == "values":
        return (0, rows), (cta * columns // 2, columns // 2)
    return (cta * rows // 2, rows // 2), (0, columns)
""",
    wrong=(
        Wrong("values halved by keys", "are halved along their rows", old='if what == "values":', new="if False:"),
        Wrong(
            "keys halved by columns",
            "these are keys",
            old='if what == "values":',
            new='if what in ("keys", "values"):',
        ),
        Wrong(
            "scores halved by keys",
            "no row's maximum needs",
            old='if what == "values":',
            new='if what in ("scores", "values"):',
        ),
        Wrong("the same half for both", "nobody holds the rest", old="(cta * rows // 2, rows", new="(0, rows"),
        Wrong(
            "whole tiles of keys and values, as with multicast",
            "nobody holds the rest",
            source="""
def held(what, cta, head_dim):
    if what in ("keys", "values"):
        return (0, 128), (0, head_dim)
    return (128 * cta, 128), (0, 128 if what == "scores" else head_dim)
""",
        ),
        Wrong("too much in the second", "and the tile has", old="rows // 2), (0, columns)", new="rows), (0, columns)"),
        Wrong("a quarter", "neither CTA holds", old="rows // 2), (0, columns)", new="rows // 4), (0, columns)"),
        Wrong("turned round", "CTA 0 has the first half", old="(cta * rows // 2", new="((1 - cta) * rows // 2"),
    ),
    debrief="A CTA reads half of a second factor from its own shared memory and half from the other's. So it has room "
    "for twice as many tiles of keys and values, and TMA brings it half as many bytes.",
)
