"""Step 500: the backward pass with TMA and wgmma, and transposed scores (S^T).

A block owns 128 keys. Tiles of 64 queries pass by, fetched by a producer warp; two warpgroups of 64 keys each compute.
Scores are computed as [key, query], K Q^T in place of Q K^T: what wgmma leaves in a warpgroup's registers is then,
once rounded, the first factor of the product that adds to dV, and dS that of dK. Only dQ adds up over keys, and takes
dS from shared memory. Blocks add their parts of dQ in float32 from registers, two neighbouring numbers at a time.

Every product is waited for before anything else begins.
"""

from steps.backward_cutile import step404_longest_first
from steps.backward_hopper.skeleton import HopperGradients
from steps.core.problems import standard

STEP = HopperGradients(
    number=500,
    name="transposed_scores",
    title="TMA, wgmma, S^T",
    change="A new kernel in Gluon for sm_90: a block owns 128 keys, and multiplies weights and dS from registers.",
    previous=step404_longest_first.STEP,
    default_problem=standard(causal=True, dtype="bfloat16"),
)
