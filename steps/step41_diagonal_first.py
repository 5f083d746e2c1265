"""Step 41: the tile of keys that the mask cuts comes first.

The first tile of keys is computed in front of the loop. Visited from the last tile to the first, that is the one on the
diagonal, and none in the loop needs the mask or the branch around it. FlashAttention walks this way, too. At head_dim
256 with a causal mask.
"""

from steps import step40_at_maxima

STEP = step40_at_maxima.STEP.evolve(
    number=41,
    name="diagonal_first",
    title="The diagonal first",
    change="At head_dim 256 with a causal mask the keys are visited from the diagonal back to the first.",
    diagonal_first=True,
)
