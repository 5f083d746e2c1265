"""What each of two CTAs holds of every tile when both compute one product: step two_cta_mma."""

from itertools import product

from tutorial_lib.exercises import Compared, Wrong

WHY = {
    "queries": "A CTA computes the scores of its own 128 queries, and needs all of their numbers.",
    "keys": "The product takes the keys transposed, as [head_dim, keys]. Of a second factor each CTA holds half of the "
    "columns, and these are keys.",
    "values": "Of a second factor each CTA holds half of the columns. Values are taken as they are, so these are "
    "columns of the output.",
    "scores": "A tile of tensor memory has the rows of its own CTA, so that no row's maximum needs the other one.",
    "output": "The output has the rows of the weights that it is computed from, in the tensor memory of their CTA.",
}


EXERCISE = Compared(
    name="halves_held",
    function="held",
    cases=lambda chance: [(what, cta, head_dim) for head_dim, what, cta in product((128, 64), WHY, (0, 1))],
    told=lambda what, cta, head_dim: f"That is (first row, rows), (first column, columns). {WHY[what]}",
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
        Wrong("values are halved along their rows, which are keys", old='if what == "values":', new="if False:"),
        Wrong(
            "keys are halved along their columns, too",
            old='if what == "values":',
            new='if what in ("keys", "values"):',
        ),
        Wrong(
            "scores are halved along their columns, too",
            old='if what == "values":',
            new='if what in ("scores", "values"):',
        ),
        Wrong("both CTAs hold the same half, and nobody the rest", old="(cta * rows // 2, rows", new="(0, rows"),
        Wrong(
            "both CTAs hold whole tiles of keys and values, as with multicast",
            source="""
def held(what, cta, head_dim):
    if what in ("keys", "values"):
        return (0, 128), (0, head_dim)
    return (128 * cta, 128), (0, 128 if what == "scores" else head_dim)
""",
        ),
        Wrong("CTA 1 has more rows than there are", old="rows // 2), (0, columns)", new="rows), (0, columns)"),
        Wrong(
            "there are numbers that neither CTA holds", old="rows // 2), (0, columns)", new="rows // 4), (0, columns)"
        ),
        Wrong("CTA 0 has the second half", old="(cta * rows // 2", new="((1 - cta) * rows // 2"),
    ),
    debrief="A CTA reads half of a second factor from its own shared memory and half from the other's. So it has room "
    "for twice as many tiles of keys and values, and TMA brings it half as many bytes.",
)
