"""Step 138: a kernel begins before the one before it has ended.

A call launches three kernels, and each waits until all of the one before has ended, and what it has written is there.
When its last blocks end, SM after SM falls idle. Then comes the next kernel, with barriers to set up and the first
tiles to fetch, before it multiplies.

A kernel can be launched such that it begins early: when the one before lets it, its blocks take SMs that are free. They
do what depends on nobody, here barriers, K and V. Then they wait until all of the kernel before has ended
[PTX ISA: griddepcontrol; the CUDA guide calls it programmatic dependent launch].

The first kernel of a call waits as before, as what it reads may come from anybody.
"""

from steps.backward_hopper import lib, step137_whole_lines
from steps.core.problems import standard

STEP = step137_whole_lines.STEP.evolve(
    number=138,
    name="early",
    title="Kernels that begin early",
    change="The kernels of a call begin before the one before has ended; they wait for it where they need to.",
    fork=True,
    begin=lib.EARLY,
    default_problem=standard(1024, causal=True),
)
