"""Step 202: intra-warpgroup overlap. Both products of an iteration are begun together.

Inside one warpgroup, too, products and softmax need not take turns. The QK product of tile j does not depend on the PV
product of tile j - 1: both are issued together, and the softmax of tile j is written before the wait for the second
(FlashAttention-3, Shah et al. 2024, section 3.2). Weights and scores are then alive at once, which takes the registers
that step register_reallocation made free. Where that wait stands in machine code is the compiler's choice, and the
chapter shows what it chose.
"""

from steps.core.problems import HEADLINE
from steps.hopper import overlapped, step201_producer

STEP = step201_producer.REGISTER_REALLOCATION.evolve(
    number=202,
    name="intra_warpgroup_overlap",
    previous=step201_producer.STEP,
    title="Intra-warpgroup overlap",
    change="Both products of an iteration are issued together; the producer gives registers to the consumers.",
    default_problem=HEADLINE,
    generation=overlapped.consume,
)
