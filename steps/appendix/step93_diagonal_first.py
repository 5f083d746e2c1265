"""Step 93, from step 39: the tile of keys that the mask cuts comes first.

The first tile of keys is computed in front of the loop. Visited from the last tile to the first, that is the one on the
diagonal, and none in the loop needs the mask or the branch around it. FlashAttention walks this way, too. At head_dim
256 with a causal mask.
"""

from steps.core.problems import standard
from steps.hopper import step39_at_maxima
from steps.hopper.softmax import DOWNWARDS

STEP = step39_at_maxima.STEP.evolve(
    number=93,
    name="diagonal_first",
    title="The diagonal first",
    change="At head_dim 256 with a causal mask the keys are visited from the diagonal back to the first.",
    default_problem=standard(head_dim=256, causal=True),
    walk=DOWNWARDS,
)
