"""Step 9: persistent blocks.

As many blocks as SMs, each with a list of tiles of queries that was dealt to it before the launch
(``steps.core.order``), so that all end together. In cuTile the walk over a list is a loop around the kernel as it was.
"""

from steps.core.order import DEALT
from steps.core.problems import HEADLINE
from steps.cutile import step008_larger_tile

STEP = step008_larger_tile.STEP.evolve(
    number=9,
    name="persistent",
    title="Persistent blocks",
    change="As many blocks run as there are SMs, and each computes the tiles of queries on its list.",
    default_problem=HEADLINE,
    order=DEALT,
)
