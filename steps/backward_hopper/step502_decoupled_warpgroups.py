"""Step 502: decoupled warpgroups. Each of two warpgroups computes for itself.

So far the warpgroups went through an iteration together, and where one took exponentials so did the other. Now each has
64 keys of its own and half of dQ, and waits for the other only where they exchange dS. It computes dQ an iteration
later than dK, so that the two may be an iteration apart: while one takes exponentials, the other's products keep the
tensor cores busy. At head_dim 64 there is room for tiles of 128 queries. At head_dim 256 a block has 64 keys, and the
warpgroups have roles: one computes the scores and dV, the other the scores' gradients and dK (``roles``).
"""

from steps.backward_hopper import apart, step501_tma_reduce_add

STEP = step501_tma_reduce_add.STEP.evolve(
    number=502,
    name="decoupled_warpgroups",
    title="Decoupled warpgroups",
    change="Each warpgroup has 64 keys and half of dQ, an iteration later, and waits only for the other's dS.",
    generation=apart.fmha_backward,
)
