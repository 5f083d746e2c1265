"""Step 15, on the fork of step 13: tile, warps and cluster as a search found them.

What steps eight_warps and cluster tried by hand at head_dim 128 has another answer at 64 and at 256. ``python -m
steps.search`` times every combination with ``cuda.tile.tune``. The launch rules (``steps/core/rules.toml``, table
``searched``) hold the fastest for an architecture and head_dim. Where they hold none, the step is the one before.
"""

from steps.core.problems import standard
from steps.cutile import step14_sections

STEP = step14_sections.STEP.evolve(
    number=15,
    name="found",
    title="Found by a search",
    change="Tile, warps, cluster and blocks an SM are those that a recorded search found fastest.",
    default_problem=standard(head_dim=256),
    searched=True,
)
