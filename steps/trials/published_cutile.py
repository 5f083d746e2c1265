"""Trial: some exponentials as a polynomial in cuTile, whose tiles have no registers to choose from.

In Gluon a kernel may say which of a thread's exponentials are a polynomial (trials ``exp2_emulation``, ``published``).
In cuTile it can only say of which columns: the weights of a tile come in pieces, as in step intra_tile_overlap, and
those of the last piece are a polynomial. The compiler makes the multiply-adds and the additions to the exponent out of
tile operations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import cuda.tile as ct

from steps import get_step
from steps.core.grids import MASKS
from steps.core.problems import standard
from steps.cutile.step003_exp2 import INVERSE_LN2
from steps.trials.polynomial import LEAST, SHIFT, coefficients
from steps.trials.published import HEAD_DIMS
from steps.trials.trial import Trial
from tutorial_lib.problem import DTYPES

MANTISSA = 23  # bits in front of which a float32 has its exponent
C0, C1, C2, C3 = map(float, coefficients())  # lowest power first


def exp2_by_polynomial(x):
    """2^x: 2^f, for the f next to the whole number n, by a polynomial; n is added to its exponent bits."""
    x = ct.maximum(x, LEAST)
    shifted = x + SHIFT  # its lowest bits are the whole number: a conversion would take the unit of the exponentials
    f = x - (shifted - SHIFT)
    p = ((C3 * f + C2) * f + C1) * f + C0
    bits = ct.bitcast(p, ct.int32) + (ct.bitcast(shifted, ct.int32) << MANTISSA)
    return ct.bitcast(bits, ct.float32)


def softmax_in_pieces(scores, row_max, scale, pieces):
    """As that of step intra_tile_overlap, in so many pieces of the keys. A polynomial computes the last one."""
    scale = scale * INVERSE_LN2
    new_max = ct.maximum(row_max, ct.max(scores, axis=1, keepdims=True) * scale)
    size = (scores.shape[0], scores.shape[1] // pieces)
    weights = ()
    for n in ct.static_iter(range(pieces - 1)):
        weights = (*weights, ct.exp2(ct.extract(scores, (0, n), size) * scale - new_max, flush_to_zero=True))
    last = exp2_by_polynomial(ct.extract(scores, (0, pieces - 1), size) * scale - new_max)
    return (*weights, last), ct.exp2(row_max - new_max, flush_to_zero=True), new_max


def softmax_in_halves(scores, row_max, scale):
    """Half of the exponentials by a polynomial."""
    return softmax_in_pieces(scores, row_max, scale, 2)


def softmax_in_quarters(scores, row_max, scale):
    """A quarter of the exponentials by a polynomial."""
    return softmax_in_pieces(scores, row_max, scale, 4)


SOFTMAX = {25: softmax_in_quarters, 50: softmax_in_halves}  # by the share of the exponentials, in percent


@dataclass(frozen=True)
class Pieces(Trial):
    """The value is the share of the exponentials in percent: the last piece of the keys."""

    def version(self, value, problem, **named):
        step = replace(get_step(self.base), **named)
        return replace(step, softmax=SOFTMAX[value]) if value else step


TRIAL = Pieces(
    name="published_cutile",
    question="Does a polynomial for some exponentials help in cuTile?",
    base="intra_tile_overlap",
    values=(0, 25, 50),
    problems=tuple(
        standard(4096, head_dim, causal, dtype) for head_dim, causal, dtype in product(HEAD_DIMS, MASKS, DTYPES)
    ),
    axis="exponentials computed as a polynomial, %",
)
