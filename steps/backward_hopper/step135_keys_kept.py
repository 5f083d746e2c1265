"""Step 135: K in registers.

wgmma reads its second factor from shared memory, and the first one from there or from registers. Each warp group
multiplies its 64 keys by every tile of queries that passes by, and reads K from shared memory each time. But K does not
change. Here a warp group loads it once, and multiplies it from registers.

At head_dim 64 all of K takes 16 registers of a thread. There are none left, so something else makes room: the weights.
They wait for their gradient in float32, though dV's product has them in 16 bits already. Here they wait in 16 bits, and
dS is computed from these. That rounds dS once more; its error stays below the limit that holds for all steps.

At head_dim 128 half of K takes as many. Without a mask they are found: the warps that multiply keep what step spare_warps gives
to the spare warps, and these do half as many rows at a time. With a mask the loop would spill, and nothing changes. At
head_dim 256 the sums alone fill the registers.
"""

from steps.backward_hopper import products, step134_freed_together

STEP = step134_freed_together.STEP.evolve(
    number=135,
    name="keys_kept",
    title="K in registers",
    change="Warp groups keep K, or half of its columns, in registers, and read less of shared memory.",
    fork=True,
    keys_64=products.ALL_KEPT,
    keys_unmasked=products.HALF_KEPT,
)
