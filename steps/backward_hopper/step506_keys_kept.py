"""Step 506: K in registers.

wgmma reads its second factor from shared memory, and the first one from there or from registers. Each warp group
multiplies its 64 keys by every tile of queries that passes by, and reads K from shared memory each time. But K does not
change. Here a warp group loads it once, and multiplies it from registers.

At head_dim 64 all of K takes 16 registers of a thread. There are none left, so something else makes room: the weights.
They wait for their gradient in float32, though dV's product has them in 16 bits already. Here they wait in 16 bits, and
dS is computed from these. That rounds dS once more; its error stays below the limit that holds for all steps.

At head_dim 128 half of K takes as many. Without a mask they are found: the warps that multiply keep what step
spare_warps gives to the spare warps, and these do half as many rows at a time. With a mask the loop would spill, and
nothing changes. At head_dim 256 the sums alone fill the registers.

``heads_apart``, inside this step: with grouped heads, a block has one query head.

A block of step spare_warps has the keys of a kv head, and the queries of all heads that share it, one head after the
other. So dK and dV stay in its registers to the end. But under a causal mask blocks with the last keys have few queries
of each head, and soon are several heads ahead of those with the first keys. Blocks that run at the same time then read
Q and dO of many heads, and add to dQ of many, and as a hypothesis L2 does not hold them. Sections made it worse (step
in_sections).

Here a block has one query head, as without groups. Under a mask blocks come in sections, and spare warps follow the
rule of step spare_warps. Each block adds what it has for dK and dV to sums in global memory, in float32, where those of
the other heads of its group add, too. So dK and dV differ in their last bits from run to run. A small kernel rounds
them. flash-attn-4 does likewise (``dk_accum``, https://github.com/Dao-AILab/flash-attention).

Where a block would take few turns for a head (``skeleton.TURNS_APART``) nothing changes, nor without grouped heads, nor
at head_dim 256.

``freed_together``, inside this step: one word frees two places.

At the same point of every turn a warp group tells two things: the producer, that it has multiplied dO and its place may
be filled; and the other warp group, that it has multiplied dS of the turn before, whose place may be written. Each
takes an mbarrier, and in front of each the compiler lets the four warps meet (BAR.SYNC): all must have come so far
before one thread tells it.

Here the word about dO stands for both. Who writes dS waits for the barrier that the producer waits for.

At head_dim 256 warp groups tell each other other things, and nothing changes.
"""

from steps.backward_hopper import products, step505_spare_warps
from tutorial_lib.problem import Problem

HEADS_APART = step505_spare_warps.STEP.evolve(
    name="heads_apart",
    title="A block for a query head",
    change="With grouped heads a block has one query head, and adds its dK and dV to those of the group.",
    inside="keys_kept",
    heads_apart=True,
    default_problem=Problem(batch=4, heads=64, kv_heads=8, seq_len_q=4096, seq_len_kv=4096, head_dim=128, causal=True),
)

FREED_TOGETHER = HEADS_APART.evolve(
    name="freed_together",
    title="One word frees two places",
    change="The place of dS is free when that of dO is: warps meet once less in a turn.",
    inside="keys_kept",
    exchange=products.WITH_D_OUTPUT,
)

STEP = FREED_TOGETHER.evolve(
    number=506,
    name="keys_kept",
    previous=step505_spare_warps.STEP,
    title="K in registers",
    change="A block has one query head; warp groups keep K, or half of its columns, in registers, and read less.",
    fork=True,
    keys_64=products.ALL_KEPT,
    keys_unmasked=products.HALF_KEPT,
)

INSIDE = (HEADS_APART, FREED_TOGETHER)
