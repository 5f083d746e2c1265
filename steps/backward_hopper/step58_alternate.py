"""Step 58: the warp groups compute weights one at a time.

The two warp groups exchange dS in every turn. Nothing keeps them from computing weights at the same time, and from
waiting for their products at the same time. Here a warp group computes weights and dS only when the other has computed
its own, and is at its products. So the tensor cores have products of one, while the other takes exponentials. At
head_dim 256 nothing changes, as one warp group has all weights.
"""

from steps.backward_hopper import step57_in_sections

STEP = step57_in_sections.STEP.evolve(
    number=58,
    name="alternate",
    title="One warp group at a time takes exponentials",
    change="A warp group computes weights and dS only when the other is done with its own.",
    alternate=True,
)
