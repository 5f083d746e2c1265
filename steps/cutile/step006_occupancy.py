"""Step 6: two blocks on every SM.

A block alternates between matrix products and the softmax, and each leaves the other's units idle. With two blocks on
an SM, one computes its softmax while the other multiplies. ``occupancy=2`` asks the compiler to leave room: at most
half of the SM's registers and of its shared memory for a block.
"""

from steps.cutile import step005_latency

STEP = step005_latency.STEP.evolve(
    number=6,
    name="occupancy",
    title="Two blocks per SM",
    change="The compiler is asked to fit two blocks on an SM.",
    occupancy=2,
)
