"""Step 104, a fork from step split_keys: the block that comes last merges.

The second kernel of step split_keys costs a launch, and begins when the last block of the first has ended. Here each block
adds one to a count when it has stored its part. Who finds that all others have done so puts the parts together. The
addition orders memory: whoever reads the count after another has added to it sees what that one had stored before.

There is a price, too: one block goes through all parts of its rows, where the second kernel has a block for each row.
"""

from steps.everyday import step101_split_keys

STEP = step101_split_keys.STEP.evolve(
    number=104,
    name="last_merges",
    title="The last block merges",
    change="Blocks count who has stored its part; the last one merges, and there is no second kernel.",
    fork=True,
    last_merges=True,
)
