"""Step 25: 128 queries a block, in cuTile.

Every tile of K and V that a block fetches serves all its queries, so a block of twice as many queries fetches half as
much for each. It is the change of step 16. But four warps now keep twice the output and twice the scores in registers,
and what does not fit there is spilled to memory: this step is the trap from which steps 26 and 28 lead out.
"""

from steps import step07_approx_division
from steps.tiles import Tile

STEP = step07_approx_division.STEP.evolve(
    number=25,
    name="large_tile",
    title="A larger tile",
    change="A block takes 128 queries and 128 keys at a time.",
    tile=Tile(128, 128),
)
