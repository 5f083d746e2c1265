"""Step 15, on the fork of step cluster: tile, warps and cluster as a search found them.

What steps eight_warps and cluster tried by hand at head_dim 128 has another answer at 64 and at 256. ``python -m
steps.search`` times every combination with ``cuda.tile.tune``. The launch rules (``steps/core/rules.toml``, table
``searched``) hold the fastest for an architecture and head_dim. Where they hold none, the step is the one before.
"""

import cuda.tile as ct

from steps.core.problems import standard
from steps.cutile import step14_sections
from steps.cutile.step03_exp2 import INVERSE_LN2

STEP = step14_sections.STEP.evolve(
    number=15,
    name="found",
    title="Found by a search",
    change="Tile, warps, cluster and blocks an SM are those that a recorded search found fastest.",
    default_problem=standard(head_dim=256),
    searched=True,
)


def softmax_in_halves(scores, row_max, scale):
    """As step 3's, with the weights in two halves of the keys, [query, key / 2] each.

    A PV product needs all its weights before it can begin. Of two products of half the size the first begins when half
    of the exponentials are done, and the rest are taken while it runs. The maximum is of the whole tile.
    """
    scale = scale * INVERSE_LN2
    new_max = ct.maximum(row_max, ct.max(scores, axis=1, keepdims=True) * scale)
    half = (scores.shape[0], scores.shape[1] // 2)
    left = ct.exp2(ct.extract(scores, (0, 0), half) * scale - new_max, flush_to_zero=True)
    right = ct.exp2(ct.extract(scores, (0, 1), half) * scale - new_max, flush_to_zero=True)
    correction = ct.exp2(row_max - new_max, flush_to_zero=True)
    return (left, right), correction, new_max


HALVES = STEP.evolve(
    name="halves",
    title="Half a tile under the other",
    change="The weights come in two halves, and the PV product of one runs under the exponentials of the other.",
    inside="found",
    default_problem=standard(16384),
    softmax=softmax_in_halves,
)

INSIDE = (HALVES,)
