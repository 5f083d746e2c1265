"""Step 151: the gradients of step copy_engines: copy engines send the parts, and the sums of their gradients."""

from steps.parallel import step88_zigzag_gradients, step150_copy_engines
from steps.parallel.copying import CopyEngines

STEP = step88_zigzag_gradients.STEP.evolve(
    number=151,
    name="copy_engines_gradients",
    title="Gradients that copy engines send",
    change="Copy engines send the parts and the sums, as in the forward pass.",
    forward=step150_copy_engines.STEP,
    ranks=CopyEngines,
)
