"""Step 101: the keys of a sequence are split over blocks.

Nothing makes one block go through all keys: softmax over a range of them gives an output and a log-sum-exp, and two
such parts are put together exactly by the weights that their log-sum-exp says. So as many blocks share the keys as it
takes to fill the GPU (``number_of_splits``), and a second, small kernel merges what they wrote, in float32.
"""

from steps.everyday import step100_group_rows

STEP = step100_group_rows.STEP.evolve(
    number=101,
    name="split_keys",
    title="Keys split over blocks",
    change="Several blocks have a range of the keys each; a second kernel merges their parts by log-sum-exp.",
    split=True,
)
