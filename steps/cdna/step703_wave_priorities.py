"""Step 703: stages, and waves that take turns.

A wave that needs the result of its MFMA waits for it. But a SIMD holds several waves, and while one of them multiplies,
another may do its softmax. Left alone, the waves of a block do the same at the same time, as they meet at the same
barriers. So the iteration of the loop is cut into three stages, scores, softmax and output, and a block gets eight
waves, two for each SIMD. The first four are one stage ahead of the others: one half multiplies while the other does its
softmax. All meet at the end of every stage, which keeps the distance. The stages with products have the higher priority
(s_setprio): where both halves could issue an instruction, the products' go first.

``warp_pipeline_stage`` marks the stages, and the compiler sets the barriers, the priorities, and the extra barrier by
which the second half begins late. What it does not see is that a slot in LDS may still be read by the half that is
behind: LDS holds three tiles of K and of V, and the one that is filled is the one that both halves have left. And the
half that is ahead may read a tile only when the other half has waited for its copies, too; the wait stands two barriers
in front of the read. It stands between two stages, so that all waves meet once for it and for the end of the stage.

What to expect: the products of one half hide the softmax of the other. The price is LDS for three tiles, 256 queries a
block, and three barriers an iteration. With eight waves a lane has at most 256 registers, so that head_dim 256 takes
half as many keys an iteration. There Triton 3.9 sets half of these registers aside for sums (AGPRs), and moves some of
the rest to memory and back. Before, all fitted.
"""

from steps.cdna import step702_direct_to_lds
from steps.cdna.variant import Stages

STEP = step702_direct_to_lds.STEP.evolve(
    number=703,
    name="wave_priorities",
    title="Stages, wave priorities",
    change="Of eight waves, half multiply while the other half do their softmax.",
    stages=Stages(waves=8, tiles=3, products=1, softmax=0),
)
