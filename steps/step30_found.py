"""Step 30: tile, warps and cluster as a search found them.

What steps 25 to 28 tried by hand at head_dim 128 has another answer at 64 and at 256. ``python -m steps.search`` times
every combination with ``cuda.tile.tune``; its record for this architecture, head_dim and mask decides. Where none is
recorded, the step is the one before.
"""

from steps import step29_sections

STEP = step29_sections.STEP.evolve(
    number=30,
    name="found",
    title="Found by a search",
    change="Tile, warps, cluster and blocks an SM are those that a recorded search found fastest.",
    searched=True,
)
