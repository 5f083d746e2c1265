"""Step 46: what the mask cuts has loops of its own.

Only tiles on the diagonal, and the last tile of keys where it is not full, hold scores that are hidden. So far the
kernel asked for every tile whether it is one of them. Now one loop goes through these tiles and applies the mask,
and another goes through all others and knows nothing of a mask.
"""

from steps.backward_cutile import step45_two_kernels

STEP = step45_two_kernels.STEP.evolve(
    number=46,
    name="mask_loops",
    title="The mask in loops of its own",
    change="Tiles that the mask cuts are computed in loops of their own; the other loops know no mask.",
    mask_loops=True,
)
