"""Step 802: double buffering. The next part is on its way while this one is computed.

A rank begins to receive the next part before it computes the one it has, into a second buffer. On a GPU the exchange
has a stream of its own, which NCCL brings along. It is begun first: a kernel that fills every SM would leave it none.
Where a part takes longer to compute than to send, the exchange costs no time.

``double_buffering_gradients``, inside this step: the gradients of step double_buffering: the next part, and sums of the
last one, are on their way while one is computed.

The sums of dK and dV need what is computed in an iteration, so that they cannot be sent before its end. They arrive
while the next iteration is computed, at whose end they are added to. In float32 they are twice as many bytes as keys
and values. As a rank computes its own part last, the sums come home meanwhile. A rank waits for the first part of keys
and values alone: it has nothing to compute until that part is there. These are half as many bytes as the sums.
"""

from steps.parallel import step801_ring
from steps.parallel.ring import Ring, RingGradients
from steps.parallel.shares import IN_ORDER

STEP = step801_ring.STEP.evolve(
    number=802,
    name="double_buffering",
    title="Double buffering",
    change="The next part is received into a second buffer while this one is computed.",
    function=Ring(IN_ORDER, ahead=True),
)

DOUBLE_BUFFERING_GRADIENTS = step801_ring.RING_GRADIENTS.evolve(
    name="double_buffering_gradients",
    title="Gradients with double buffering",
    change="The next part and the sums of the last one are on their way while a part is computed.",
    inside="double_buffering",
    forward=STEP,
    function=RingGradients(STEP.share, ahead=True),
)

INSIDE = (DOUBLE_BUFFERING_GRADIENTS,)
