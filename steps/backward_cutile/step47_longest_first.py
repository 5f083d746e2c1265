"""Step 47: the longest blocks of queries begin first.

Under a causal mask the last queries see the most keys. In their natural order the blocks with the most work begin last,
and while they end, SMs that found no other block are idle. Numbered from the end, the short blocks fill these gaps. The
blocks that own keys are in this order by nature: the first keys are seen by the most queries.
"""

from steps.backward_cutile import step46_mask_loops

STEP = step46_mask_loops.STEP.evolve(
    number=47,
    name="longest_first",
    title="Long blocks of queries first",
    change="Under a causal mask the blocks for dQ are numbered from the last queries, which see most keys.",
    longest_first=True,
)
