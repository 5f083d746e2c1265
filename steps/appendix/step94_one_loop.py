"""Step 94, from step 9: one loop over all tiles of keys that a block computes.

A block that stays (step stay) has a loop around a loop: at the end of every tile of queries the fetching ahead runs
out, and at the beginning of the next everybody waits for the first keys. Here there is one loop, over all tiles of keys
of all its tiles of queries: behind the last keys for these queries the compiler fetches the first keys for the next.

Where the log-sum-exp is asked for, too, the step has a loop around a loop again (``that_can_store_lse``).
"""

from steps.core.order import IN_ONE_LOOP
from steps.core.problems import standard
from steps.cutile import step09_stay

STEP = step09_stay.STEP.evolve(
    number=94,
    name="one_loop",
    title="One loop",
    change="A block that stays goes through the keys of all its tiles of queries in one loop.",
    default_problem=standard(1024, causal=True),
    order=IN_ONE_LOOP,
)
