"""Step 109: a soft cap on the scores.

A scaled score s becomes ``cap * tanh(s / cap)`` (Gemma 2, https://arxiv.org/abs/2408.00118, section 2), which stays
between -cap and cap. The kernel takes the hyperbolic tangent of each score in front of the mask, and leaves the factor
``cap`` to the softmax, in the scale's place.
"""

from dataclasses import replace

from steps.core.problems import HEADLINE
from steps.everyday import step108_window

STEP = step108_window.STEP.evolve(
    number=109,
    name="soft_cap",
    title="A soft cap",
    change="Scores go through a hyperbolic tangent before the mask; the cap takes the scale's place.",
    default_problem=replace(HEADLINE, softcap=50.0),
    takes=("window", "softcap"),
)
