"""Step 805: copy engines send, and no kernel.

NCCL sends with blocks of a kernel. They hold some of the SMs while they send, and the kernel that computes has dealt
tiles of queries to all SMs. A GPU also has copy engines, which move bytes beside the SMs. Here each rank copies its
part straight into the memory of the next, by a copy engine (``steps.parallel.copying``). That works among the GPUs of
one host that reach each other's memory.

``copy_engines_gradients``, inside this step: the gradients of step copy_engines: copy engines send the parts, and the
sums of their gradients.

``parallel_dynamic_scheduler``, inside this step: the kernel's blocks take their tiles one by one, so that one that
begins late delays nobody.

The kernel of step copy_engines has dealt its tiles of queries to all SMs before it starts. The deal assumes that all
SMs begin at once and are equally fast. A kernel over several GPUs begins while others still run on some SMs, and
computes while copies use the same memory. Here a block takes the next tile from a counter when it is ready for one
(``steps.hopper.lib.take_next``). Pairs of blocks, as in step kv_multicast, cannot share what each takes for itself. On
two H200 this step was no faster than step copy_engines: see its record, and the chapter on step zigzag.
"""

from steps.parallel import step803_zigzag
from steps.parallel.copying import CopyEngines

STEP = step803_zigzag.STEP.evolve(
    number=805,
    name="copy_engines",
    title="Copy engines send",
    change="Copy engines write a part into the next rank's memory, in place of NCCL's kernels, which need SMs.",
    ranks=CopyEngines,
)

COPY_ENGINES_GRADIENTS = step803_zigzag.ZIGZAG_GRADIENTS.evolve(
    name="copy_engines_gradients",
    title="Gradients that copy engines send",
    change="Copy engines send the parts and the sums, as in the forward pass.",
    inside="copy_engines",
    forward=STEP,
    ranks=CopyEngines,
)

PARALLEL_DYNAMIC_SCHEDULER = STEP.evolve(
    name="parallel_dynamic_scheduler",
    title="Dynamic scheduler on every rank",
    change="The kernel's blocks take the next tile of queries when they are ready; before, each had a list.",
    inside="copy_engines",
    taking=True,
)

INSIDE = (COPY_ENGINES_GRADIENTS, PARALLEL_DYNAMIC_SCHEDULER)
