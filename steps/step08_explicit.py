"""Step 8: shared memory by hand.

The compiler of steps 2 to 7 hides shared memory and warps. From here on they are ours, and we begin as a first CUDA
kernel would: tiles of Q, K and V are staged in shared memory as they lie in memory, one tile at a time, and the four
warps share a tile of scores by its keys (split-KV): each warp multiplies all queries with a quarter of the keys. Every
row's maximum and sum must then be exchanged between warps, and so must the weights, of which each warp needs all.
"""

from steps import step07_approx_division
from steps.gluon import GluonStep, Schedule, Warps, fmha, no_swizzle

SPLIT_KV = Warps(rows=1, columns=4)

STEP = GluonStep(
    number=8,
    name="explicit",
    title="Gluon, explicit SMEM",
    change="A new kernel in Gluon: tiles staged in shared memory as they lie, keys split over warps, one stage.",
    previous=step07_approx_division.STEP,
    shared_layout=no_swizzle,
    warps=SPLIT_KV,
    stages=1,
    schedule=Schedule(fmha),
)
