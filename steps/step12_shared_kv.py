"""Step 12: K and V share the two stages.

A tile of V is not needed before the scores are done, and a tile of K is free once they are. So K and V can take turns
in two buffers instead of four: V is copied while K is used, the next K while V is used. Half the shared memory for K
and V, and more blocks fit on an SM where shared memory was the limit. Where registers are, none do, and every tile has
two waits for copies instead of one.
"""

from steps import step11_stages

STEP = step11_stages.STEP.evolve(
    number=12,
    name="shared_kv",
    title="K and V share",
    change="K and V take turns in two buffers: one is copied while the other is used.",
    share_keys_values=True,
)
