"""Step 502: two warp groups that compute each for itself.

So far the warp groups went through a turn together, and where one took exponentials so did the other. Now each is a
part with 64 keys of its own and half of dQ, and waits for the other only where they exchange dS. It computes dQ a turn
later than dK, so that parts may be a turn apart: while one takes exponentials, the other's products keep the tensor
cores busy. At head_dim 64 there is room for tiles of 128 queries. At head_dim 256 a block has 64 keys, and the parts
have roles: one computes the scores and dV, the other the scores' gradients and dK (``roles``).
"""

from steps.backward_hopper import apart, step501_reduction

STEP = step501_reduction.STEP.evolve(
    number=502,
    name="groups_apart",
    title="Warp groups on their own",
    change="Each warp group has 64 keys and half of dQ, computed a turn later, and waits for the other's dS alone.",
    generation=apart.fmha_backward,
)
