"""Step 15: the row sum is left for the end.

Steps 12 to 14 save shared memory. Where it was not short, step 11 is the better ground to build on, and this step
stands on it. A row of scores lies in four lanes of a warp. Its maximum is needed at once, in all four of them; its sum
is not needed before the end. So every lane sums its own columns only, and the four partial sums of a row are added up
once, after the loop, instead of with two shuffles a row and tile.
"""

from steps import step11_stages

STEP = step11_stages.STEP.evolve(
    number=15,
    name="deferred_sum",
    title="Deferred row sum",
    change="From step 11: every lane sums its own columns; the lanes of a row are added up once, after the loop.",
    defer_sum=True,
)
