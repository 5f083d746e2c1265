"""Trial: the output is rescaled only when some maximum has grown so much that numbers might overflow.

FlashAttention-4 (Zadouri et al. 2026, https://arxiv.org/abs/2603.05451) leaves the old maximum in place until some
score exceeds it by a threshold, in powers of two: weights may then be larger than 1, up to 2^threshold.
"""

from __future__ import annotations

from steps.core.problems import FULL, HEADLINE, standard
from steps.trials.trial import Trial

RAISE_MAXIMA = """
def raise_maxima(scores, row_max, scale):
    new_max = gl.maximum(row_max, gl.max(scores, 1) * scale)
    if gl.max(new_max - row_max, 0) <= {threshold}:
        new_max = row_max
    return new_max
"""
RESCALE = """
def rescale(accumulator, factor):
    if gl.min(factor, 0) < 1.0:
        accumulator = accumulator * by_row(factor)
    return accumulator
"""


def functions(threshold: float) -> dict[str, str]:
    """threshold: at most 15, as float16 ends before 2^16."""
    return {"raise_maxima": RAISE_MAXIMA.format(threshold=float(threshold)), "rescale": RESCALE} if threshold else {}


TRIAL = Trial(
    name="lazy",
    question="Would it be faster to rescale the output only when some maximum grew by more than a threshold?",
    base="hopper_deferred_sum",
    values=(0, 2, 4, 8),
    problems=(standard(head_dim=64), FULL, HEADLINE),
    axis="threshold, powers of two (0: always rescaled)",
    functions=functions,
)
