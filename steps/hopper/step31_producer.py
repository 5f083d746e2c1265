"""Step 31: a warp that does nothing but fetch.

In step wgmma all eight warps must have read a tile before one of them may ask for the next into its place, and so they
wait for one another every turn. Here a warp of its own asks for tiles, and each of the two warp groups takes 64 queries
and runs for itself: it waits for a tile to be ready, and says when it is done with it. Nobody waits for the other
group, so one's softmax can run while the other multiplies.
"""

from steps.hopper import producer, step30_wgmma

STEP = step30_wgmma.STEP.evolve(
    number=31,
    name="producer",
    title="Producer and consumers",
    change="A producer warp fetches the tiles; two warp groups of 64 queries each compute, independent of each other.",
    generation=producer.fmha,
)
