"""Step 100: shared memory by hand.

cuTile's compiler hides shared memory and warps. In this part they are ours, and we begin again after naive, as a first
CUDA kernel would: tiles of Q, K and V are staged in shared memory as they lie in memory, one tile at a time, and the
four warps share a tile of scores by its keys (split-KV): each warp multiplies all queries with a quarter of the keys.
Every row's maximum and sum must then be exchanged between warps, and so must the weights, of which each warp needs all.
"""

from steps.core.problems import HEADLINE
from steps.gluon.kernel import fmha
from steps.gluon.skeleton import GluonStep
from steps.gluon.variant import Schedule, Warps, no_swizzle
from steps.reference import step001_naive

SPLIT_KV = Warps(rows=1, columns=4)

STEP = GluonStep(
    number=100,
    name="explicit",
    title="Gluon, explicit SMEM",
    change="A new kernel in Gluon: tiles staged in shared memory as they lie, keys split over warps, one stage.",
    previous=step001_naive.STEP,
    default_problem=HEADLINE,
    shared_layout=no_swizzle,
    warps=SPLIT_KV,
    stages=1,
    schedule=Schedule(fmha),
)
