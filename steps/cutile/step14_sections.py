"""Step 14, on the fork of step cluster: long tiles first, in sections of heads.

The GPU hands out blocks by their numbers, so numbers are an order. Heads come in sections whose K and V fit in L2
together, and in each section the longest tiles come first, so that under a causal mask none begins late.
"""

from steps.core.order import SECTIONS
from steps.cutile import step13_cluster

STEP = step13_cluster.STEP.evolve(
    number=14,
    name="sections",
    title="Sections of heads",
    change="Blocks are numbered so that the longest tiles begin first, in sections of heads that share L2.",
    order=SECTIONS,
)
