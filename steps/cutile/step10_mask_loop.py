"""Step 10: a loop of its own for what the mask cuts.

Without a mask tileiras lays the softmax of one tile under the products of the next (step stay). With one it finds two
loops, over whole tiles of keys and over those that the mask cuts, and does not; what seems to be in its way is room in
shared memory for the tiles of both. With half tiles in the second loop, and hints for the first, it does so again.
"""

from steps.core.problems import HEADLINE
from steps.cutile import step09_stay
from steps.cutile.variant import Latency, MaskLoop

STEP = step09_stay.STEP.evolve(
    number=10,
    name="mask_loop",
    title="A loop for the mask",
    change="At head_dim 128 what the mask cuts is computed in half tiles of keys, in a loop of their own.",
    default_problem=HEADLINE,
    mask_loop=MaskLoop(key=64, latency=Latency(key=4, value=8)),
)
