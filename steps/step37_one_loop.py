"""Step 37: one loop over all tiles of keys that a block computes.

A block that stays (step 27) has a loop around a loop: at the end of every tile of queries the fetching ahead runs out,
and at the beginning of the next everybody waits for the first keys. Here there is one loop, over all tiles of keys of
all its tiles of queries: behind the last keys for these queries the compiler fetches the first keys for the next.
"""

from steps import step27_stay

STEP = step27_stay.STEP.evolve(
    number=37,
    name="one_loop",
    title="One loop",
    change="A block that stays goes through the keys of all its tiles of queries in one loop.",
    one_loop=True,
)
