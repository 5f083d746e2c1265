"""Step 16, on the fork of step 13: the exponentials of half a tile under the PV product of the other half.

A PV product needs all its weights before it can begin. With the weights in two halves of the keys there are two
products of half the size, and the first begins when half of the exponentials are done; the rest are taken while it
runs. The maximum is of the whole tile, so nothing else is computed twice. The compiler keeps this order.
"""

import cuda.tile as ct

from steps.core.problems import standard
from steps.cutile import step15_found
from steps.cutile.step03_exp2 import INVERSE_LN2


def softmax_in_halves(scores, row_max, scale):
    """As step 3's, with the weights in two halves of the keys, [query, key / 2] each."""
    scale = scale * INVERSE_LN2
    new_max = ct.maximum(row_max, ct.max(scores, axis=1, keepdims=True) * scale)
    half = (scores.shape[0], scores.shape[1] // 2)
    left = ct.exp2(ct.extract(scores, (0, 0), half) * scale - new_max, flush_to_zero=True)
    right = ct.exp2(ct.extract(scores, (0, 1), half) * scale - new_max, flush_to_zero=True)
    correction = ct.exp2(row_max - new_max, flush_to_zero=True)
    return (left, right), correction, new_max


STEP = step15_found.STEP.evolve(
    number=16,
    name="halves",
    title="Half a tile under the other",
    change="The weights come in two halves, and the PV product of one runs under the exponentials of the other.",
    default_problem=standard(16384),
    softmax=softmax_in_halves,
)
