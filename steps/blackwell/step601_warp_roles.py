"""Step 601: two warpgroups for the softmax, a warp for products, and a warp for copies.

As in step producer, warps get roles and meet at mbarriers alone. Since one thread begins a product, no warpgroup need
stand by while the tensor cores work: a single warp begins all products, of both groups in turn. While one group does
its softmax, the other's products run.

Two groups of 128 queries with columns of their own for weights would take 640 columns at head_dim 128, and tensor
memory has 512. So the weights lie where the scores were: a group has all scores in registers before it stores the
first weight. The next QK product then overwrites the weights, and must wait until the PV product has read them.

To expect, as a hypothesis: the tensor cores wait less, as they have two groups to work for. Each group still fetches,
rescales and stores its output before it hands over its weights, and the PV product waits for that.
"""

from steps.blackwell import step600_tensor_memory
from steps.blackwell.skeleton import ROLES

STEP = step600_tensor_memory.STEP.evolve(
    number=601,
    name="warp_roles",
    title="Warps with roles",
    change="Two warpgroups do the softmax, a warp begins all products, another asks for all tiles.",
    generation=ROLES,
)
