"""Step 24: a third warp group where head_dim is 64.

At head_dim 64 a tile of scores costs as much time in exponentials as in matrix products, and two groups do not keep
both busy. The outputs of 64 rows take only 32 registers a thread there, so three groups fit, with 160 registers each.
Beyond head_dim 64 they do not, and the kernel stays as it was.
"""

from steps import step23_linked

STEP = step23_linked.STEP.evolve(
    number=24,
    name="third_group",
    title="A third warp group",
    change="At head_dim 64 three warp groups of 64 queries compute in place of two.",
    third_group=True,
)
