"""Step 27: blocks that stay, in cuTile.

The order of step 22 and its lists: as many blocks as SMs, each with the tiles that were dealt to it. In cuTile the walk
over a list is a loop around the kernel as it was.
"""

from steps import step26_eight_warps
from steps.order import DEALT

STEP = step26_eight_warps.STEP.evolve(
    number=27,
    name="stay",
    title="Blocks that stay",
    change="One block an SM stays, and computes the tiles of queries that were dealt to it.",
    order=DEALT,
)
