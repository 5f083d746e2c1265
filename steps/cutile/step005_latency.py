"""Step 5: hints on how long the loads take.

The compiler copies tiles ahead of their use, and how far ahead depends on the latency that it expects. K is needed
at once for the scores; V only after the softmax, which hides more of its way. The hints say so: 2 for K, 4 for V.
They change how much shared memory holds tiles in flight. (The compiler's remark on these loads, «OptimizationHint used
default latency», means the hint given for every target, which Tile IR calls the default one; without a hint there is
none.)
"""

from steps.cutile import step004_load_order
from steps.cutile.variant import Latency

STEP = step004_load_order.STEP.evolve(
    number=5,
    name="latency",
    title="Latency hints",
    change="The loads of K and V carry latency hints, 2 and 4.",
    latency=Latency(key=2, value=4),
)
