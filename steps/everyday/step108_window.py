"""Step 108: a sliding window. Tiles of keys that no query sees are skipped.

A query sees itself and the ``window - 1`` tokens before it (Mistral 7B, Jiang et al. 2023,
https://arxiv.org/abs/2310.06825), so the work grows with the length and no longer with its square. The loop over tiles
of keys begins at the first that somebody sees. At both edges of the band the mask cuts tiles; between them it cuts
none, and nothing is asked there. Tiles of queries are dealt by what they really cost.

A tile may hide all its keys from a row, so a row's maximum begins with a finite number: minus infinity less itself is
NaN.
"""

from dataclasses import replace

from steps.core.problems import standard
from steps.cutile.step10_mask_loop import COUNTED_TILES

STEP = COUNTED_TILES.evolve(
    number=108,
    name="window",
    title="A sliding window",
    change="The loop over tiles of keys begins where the window does; only the edges of the band ask for the mask.",
    fork=True,
    default_problem=replace(standard(16384, causal=True), window=1024),
    takes=("window",),
)
