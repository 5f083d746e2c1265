"""Step 43: the output does not leave through Q's place.

Behind the last tile of keys nobody reads Q any more, so tileiras lets the output leave through Q's place in shared
memory, and the warp that fetches must wait until it has left before it asks for the next Q. Whoever reads Q once more,
behind the loop, makes the compiler find the output a place of its own. The output goes in two halves, and Q is held
for the first only: under the second the next Q is on its way.
"""

from steps import step42_mask_loop

STEP = step42_mask_loop.STEP.evolve(
    number=43,
    name="apart",
    title="The output in a place of its own",
    change="Where shared memory has room for both, the output no longer leaves through Q's place, and goes in halves.",
    apart=True,
)
