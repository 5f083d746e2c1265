"""Trial: the output is rescaled only when some maximum has grown so much that numbers might overflow.

FlashAttention-4 (Zadouri et al. 2026, https://arxiv.org/abs/2603.05451) leaves the old maximum in place until some
score exceeds it by a threshold, in powers of two: weights may then be larger than 1, up to 2^threshold.
"""

from __future__ import annotations

from dataclasses import dataclass

from steps import get_step
from steps.core.problems import FULL, HEADLINE, standard
from steps.trials.trial import Trial
from steps.writing.written import edited, write_step

MAXIMUM = "    return gl.maximum(row_max, in_one_chain(scores) * scale)\n"
RESCALE = "accumulator = accumulator * by_row(correction)"


@dataclass(frozen=True)
class Lazy(Trial):
    """The value is the threshold; at most 15, as float16 ends before 2^16."""

    def version(self, value, problem, **named):
        step = write_step(get_step(self.base), problem, **named)
        if not value:
            return step
        maximum = f"""    new_max = gl.maximum(row_max, gl.max(scores, 1) * scale)
    if gl.max(new_max - row_max, 0) <= {float(value)}:
        new_max = row_max
    return new_max
"""
        rescale = f"if gl.min(correction, 0) < 1.0:\n            {RESCALE}"
        return edited(step, (MAXIMUM, maximum), (RESCALE, rescale))


TRIAL = Lazy(
    name="lazy",
    question="Would it be faster to rescale the output only when some maximum grew by more than a threshold?",
    base="lean_sum",
    values=(0, 2, 4, 8),
    problems=(standard(head_dim=64), FULL, HEADLINE),
    axis="threshold, powers of two (0: always rescaled)",
)
