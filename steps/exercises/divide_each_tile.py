"""The division moved into the loop: an output that is normalised after every tile of keys."""

from steps.exercises.in_cutile import InCuTile
from tutorial_lib.exercises import Wrong

# What the kernel does with a tile of keys behind the QK product, and what its end divides by: nothing.
ABSORB = """
def absorb(scores, V, batch, kv_head, j, row_max, row_sum, accumulator, scale):
    weights, correction, row_max = softmax_exp2(scores, row_max, scale)
    v = load_value(V, batch, kv_head, j)
    row_sum, accumulator = normalised_update(weights, correction, v, row_sum, accumulator)
    return row_max, row_sum, accumulator
"""
NO_DIVISION = "def divide_approximately(accumulator, row_sum):\n    return accumulator\n"

EXERCISE = InCuTile(
    name="divide_each_tile",
    step="approx_division",
    function="normalised_update",
    replaces="",
    kinds=({"causal": True, "heads": 1}, {"dtype": "bfloat16", "kv_heads": 1}),
    lengths=(150, 300),
    functions={"absorb": ABSORB, "divide_approximately": NO_DIVISION},
    hints=(
        "output came back from the turn before, divided by the sum of that time. What must it be multiplied by, before "
        "weights that nobody has divided can be added to it?",
        "By row_sum, which undoes the division, and by correction, which moves it to the new maximum. Then add the "
        "product, and divide by the new sum.",
        "new_sum = row_sum * correction + ct.sum(weights, axis=1, keepdims=True). The product is ct.mma(ct.astype("
        "weights, v.dtype), v, output * (row_sum * correction)), and what comes back is new_sum and the product / "
        "new_sum.",
    ),
    solution="""
def normalised_update(weights, correction, v, row_sum, output):
    old_sum = row_sum * correction
    new_sum = old_sum + ct.sum(weights, axis=1, keepdims=True)
    output = ct.mma(ct.astype(weights, v.dtype), v, output * old_sum)
    return new_sum, output / new_sum
""",
    wrong=(
        Wrong(
            "the old output is not multiplied by the old sum, so that its division is not undone",
            "its division is not undone",
            old="output * old_sum",
            new="output * correction",
        ),
        Wrong(
            "the old output is not multiplied by the correction",
            "comes out when the old output is not multiplied by the correction",
            old="output * old_sum",
            new="output * row_sum",
        ),
        Wrong("nothing divides the output", "nothing divides the output", old="output / new_sum", new="output"),
        Wrong(
            "the output is divided by the sum of this tile alone",
            "sum of this tile alone",
            old="output / new_sum",
            new="output / ct.sum(weights, axis=1, keepdims=True)",
        ),
        Wrong(
            "the old output is multiplied by the new sum",
            "multiplied by the new sum",
            old="output * old_sum",
            new="output * new_sum",
        ),
        Wrong(
            "the sum that is returned is still the old one",
            "still the old one",
            old="return new_sum,",
            new="return old_sum,",
        ),
    ),
    debrief="The division may stand in the loop, if each turn undoes the one before. It then runs once for every tile, "
    "and so does the multiplication that undoes it. The first FlashAttention did that; the second divides once, at the "
    "end, as this kernel does.",
)
