"""Step 204: epilogue overlap. The next tile of queries begins before this one has ended.

At the end of a tile of queries the tensor cores have nothing to do: the output is normalized and stored, and only
then does the next tile begin. Here the first QK product of the next tile is issued right behind the last PV product
of this one: it runs while the output is normalized and stored. The shorter the sequence, the more often a tile ends.
Where head_dim is 256, queries and output share their shared memory, and there is nothing to multiply yet.
"""

from steps.hopper import epilogue_overlap, step203_lpt_scheduler
from steps.hopper.conditions import next_queries_fit

STEP = step203_lpt_scheduler.STEP.evolve(
    only_for=next_queries_fit,
    number=204,
    name="epilogue_overlap",
    title="Epilogue overlap",
    change="The first QK product of the next tile of queries runs while the output of this one is stored.",
    generation=epilogue_overlap.consume,
)
