"""Step 87: the gradients of step two_buffers: the next part, and sums of the last one, are on their way while one is computed.

The sums of dK and dV need what is computed in a turn, so that they cannot be sent before its end. They arrive while the
next turn is computed, at whose end they are added to. In float32 they are twice as many bytes as keys and values. As a
rank computes its own part last, the sums come home meanwhile. A rank waits for the first part of keys and values alone:
it has nothing to compute until that part is there. These are half as many bytes as the sums.
"""

from steps.parallel import step82_two_buffers, step86_ring_gradients
from steps.parallel.ring import RingGradients

STEP = step86_ring_gradients.STEP.evolve(
    number=87,
    name="two_buffers_gradients",
    title="Gradients with the next part on its way",
    change="The next part and the sums of the last one are on their way while a part is computed.",
    forward=step82_two_buffers.STEP,
    function=RingGradients(step82_two_buffers.STEP.share, ahead=True),
)
