"""Step 801: keys and values go round in a ring, a part at a time.

A rank sends the part it has to the next rank, and gets one from the rank before. After as many iterations as there are
ranks it has seen all keys, and never held more than two parts beside its own. What it computes of each part is put
together by the parts' log-sum-exp. Here it waits for a part before it computes, and every iteration takes both times.

``ring_gradients``, inside this step: the gradients of step ring: the sums of dK and dV travel behind their keys and
values.

Keys and values go round as in the forward pass. What a rank's queries add to their gradients is added to sums that
follow an iteration behind, until they are at home. There the owner adds what its own queries give, which it computes
last. A part is computed with the log-sum-exp and the output over *all* keys, so that its weights are right, and nothing
has to be put together but sums.
"""

from steps.parallel import step800_gather
from steps.parallel.ring import Ring, RingGradients
from steps.parallel.shares import IN_ORDER

STEP = step800_gather.STEP.evolve(
    number=801,
    name="ring",
    title="A ring",
    change="Keys and values go around the ranks, one part an iteration; partial results are merged by log-sum-exp.",
    share=IN_ORDER,
    function=Ring(IN_ORDER, ahead=False),
)

RING_GRADIENTS = step800_gather.GATHER_GRADIENTS.evolve(
    name="ring_gradients",
    title="Gradients in a ring",
    change="Keys, values and the sums of their gradients go round the ranks.",
    inside="ring",
    share=STEP.share,
    forward=STEP,
    function=RingGradients(STEP.share, ahead=False),
)

INSIDE = (RING_GRADIENTS,)
