"""Step 86: the gradients of step ring: the sums of dK and dV travel behind their keys and values.

Keys and values go round as in the forward pass. What a rank's queries add to their gradients is added to sums that
follow a turn behind, until they are at home. There the owner adds what its own queries give, which it computes last. A
part is computed with the log-sum-exp and the output over *all* keys, so that its weights are right, and nothing has to
be put together but sums.
"""

from steps.parallel import step81_ring, step85_gather_gradients
from steps.parallel.ring import RingGradients

STEP = step85_gather_gradients.STEP.evolve(
    number=86,
    name="ring_gradients",
    title="Gradients in a ring",
    change="Keys, values and the sums of their gradients go round the ranks.",
    share=step81_ring.STEP.share,
    forward=step81_ring.STEP,
    function=RingGradients(step81_ring.STEP.share, ahead=False),
)
