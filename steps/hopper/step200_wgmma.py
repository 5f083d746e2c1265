"""Step 200: a kernel for Hopper: TMA copies, warpgroups multiply from shared memory.

The Gluon steps move every operand through registers: cp.async brings 16 bytes a lane into shared memory, ldmatrix reads
fragments back, mma.sync multiplies them, and on an H100 they end at half the rate of a large matrix product. ``wgmma``
asks less of the warps: four of them together multiply 64 rows by a whole tile, and both factors may stay in
shared memory, swizzled as TMA leaves them. One thread asks TMA for a tile, and an mbarrier tells when it has arrived.
"""

from steps.core.problems import HEADLINE
from steps.gluon import step104_gluon_larger_tile
from steps.hopper.skeleton import HopperStep

STEP = HopperStep(
    number=200,
    name="wgmma",
    title="TMA and wgmma",
    change="A new kernel in Gluon for sm_90: TMA fetches tiles, and two warpgroups multiply from shared memory.",
    previous=step104_gluon_larger_tile.STEP,
    default_problem=HEADLINE,
)
