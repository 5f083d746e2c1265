"""Step 53: TMA adds to dQ.

A part of dQ goes to shared memory, and TMA adds the tile to what other blocks have added: one thread asks for it, and
no warp issues additions [PTX ISA: cp.reduce.async.bulk.tensor]. The price: 32 KiB of shared memory are written and read
once more for every tile. The sums hold their columns in order again.
"""

from steps.backward_hopper import adding, step52_fours

STEP = step52_fours.STEP.evolve(
    number=53,
    name="reduction",
    title="dQ added by TMA",
    change="dQ goes through shared memory, and TMA adds it to the sums in place of the warps.",
    adding=adding.BY_TMA,
)
