"""Step 120: two blocks on neighbouring SMs share what TMA brings of keys and values.

Every block fetches all keys that its queries see, and all values. For 128 queries that is a byte for every 128
operations, and the way from L2 into shared memory takes energy, of which the power limit allows only so much a second:
trial ``fetched_seldom`` fetches half as many, and the clock rises. Here blocks are launched in clusters of two. Both
compute queries of the same head. TMA brings a tile of keys or values to the shared memory of both by one copy
(``.multicast::cluster``), which leaves L2 once.

The price: a place is free only when both blocks have used it, so the two cannot be further apart than the ring is long.
Under a causal mask one of two tiles of queries sees a tile of keys more than the other. The blocks have the longer one
in turn.
"""

from steps.core.problems import FULL
from steps.hopper import step39_at_maxima

STEP = step39_at_maxima.STEP.evolve(
    number=120,
    name="kv_multicast",
    title="One copy for two SMs",
    change="Blocks come in clusters of two, and one copy by TMA brings a tile of keys or values to both.",
    fork=True,
    default_problem=FULL,
    pairs="always",
)
