"""Step 88: the gradients of step zigzag, with the same two pieces on every rank.

The blocks of scores are those of the forward pass, so that the work is as even as there.
"""

from steps.parallel import step83_zigzag, step87_two_buffers_gradients
from steps.parallel.ring import RingGradients

STEP = step87_two_buffers_gradients.STEP.evolve(
    number=88,
    name="zigzag_gradients",
    title="Gradients of an early and a late piece",
    change="Every rank holds an early and a late piece, as in the forward pass.",
    share=step83_zigzag.STEP.share,
    forward=step83_zigzag.STEP,
    function=RingGradients(step83_zigzag.STEP.share, ahead=True),
)
