"""Step 37: every warp group ends at its own last key.

A block walks the keys that the last of its queries sees. Under a causal mask its first warp group, with earlier
queries, sees fewer: where a tile of keys lies wholly past them, the group lets it go by. It also begins to mask later.
"""

from steps.core.problems import standard
from steps.hopper import step36_three_groups
from steps.hopper.lib import OWN_END

STEP = step36_three_groups.STEP.evolve(
    number=37,
    name="own_end",
    title="Own ends",
    change="Under a causal mask a warp group passes over tiles of keys that none of its own queries sees.",
    default_problem=standard(2048, head_dim=64, causal=True),
    ends=OWN_END,
)
