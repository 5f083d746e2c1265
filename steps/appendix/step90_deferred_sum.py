"""Step 90, from step 23: the row sum is left for the end.

A row of scores lies in four lanes of a warp. Its maximum is needed at once, in all four of them; its sum
is not needed before the end. So every lane sums its own columns only, and the four partial sums of a row are added up
once, after the loop, instead of with two shuffles a row and tile.
"""

from steps.gluon import step23_stages

STEP = step23_stages.STEP.evolve(
    number=90,
    name="deferred_sum",
    title="Deferred row sum",
    change="Every lane sums its own columns; the lanes of a row are added up once, after the loop.",
    defer_sum=True,
)
