"""Step 56, which goes on from step 54: each block begins with another tile of queries.

Without a mask all blocks of a head begin with its first tile of queries, and go on at the same speed. So many of them
add to the same tile of dQ at the same time. Here a block begins with the tile that lies beside its keys, and goes
round: after the last tile comes the first.

Under a causal mask nothing changes. Blocks begin with different tiles there as it is: each with the first that sees its
keys.
"""

from steps.backward_hopper import step54_groups_apart
from steps.core.problems import FULL

STEP = step54_groups_apart.STEP.evolve(
    number=56,
    name="spread",
    title="Blocks begin at different tiles",
    change="Without a mask, each block begins with the tile of queries beside its keys, and goes round.",
    default_problem=FULL,
    spread=True,
)
