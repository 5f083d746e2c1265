"""Step 53: two warp groups that compute each for itself.

So far the warp groups went through a turn together, and where one took exponentials so did the other. Now each is a
part with 64 keys of its own, and half of dQ, which it computes a turn later. Parts may be up to a turn apart: while one
takes exponentials, the other's products keep the tensor cores busy. They meet only where they exchange dS.
"""

from steps.backward_hopper import step52_reduction

STEP = step52_reduction.STEP.evolve(
    number=53,
    name="groups_apart",
    title="Warp groups on their own",
    change="Each warp group has 64 keys and half of dQ, computed a turn later, and waits for the other's dS alone.",
    parts=2,
)
