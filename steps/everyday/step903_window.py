"""Step 903: a sliding window. Tiles of keys that no query sees are skipped.

A query sees itself and the ``window - 1`` tokens before it (Mistral 7B, Jiang et al. 2023,
https://arxiv.org/abs/2310.06825), so the work grows with the length and no longer with its square. The loop over tiles
of keys begins at the first that somebody sees. At both edges of the band the mask cuts tiles; between them it cuts
none, and nothing is asked there. Tiles of queries are dealt by what they really cost.

``soft_cap``, inside this step: a soft cap on the scores.

A scaled score s becomes ``cap * tanh(s / cap)`` (Gemma 2, https://arxiv.org/abs/2408.00118, section 2), which stays
between -cap and cap. The kernel takes the hyperbolic tangent of each score in front of the mask, and leaves the factor
``cap`` to the softmax, in the scale's place.
"""

from dataclasses import replace

from steps.core.problems import HEADLINE, standard
from steps.cutile.step010_mask_loop import COUNTED_TILES

STEP = COUNTED_TILES.evolve(
    number=903,
    name="window",
    title="A sliding window",
    change="The loop over tiles of keys begins where the window does; only the edges of the band need the mask.",
    fork=True,
    default_problem=replace(standard(16384, causal=True), window=1024),
    takes=("window",),
)

SOFT_CAP = STEP.evolve(
    name="soft_cap",
    title="A soft cap",
    change="Scores go through a hyperbolic tangent before the mask; the cap takes the scale's place.",
    inside="window",
    default_problem=replace(HEADLINE, softcap=50.0),
    takes=("window", "softcap"),
)

INSIDE = (SOFT_CAP,)
