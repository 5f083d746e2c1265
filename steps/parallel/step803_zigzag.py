"""Step 803: every rank holds an early and a late piece of the sequence, so that all have the same work.

Under a causal mask the first rank of a ring needs no part but its own, and the last one needs all: in every iteration
but the first somebody computes a whole part, and whoever computes nothing waits for them. With pieces r and 2N - 1 - r
on rank r of N, every rank computes half the scores of every part, and an iteration takes half as long. Brandon et al.
2023, "Striped Attention", https://arxiv.org/abs/2311.09431, share out single tokens in turns for the same reason;
pieces need no mask off the diagonal, and are what PyTorch's context parallelism and Llama 3
(https://arxiv.org/abs/2407.21783, section 3.3.2) take.

``zigzag_gradients``, inside this step: the gradients of step zigzag, with the same two pieces on every rank.

The blocks of scores are those of the forward pass, so that the work is as even as there.
"""

from steps.parallel import step802_double_buffering
from steps.parallel.ring import Ring, RingGradients
from steps.parallel.shares import ZIGZAG

STEP = step802_double_buffering.STEP.evolve(
    number=803,
    name="zigzag",
    title="An early and a late piece",
    change="Every rank holds an early and a late piece: under a causal mask all have the same work in every iteration.",
    share=ZIGZAG,
    function=Ring(ZIGZAG, ahead=True),
)

ZIGZAG_GRADIENTS = step802_double_buffering.DOUBLE_BUFFERING_GRADIENTS.evolve(
    name="zigzag_gradients",
    title="Gradients of an early and a late piece",
    change="Every rank holds an early and a late piece, as in the forward pass.",
    inside="zigzag",
    share=STEP.share,
    forward=STEP,
    function=RingGradients(STEP.share, ahead=True),
)

INSIDE = (ZIGZAG_GRADIENTS,)
