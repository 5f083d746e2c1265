"""Step 63: the output is rescaled only when a maximum has grown enough.

Weights are relative to a maximum so that none of them overflows. They need not be relative to the last one: with a
maximum that is too small by up to 8, in base 2, weights are up to 256, which float16 holds as precisely as 1, and the
sum in float32, too. So a row keeps its old maximum until a new one exceeds it by more than 8, and its correction is 1
until then. Output and sum are relative to the same maximum, whichever it is, and their quotient is the same.

The warp group that rescales looks at all 128 corrections of a part. Where each of them is 1 it leaves the output where
it is, and neither fetches nor stores it. The threshold is FlashAttention-4's
(https://github.com/Dao-AILab/flash-attention).

To expect, as a hypothesis: on inputs like ours a row's maximum is nearly there after the first tiles of keys, and
hardly any later tile is rescaled. Inputs whose scores grow along the keys force the other branch.
"""

from steps.blackwell import step62_correction
from steps.blackwell.variant import Correction, Roles

STEP = step62_correction.STEP.evolve(
    number=63,
    name="threshold",
    title="Rescaling when it matters",
    change="A row is rescaled only when its maximum has grown by more than a factor of 2^8.",
    roles=Roles(correction=Correction(threshold=8.0)),
)
