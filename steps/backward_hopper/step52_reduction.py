"""Step 52: TMA adds to dQ.

A warp group's part of dQ goes to shared memory, and TMA adds the tile to what other blocks have added: one thread asks
for it, and no warp issues additions [PTX ISA: cp.reduce.async.bulk.tensor]. The price is 32 KiB of shared memory that
are written and read once more for every tile.
"""

from steps.backward_hopper import step51_under_way

STEP = step51_under_way.STEP.evolve(
    number=52,
    name="reduction",
    title="dQ added by TMA",
    change="dQ goes through shared memory, and TMA adds it to the sums in place of the warps.",
    adding="reduction",
)
