"""Step 3: powers of two instead of powers of e.

The hardware has one instruction for an exponential, MUFU.EX2, and it computes 2^x. ``exp`` is a small program around
it: to lose no place, and to be right for subnormal numbers, it multiplies by 1 / ln 2 in two pieces, splits off the
whole number, and puts that into the result's exponent. Folding 1 / ln 2 into the scale makes ``exp2`` of it, and
applying the scale where the maximum is subtracted makes one fused multiply-add of both; flushing subnormals to zero
leaves MUFU.EX2 alone. A weight below 2^-126 beside a row maximum of 1 adds nothing to a sum in float32, so nothing is
lost.
"""

import math

import cuda.tile as ct

from steps.cutile import step002_mma

INVERSE_LN2 = 1 / math.log(2)


def softmax_exp2(scores, row_max, scale):
    """As step 2's softmax, in base 2: weights [query, key], correction [query, 1], new maximum (over ln 2)."""
    scale = scale * INVERSE_LN2  # of a whole row: the maximum can be taken before scaling, because scale > 0
    new_max = ct.maximum(row_max, ct.max(scores, axis=1, keepdims=True) * scale)
    weights = ct.exp2(scores * scale - new_max, flush_to_zero=True)
    correction = ct.exp2(row_max - new_max, flush_to_zero=True)
    return weights, correction, new_max


STEP = step002_mma.STEP.evolve(
    number=3,
    name="exp2",
    title="exp2, flush to zero",
    change="Exponentials in base 2 with subnormals flushed, and 1/ln 2 folded into the scale.",
    softmax=softmax_exp2,
)
