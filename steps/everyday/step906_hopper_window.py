"""Step 906: the sliding window of step window, in the kernel for Hopper.

Nothing is told to any role but where the window begins. The producer fetches no tile of keys before the first that
somebody sees, and the warps that compute count queries and keys from that tile on: a mask asks for differences of their
numbers, which stay what they are. So the loop is the one of step at_maxima, with one more mask, which only tiles at the
left edge ask for. All parts of a block begin with the same tile; it may hide all its keys from the queries of a part.

``hopper_varlen``, inside this step: the packed sequences of step varlen, in the kernel for Hopper.

Blocks that stay take numbers from a counter, as no list can be dealt: the lengths are known to the GPU alone. The
producer finds what a number means, by the search of step varlen, passes over numbers that mean nothing, and tells the
warps that compute. TMA is told of sequences such that it brings zeros, and drops what it stores, behind the end of the
one that a tile belongs to (``steps.hopper.packed``). The loop over the keys is as it was.

``hopper_soft_cap``, inside this step: the soft cap of step soft_cap, in the kernel for Hopper.

Every score goes through a hyperbolic tangent when its product is there, in front of the mask. That is an exponential
and a reciprocal more, both of which the special function unit (MUFU) computes, beside the exponential of the softmax.
"""

from steps.everyday import step903_window, step904_varlen
from steps.hopper import step206_at_maxima

STEP = step206_at_maxima.STEP.evolve(
    number=906,
    name="hopper_window",
    title="A sliding window, for Hopper",
    change="All roles begin with the first tile of keys that somebody sees; the window has a mask at its edge.",
    fork=True,
    default_problem=step903_window.STEP.default_problem,
    takes=("window",),
)

HOPPER_VARLEN = STEP.evolve(
    name="hopper_varlen",
    title="Packed sequences, for Hopper",
    change="The producer finds the sequence of each tile that it takes, and TMA leaves out what is behind its end.",
    inside="hopper_window",
    default_problem=step904_varlen.STEP.default_problem,
    takes=("window", "lengths"),
)

HOPPER_SOFT_CAP = HOPPER_VARLEN.evolve(
    name="hopper_soft_cap",
    title="A soft cap, for Hopper",
    change="Scores go through a hyperbolic tangent before the mask; the cap takes the scale's place.",
    inside="hopper_window",
    default_problem=step903_window.SOFT_CAP.default_problem,
    takes=("window", "softcap", "lengths"),
)

INSIDE = (HOPPER_VARLEN, HOPPER_SOFT_CAP)
