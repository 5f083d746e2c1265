"""Step 82: the next part is on its way while this one is computed.

A rank begins to receive the next part before it computes the one it has, into a second buffer. On a GPU the exchange
has a stream of its own, which NCCL brings along. It is begun first: a kernel that fills every SM would leave it none.
Where a part takes longer to compute than to send, the exchange costs no time.
"""

from steps.parallel import step81_ring
from steps.parallel.ring import Ring
from steps.parallel.shares import IN_ORDER

STEP = step81_ring.STEP.evolve(
    number=82,
    name="two_buffers",
    title="The next part on its way",
    change="The next part is received into a second buffer while this one is computed.",
    function=Ring(IN_ORDER, ahead=True),
)
