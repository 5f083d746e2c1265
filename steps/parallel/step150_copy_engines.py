"""Step 150: copy engines send, and no kernel.

NCCL sends with blocks of a kernel. They hold some of the SMs while they send, and the kernel that computes has dealt
tiles of queries to all SMs. A GPU also has copy engines, which move bytes beside the SMs. Here each rank copies its
part straight into the memory of the next, by a copy engine (``steps.parallel.copying``). That works among the GPUs of
one host that reach each other's memory.
"""

from steps.parallel import step83_zigzag
from steps.parallel.copying import CopyEngines

STEP = step83_zigzag.STEP.evolve(
    number=150,
    name="copy_engines",
    title="Copy engines send",
    change="Copy engines write a part into the next rank's memory, in place of NCCL's kernels, which need SMs.",
    ranks=CopyEngines,
)
