"""The weights of a tile in two halves of the keys, with one maximum for both."""

from steps.exercises.in_cutile import InCuTile
from tutorial_lib.exercises import Wrong

EXERCISE = InCuTile(
    name="halves",
    step="halves",
    function="softmax_in_halves",
    kinds=({"causal": True}, {"heads": 1, "scale": 4.0}),
    lengths=(130, 200),
    hints=(
        "`ct.extract(scores, (0, n), shape)` gives the n-th tile of that shape along the keys. The index counts tiles, "
        "not columns.",
        "The maximum is taken of the whole tile, before it is cut. Both halves subtract it, and the correction is one.",
        "half = (scores.shape[0], scores.shape[1] // 2); left = ct.exp2(ct.extract(scores, (0, 0), half) * scale - "
        "new_max, flush_to_zero=True), and right with (0, 1).",
    ),
    solution="""
def softmax_in_halves(scores, row_max, scale):
    scale = scale * INVERSE_LN2
    new_max = ct.maximum(row_max, ct.max(scores, axis=1, keepdims=True) * scale)
    half = (scores.shape[0], scores.shape[1] // 2)
    left = ct.exp2(ct.extract(scores, (0, 0), half) * scale - new_max, flush_to_zero=True)
    right = ct.exp2(ct.extract(scores, (0, 1), half) * scale - new_max, flush_to_zero=True)
    correction = ct.exp2(row_max - new_max, flush_to_zero=True)
    return (left, right), correction, new_max
""",
    wrong=(
        Wrong(
            "both weights are of the left half",
            "wrong number",
            old="ct.extract(scores, (0, 1), half)",
            new="ct.extract(scores, (0, 0), half)",
        ),
        Wrong(
            "each half subtracts a maximum of its own",
            "wrong number",
            old="    right = ct.exp2(ct.extract(scores, (0, 1), half) * scale - new_max, flush_to_zero=True)",
            new="""    other = ct.max(ct.extract(scores, (0, 1), half), axis=1, keepdims=True) * scale
    right = ct.exp2(ct.extract(scores, (0, 1), half) * scale - other, flush_to_zero=True)""",
        ),
        Wrong(
            "the maximum is of the left half only",
            "left half only",
            old="ct.max(scores, axis=1, keepdims=True)",
            new="ct.max(ct.extract(scores, (0, 0), (scores.shape[0], 64)), axis=1, keepdims=True)",
        ),
        Wrong(
            "the index of `ct.extract` counts columns, not tiles",
            "out of bounds",
            old="ct.extract(scores, (0, 1), half)",
            new="ct.extract(scores, (0, half[1]), half)",
        ),
        Wrong(
            "nothing is corrected when a new maximum comes",
            "wrong number",
            old="ct.exp2(row_max - new_max, flush_to_zero=True)",
            new="ct.exp2((new_max - new_max), flush_to_zero=True)",
        ),
        Wrong("the right half is given first", "wrong number", old="(left, right)", new="(right, left)"),
    ),
    debrief="With the maximum of the whole tile nothing is computed twice: two halves have the exponentials of one "
    "tile. What is new is that the first product needs only half of them.",
)
