"""Step 117: the soft cap of step soft_cap, in the kernel for Hopper.

Every score goes through a hyperbolic tangent when its product is there, in front of the mask. That is an exponential
and a reciprocal more, both of which the special function unit (MUFU) computes, beside the exponential of the softmax.
"""

from steps.everyday import step109_soft_cap, step116_hopper_varlen

STEP = step116_hopper_varlen.STEP.evolve(
    number=117,
    name="hopper_soft_cap",
    title="A soft cap, for Hopper",
    change="Scores go through a hyperbolic tangent before the mask; the cap takes the scale's place.",
    default_problem=step109_soft_cap.STEP.default_problem,
    takes=("window", "softcap", "lengths"),
)
