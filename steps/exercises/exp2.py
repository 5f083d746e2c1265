"""Powers of two: the scale absorbs the change of base."""

from steps.exercises.in_kernel import InKernel
from tutorial_lib.exercises import Wrong

EXERCISE = InKernel(
    name="exp2",
    step="exp2",
    function="softmax_exp2",
    hints=(
        "e^x is 2^(x / ln 2). Which of the three results hold an e, and which hold scores?",
        "Multiply the scale by INVERSE_LN2 first. Then every power of e becomes a power of two of the same expression.",
        "The new maximum is that of row_max and of the scores' own maximum times the new scale; both exponentials "
        "subtract it.",
    ),
    solution="""
def softmax_exp2(scores, row_max, scale):
    scale = scale * INVERSE_LN2
    new_max = ct.maximum(row_max, ct.max(scores, axis=1, keepdims=True) * scale)
    weights = ct.exp2(scores * scale - new_max, flush_to_zero=True)
    correction = ct.exp2(row_max - new_max, flush_to_zero=True)
    return weights, correction, new_max
""",
    wrong=(
        Wrong("the base is not changed", "wrong number", old="scale = scale * INVERSE_LN2", new="pass"),
        Wrong("multiplied by ln 2", "wrong number", old="* INVERSE_LN2", new="/ INVERSE_LN2"),
        Wrong("the maximum is not subtracted", "NaN", old="scores * scale - new_max", new="scores * scale * 9"),
    ),
    debrief="The factor 1 / ln 2 costs nothing: it is multiplied into the scale, which a row has anyway.",
)
