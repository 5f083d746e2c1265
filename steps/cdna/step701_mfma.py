"""Step 701: MFMA and its layouts by hand.

From here on the kernel is in Gluon, and we say which lane holds what. A wave multiplies 32 x 16 by 16 x 32 elements in
one instruction, v_mfma_f32_32x32x16 (gfx942: 32 x 8 by 8 x 32), and its 64 lanes hold 16 results each. Left as it is,
a lane would hold 16 rows of one column. We let it compute the transposed product: then all results of a lane are of one
row, and the maximum and the sum of a row are computed within a lane, but for one exchange with the lane that has the
other half. The weights are also nearly what the next product wants as its first factor: on gfx942 they are just that,
on gfx950 the two lanes of a row exchange some.

Each of the four waves has 32 queries, whose Q and output stay in registers. K and V are loaded into registers and
stored to LDS, from where every wave reads them. V is read transposed, for which gfx950 has an instruction
(ds_read_b64_tr_b16); gfx942 has none, and reads V element by element.

What to expect: one tile in LDS, nothing ahead of time. Every iteration waits for memory, all waves together.
"""

from steps.cdna import step700_plain_triton
from steps.cdna.kernel import THROUGH_REGISTERS
from steps.cdna.skeleton import CdnaStep
from steps.cdna.variant import Transfer

STEP = CdnaStep(
    number=701,
    name="mfma",
    title="MFMA by hand",
    change="A new kernel in Gluon: MFMA with its layouts, one tile of K and V in LDS, brought through registers.",
    previous=step700_plain_triton.STEP,
    default_problem=step700_plain_triton.STEP.default_problem,
    transfer=Transfer(THROUGH_REGISTERS),
)
