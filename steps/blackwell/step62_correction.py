"""Step 62: a warp group of its own rescales the output.

The softmax knows its correction as soon as it knows the maxima, before any exponential. It stores the correction in
shared memory, one number a query, and goes on with the exponentials. A third warp group reads it, waits for the PV
product before, and rescales the output in tensor memory. It also stores the output at the end. The next PV product
waits for both: for the weights, and for the rescaled output.

To expect, as a hypothesis: rescaling runs beside the exponentials, and no longer behind them. The block has 128 threads
more, and registers must suffice for all of them: the warps that only begin products or copies give theirs up.
"""

from steps.blackwell import step61_warp_roles
from steps.blackwell.variant import Correction, Roles

STEP = step61_warp_roles.STEP.evolve(
    number=62,
    name="correction",
    title="Who rescales",
    change="A third warp group rescales the output, while the softmax goes on with its exponentials.",
    roles=Roles(correction=Correction()),
)
