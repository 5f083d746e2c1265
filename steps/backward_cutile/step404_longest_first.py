"""Step 404: the longest blocks of queries begin first (an LPT scheduler).

Under a causal mask the last queries see the most keys. In their natural order the blocks with the most work begin last,
and while they end, SMs that found no other block are idle. Numbered from the end, the short blocks fill these gaps. The
blocks that own keys are in this order by nature: the first keys are seen by the most queries.

``mask_loops``, inside this step: what the mask cuts has loops of its own.

Only tiles on the diagonal, and the last tile of keys where it is not full, hold scores that are hidden. So far the
kernel asked for every tile whether it is one of them. Now one loop goes through these tiles and applies the mask,
and another goes through all others and knows nothing of a mask.
"""

from steps.backward_cutile import kernel, step403_two_kernels

MASK_LOOPS = step403_two_kernels.STEP.evolve(
    name="mask_loops",
    title="The mask in loops of its own",
    change="Tiles that the mask cuts run in loops of their own; the other loops have no mask.",
    inside="longest_first",
    walks=kernel.MASK_LOOPS,
)

STEP = MASK_LOOPS.evolve(
    number=404,
    name="longest_first",
    previous=step403_two_kernels.STEP,
    title="Loops for the mask, long blocks first",
    change="The mask has loops of its own, and blocks for dQ are numbered from the last queries, which see most keys.",
    order=kernel.from_the_last,
)

INSIDE = (MASK_LOOPS,)
