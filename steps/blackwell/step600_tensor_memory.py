"""Step 600: a first kernel for Blackwell: TMA copies, and products that accumulate in tensor memory.

On Hopper a product's sum lives in the registers of the warpgroup that began it. On Blackwell it lives in tensor
memory: 512 columns of 128 lanes of 32 bits, beside the registers. One thread begins a product with ``tcgen05.mma``
(PTX ISA, "TensorCore 5th Generation Family Instructions"), and an mbarrier tells when it has ended.

Here a warpgroup computes 128 queries. It begins the QK product, waits, fetches the scores into registers, stores the
weights in columns of their own, begins the PV product, and waits. Before that it rescales the output, which means to
fetch all of it and to store it again.

To expect, as a hypothesis: most of the time either the tensor cores or the warps have nothing to do. Scores, weights
and outputs take 224 to 352 columns, and registers are free for the scores of whole rows.
"""

from steps.blackwell.skeleton import BlackwellStep
from steps.core.problems import FULL
from steps.hopper import step200_wgmma

STEP = BlackwellStep(
    number=600,
    name="tensor_memory",
    title="tcgen05 and tensor memory",
    change="A new kernel in Gluon for sm_100: products accumulate in tensor memory, and one thread begins them.",
    previous=step200_wgmma.STEP,
    default_problem=FULL,
)
