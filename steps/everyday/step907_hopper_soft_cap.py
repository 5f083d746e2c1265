"""Step 907: the soft cap of step soft_cap, in the kernel for Hopper.

Every score goes through a hyperbolic tangent when its product is there, in front of the mask. That is an exponential
and a reciprocal more, both of which the special function unit (MUFU) computes, beside the exponential of the softmax.

``hopper_varlen``, inside this step: the packed sequences of step varlen, in the kernel for Hopper.

Persistent blocks take numbers from a counter, as no list can be dealt: the lengths are known to the GPU alone. The
producer finds what a number means, by the search of step varlen, passes over numbers that mean nothing, and tells the
warps that compute. TMA is told of sequences such that it brings zeros, and drops what it stores, behind the end of the
one that a tile belongs to (``steps.hopper.packed``). The loop over the keys is as it was.
"""

from steps.everyday import step903_window, step904_varlen, step906_hopper_window

HOPPER_VARLEN = step906_hopper_window.STEP.evolve(
    name="hopper_varlen",
    title="Packed sequences, for Hopper",
    change="The producer finds the sequence of each tile, and TMA leaves out what lies behind its end.",
    inside="hopper_soft_cap",
    default_problem=step904_varlen.STEP.default_problem,
    takes=("window", "lengths"),
)

STEP = HOPPER_VARLEN.evolve(
    number=907,
    name="hopper_soft_cap",
    previous=step906_hopper_window.STEP,
    title="Packed sequences, a soft cap, for Hopper",
    change="The producer finds the sequence of each tile; scores may go through a hyperbolic tangent.",
    default_problem=step903_window.SOFT_CAP.default_problem,
    takes=("window", "softcap", "lengths"),
)

INSIDE = (HOPPER_VARLEN,)
