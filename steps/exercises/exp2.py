"""Powers of two: the scale absorbs the change of base."""

from steps.core.tiles import Tile
from steps.exercises.in_cutile import InCuTile
from tutorial_lib.exercises import Wrong

EXERCISE = InCuTile(
    name="exp2",
    step="exp2",
    function="softmax_exp2",
    kinds=({"causal": True, "heads": 1}, {"dtype": "bfloat16", "kv_heads": 1}),
    lengths=(150, 300),
    tile=Tile(64, 32),  # some rows see no key of a tile that others see
    hints=(
        "e^x is 2^(x / ln 2). The exponent is scores * scale minus a maximum. Which of its factors can take 1 / ln 2 "
        "along, so that no score is multiplied twice?",
        "Multiply scale by INVERSE_LN2 first. With that scale everything is in units of powers of two: the exponents "
        "of weights, the maximum, and the exponent of correction. The order of work is that of softmax_exp.",
        "The new maximum is that of row_max and of ct.max(scores, axis=1, keepdims=True) * scale. weights are "
        "ct.exp2(scores * scale - new_max, flush_to_zero=True), and correction is the same of row_max - new_max.",
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
        Wrong(
            "the base changes and the scale does not, so that e is taken for 2",
            "e is taken for 2",
            old="scale = scale * INVERSE_LN2",
            new="scale = scale * 1.0",
        ),
        Wrong(
            "the scale is multiplied by ln 2, and not by 1 / ln 2",
            "not by 1 / ln 2",
            old="* INVERSE_LN2",
            new="/ INVERSE_LN2",
        ),
        Wrong(
            "the weights are powers of 2, and the correction is still a power of e",
            "correction is still a power of e",
            old="ct.exp2(row_max - new_max, flush_to_zero=True)",
            new="ct.exp(row_max - new_max)",
        ),
        Wrong(
            "the maximum is that of scores without the scale, so that weights are far below 1 and vanish in 16 bits",
            "scores without the scale",
            old="keepdims=True) * scale)",
            new="keepdims=True))",
        ),
        Wrong(
            "the maximum is not subtracted",
            "the maximum is not subtracted",
            old="scores * scale - new_max",
            new="scores * scale",
        ),
        Wrong(
            "the maximum is that of this tile alone, which is minus infinity for a row that sees no key of it",
            "that of this tile alone",
            old="ct.maximum(row_max, ct.max(scores, axis=1, keepdims=True) * scale)",
            new="ct.max(scores, axis=1, keepdims=True) * scale",
        ),
        Wrong(
            "the correction is the wrong way round",
            "wrong way round",
            old="row_max - new_max",
            new="new_max - row_max",
        ),
    ),
    debrief="The factor 1 / ln 2 costs nothing: the scale, which every score is multiplied by anyway, takes it along. "
    "Subtracting the maximum then makes one fused multiply-add of both.",
)
