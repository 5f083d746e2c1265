"""Step 39: the wait for the PV product stays behind the softmax, where that pays.

Step 21 wrote the wait for the PV product behind the softmax, and ptxas moved it to before the exponentials. Over a
loop it moves nothing, and the wait for a barrier is one: a second wait for the tile of values, which has long arrived,
holds the order as it was written. At head_dim 128 under a causal mask that pays, and nowhere else that it was tried.
"""

from steps import step36_early_query
from steps.hopper import WHERE_IT_PAYS

STEP = step36_early_query.STEP.evolve(
    number=39,
    name="late_wait",
    title="The wait stays late",
    change="At head_dim 128 with a causal mask the wait for the PV product stays behind the exponentials.",
    late_wait=WHERE_IT_PAYS,
)
