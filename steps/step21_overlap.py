"""Step 21: the softmax under the next product.

Inside one warp group, too, products and softmax need not take turns. The QK product of tile j does not depend on the
PV product of tile j - 1: both are issued together, and while the second is still running the softmax of tile j
begins (FlashAttention-3, Shah et al. 2024, section 3.2). Weights and scores are then alive at once, which takes the
registers that step 19 made free. This step stands on step 19.
"""

from steps import step19_registers

STEP = step19_registers.STEP.evolve(
    number=21,
    name="overlap",
    title="Softmax under the PV product",
    change="From step 19: the softmax of a tile runs under the PV product of the tile before.",
    overlap=True,
)
