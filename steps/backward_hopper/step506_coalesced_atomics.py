"""Step 506: coalesced atomics. At head_dim 256 dQ is added by whole lines.

At head_dim 256 shared memory has no room for dQ, and warps add it from registers, as in step vectorized_atomics: a lane
adds four sums beside each other. wgmma leaves 16 columns of a row in four lanes. So an instruction of a warp adds 64
bytes in each of eight rows, and touches eight lines of 128 bytes.

Here lanes exchange what they have, by shuffles, such that eight neighbouring lanes have 32 columns of a row. An
instruction then adds 128 bytes in each of four rows: as many bytes, in half as many lines.

Where TMA adds dQ nothing changes.

``cta_per_query_head``, inside this step: with grouped heads, a block has one query head.

A block of step fused_pre_post has the keys of a kv head, and the queries of all heads that share it, one head after the
other. So dK and dV stay in its registers to the end. But under a causal mask blocks with the last keys have few queries
of each head, and soon are several heads ahead of those with the first keys. Blocks that run at the same time then read
Q and dO of many heads, and add to dQ of many, and as a hypothesis L2 does not hold them. Sections made it worse (step
l2_aware_lpt).

Here a block has one query head, as without groups. Under a mask blocks come in sections, and spare warps follow the
rule of step fused_pre_post. Each block adds what it has for dK and dV to sums in global memory, in float32, where those
of the other heads of its group add, too. So dK and dV differ in their last bits from run to run. A small kernel rounds
them. flash-attn-4 does likewise (``dk_accum``, https://github.com/Dao-AILab/flash-attention).

Where a block would take few iterations for a head (``skeleton.ITERATIONS_APART``) nothing changes, unless blocks for
whole groups are too few to keep all SMs at work; nor without grouped heads.

``joint_release``, inside this step: one arrival releases two slots.

At the same point of every iteration a warpgroup tells two things: the producer, that it has multiplied dO and its slot
may be filled; and the other warpgroup, that it has multiplied dS of the iteration before, whose slot may be written.
Each takes an mbarrier, and in front of each the compiler lets the four warps meet (BAR.SYNC): all must have come so far
before one thread tells it.

Here the word about dO stands for both. Who writes dS waits for the barrier that the producer waits for.

At head_dim 256 warpgroups tell each other other things, and nothing changes.

``k_registers``, inside this step: K in registers.

wgmma reads its second factor from shared memory, and the first one from there or from registers. Each warpgroup
multiplies its 64 keys by every tile of queries that passes by, and reads K from shared memory each time. But K does not
change. Here a warpgroup loads it once, and multiplies it from registers.

At head_dim 64 all of K takes 16 registers of a thread. There are none left, so something else makes room: the weights.
They wait for their gradient in float32, though dV's product has them in 16 bits already. Here they wait in 16 bits, and
dS is computed from these. That rounds dS once more; its error stays below the limit that holds for all steps.

At head_dim 128 half of K takes as many. Without a mask they are found: the warps that multiply keep what step
fused_pre_post gives to the spare warps, and these do half as many rows at a time. With a mask the loop would spill, and
nothing changes. At head_dim 256 the sums alone fill the registers.

``tma_zero_fill``, inside this step: where sequences are short, TMA clears the sums for dQ.

With 1,024 queries and a causal mask spare warps would not keep pace with the blocks (step fused_pre_post). So two small
kernels do all that is small there. Half of the bytes of the first one are zeros, for the sums that dQ is added to.

Zeros need no loads, and TMA can write them. Here one spare warp fills a buffer in shared memory with zeros, once. It
asks TMA to store the buffer again and again, for its block's share of the sums of a head whose blocks begin later. TMA
writes them while the block multiplies. What is left to the kernel are the first heads, and what it computes for each
query.

Where spare warps do all, and at head_dim 256, nothing changes.
"""

from steps.backward_hopper import adding, products, spare, step505_fused_pre_post
from steps.core.problems import standard
from tutorial_lib.problem import Problem

CTA_PER_QUERY_HEAD = step505_fused_pre_post.STEP.evolve(
    name="cta_per_query_head",
    title="One CTA a query head",
    change="With grouped heads a block has one query head, and adds its dK and dV to those of the group.",
    inside="coalesced_atomics",
    cta_per_query_head=True,
    default_problem=Problem(batch=4, heads=64, kv_heads=8, seq_len_q=4096, seq_len_kv=4096, head_dim=128, causal=True),
)

JOINT_RELEASE = CTA_PER_QUERY_HEAD.evolve(
    name="joint_release",
    title="One arrival frees two slots",
    change="One arrival frees the slots of dS and of dO: one synchronization less an iteration.",
    inside="coalesced_atomics",
    exchange=products.WITH_D_OUTPUT,
)

K_REGISTERS = JOINT_RELEASE.evolve(
    name="k_registers",
    title="K from registers",
    change="Warpgroups keep K, or half of its columns, in registers, and read less of shared memory.",
    inside="coalesced_atomics",
    keys_64=products.ALL_KEPT,
    keys_unmasked=products.HALF_KEPT,
)

TMA_ZERO_FILL = K_REGISTERS.evolve(
    name="tma_zero_fill",
    title="Zeros by TMA",
    change="Where spare warps are too slow for all small work, TMA clears the sums of later heads.",
    inside="coalesced_atomics",
    short_helpers=spare.CLEARS,
    default_problem=standard(1024, causal=True),
)

STEP = TMA_ZERO_FILL.evolve(
    number=506,
    name="coalesced_atomics",
    previous=step505_fused_pre_post.STEP,
    title="K from registers, coalesced dQ",
    change="A block has one query head, K stays in registers, and at head_dim 256 dQ is added in whole lines.",
    wide_adding=adding.LINES,
    default_problem=Problem(batch=4, heads=16, seq_len_q=4096, seq_len_kv=4096, head_dim=256, causal=True),
)

INSIDE = (CTA_PER_QUERY_HEAD, JOINT_RELEASE, K_REGISTERS, TMA_ZERO_FILL)
