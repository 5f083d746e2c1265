"""Step 116: the packed sequences of step varlen, in the kernel for Hopper.

Blocks that stay take numbers from a counter, as no list can be dealt: the lengths are known to the GPU alone. The
producer finds what a number means, by the search of step varlen, passes over numbers that mean nothing, and tells the
warps that compute. TMA is told of sequences such that it brings zeros, and drops what it stores, behind the end of the
one that a tile belongs to (``steps.hopper.packed``). The loop over the keys is as it was.
"""

from steps.everyday import step110_varlen, step115_hopper_window

STEP = step115_hopper_window.STEP.evolve(
    number=116,
    name="hopper_varlen",
    title="Packed sequences, for Hopper",
    change="The producer finds the sequence of each tile that it takes, and TMA leaves out what is behind its end.",
    default_problem=step110_varlen.STEP.default_problem,
    takes=("window", "lengths"),
)
