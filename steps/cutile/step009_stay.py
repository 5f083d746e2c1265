"""Step 9: blocks that stay.

As many blocks as SMs, each with a list of tiles of queries that was dealt to it before the launch
(``steps.core.order``), so that all end together. In cuTile the walk over a list is a loop around the kernel as it was.
"""

from steps.core.order import DEALT
from steps.core.problems import FULL
from steps.cutile import step008_eight_warps

STEP = step008_eight_warps.STEP.evolve(
    number=9,
    name="stay",
    title="Blocks that stay",
    change="One block an SM stays, and computes the tiles of queries that were dealt to it.",
    default_problem=FULL,
    order=DEALT,
)
