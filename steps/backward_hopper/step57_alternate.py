"""Step 57: the warp groups compute weights one at a time.

The two warp groups exchange dS in every turn. Nothing keeps them from computing weights at the same time, and from
waiting for their products at the same time. Here a warp group computes weights and dS only when the other has computed
its own, and is at its products. So the tensor cores have products of one, while the other takes exponentials.

Only at head_dim 128. At 64 a trial on an H100, which is not recorded, found it slower; at 256 one warp group has all
weights.
"""

from steps.backward_hopper import step56_in_sections
from steps.hopper.lib import IN_TURN

STEP = step56_in_sections.STEP.evolve(
    number=57,
    name="alternate",
    title="One warp group at a time takes exponentials",
    change="A warp group computes weights and dS only when the other is done with its own.",
    turns=IN_TURN,
)
