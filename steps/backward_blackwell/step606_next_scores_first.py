"""Step 606: in the kernel for dQ, the next tile's products come before dQ's.

In step two_cta_backward either the tensor cores work or the warps do. Here both CTAs meet when they have stored dS, as
before, and have read the scores of this tile by then. So the first CTA begins the next tile's scores, and the gradients
of its weights, at once, and dQ's product behind them. The warps get the next scores first, and compute weights and dS
while dQ's product is under way. They wait for its end before they store the next dS, which lies where this one does.

Tensor memory needs no second place for scores: these are read before the next product overwrites them.

The kernel for dK and dV stays as it is. Of a tile of Q and of dO each CTA needs two halves, and shared memory has room
for one tile of each. In the simulator TMA is busy most of that kernel's time, and the same order would leave room for
the next tiles later.
"""

from steps.backward_blackwell import queries, step605_two_cta_backward

STEP = step605_two_cta_backward.STEP.evolve(
    number=606,
    name="next_scores_first",
    title="Next scores before dQ",
    change="In the kernel for dQ, the next tile's scores begin before dQ's product, which runs under its softmax.",
    walk=queries.next_scores_first,
)
