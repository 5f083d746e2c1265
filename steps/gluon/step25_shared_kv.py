"""Step 25, a fork from step stages: K and V share the two stages.

A tile of V is not needed before the scores are done, and a tile of K is free once they are. So K and V can take turns
in two buffers instead of four: V is copied while K is used, the next K while V is used. Half the shared memory for K
and V, and more blocks fit on an SM where shared memory was the limit. Where registers are, none do, and every tile has
two waits for copies instead of one.
"""

from steps.core.problems import few_heads
from steps.gluon import step23_stages

STEP = step23_stages.STEP.evolve(
    number=25,
    name="shared_kv",
    title="K and V share",
    change="K and V take turns in two buffers: one is copied while the other is used.",
    fork=True,
    default_problem=few_heads(256),
    share_keys_values=True,
)
