"""Step 301: the QK product in fp8.

The tensor cores multiply twice as fast in 8 bits as in 16, and TMA brings half as many bytes. Q and K need no change
for that: wgmma wants both factors with rows along head_dim, and they have these. V is converted to bfloat16 in front of
the kernel, which takes a copy, and the PV product is that of the 16-bit kernels.

A scale for each sequence and kv head costs nothing. Those of Q and K are multiplied to the scale of the scores, and
that of V to the division by the row sums.

The kernel (``steps.fp8.kernel``) has what the steps up to pv_wait_after_max have found: a producer, products that
overlap, persistent blocks, the wait for the PV product behind the maxima.
"""

from steps.fp8 import step300_fp8_dequantized
from steps.fp8.skeleton import Fp8Step

STEP = Fp8Step(
    number=301,
    name="qk_fp8",
    title="QK product in fp8",
    change="A kernel in Gluon for sm_90 whose QK product is in fp8; the PV product is in bfloat16.",
    previous=step300_fp8_dequantized.STEP,
    default_problem=step300_fp8_dequantized.HEADLINE_FP8,
)
