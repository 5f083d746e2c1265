"""Step 133: with grouped heads, a block has one query head.

A block of step spare_warps has the keys of a kv head, and the queries of all heads that share it, one head after the other. So
dK and dV stay in its registers to the end. But under a causal mask blocks with the last keys have few queries of each
head, and soon are several heads ahead of those with the first keys. Blocks that run at the same time then read Q and dO
of many heads, and add to dQ of many, and as a hypothesis L2 does not hold them. Sections made it worse (step in_sections).

Here a block has one query head, as without groups. Under a mask blocks come in sections, and spare warps follow the
rule of step spare_warps. Each block adds what it has for dK and dV to sums in global memory, in float32, where those of the
other heads of its group add, too. So dK and dV differ in their last bits from run to run. A small kernel rounds them.
flash-attn-4 does likewise (``dk_accum``, https://github.com/Dao-AILab/flash-attention).

Where a block would take few turns for a head (``skeleton.TURNS_APART``) nothing changes, nor without grouped heads, nor
at head_dim 256.
"""

from steps.backward_hopper import step131_spare_warps
from tutorial_lib.problem import Problem

STEP = step131_spare_warps.STEP.evolve(
    number=133,
    name="heads_apart",
    title="A block for a query head",
    change="With grouped heads a block has one query head, and adds its dK and dV to those of the group.",
    fork=True,
    heads_apart=True,
    default_problem=Problem(batch=4, heads=64, kv_heads=8, seq_len_q=4096, seq_len_kv=4096, head_dim=128, causal=True),
)
