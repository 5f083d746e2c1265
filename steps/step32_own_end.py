"""Step 32: every warp group ends at its own last key.

A block walks the keys that the last of its queries sees. Under a causal mask its first warp group, with earlier
queries, sees fewer: where a tile of keys lies wholly past them, the group lets it go by. It also begins to mask later.
"""

from steps import step31_turns

STEP = step31_turns.STEP.evolve(
    number=32,
    name="own_end",
    title="Own ends",
    change="Under a causal mask a warp group passes over tiles of keys that none of its own queries sees.",
    own_end=True,
)
