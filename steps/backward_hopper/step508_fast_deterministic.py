"""Step 508: in a fixed order, with what steps deferred_fence to delta_accumulator found.

Step two_dq_writers adds to dQ always in the same order. Its blocks compute as those of step newest_first do, and adders
add beside that. So what makes an iteration shorter in steps deferred_fence to delta_accumulator helps it, too. Step
deferred_reduce_add does not go together with turns: there a warp of its own asks TMA already.

To expect, as a hypothesis: as much as those steps gained, unless blocks wait for each other. What a block gains is lost
if it then waits for the one before it.

``dq_writer_warp``, inside this step: a warp adds to dQ in order.

In step deterministic the warps that compute wait for their block's turn at every tile of queries, and count their block
at the tile before. That is a load from global memory, a meeting of all warps and an atomic addition, an iteration,
between products.

Here a warp of the producer's warpgroup does that, which had nothing to do. The warps that compute store dQ in shared
memory and go on; they wait only where TMA has not read what they stored an iteration ago. The warp that adds also
counts the block as soon as TMA has written global memory, where step deterministic counts it an iteration later, so the
next block waits less. FlashAttention-3 has such a warp, too (https://github.com/Dao-AILab/flash-attention, hopper/).

At head_dim 256 dQ is added from registers, not by TMA, and nothing changes.

To expect, as a hypothesis: nearly the speed of step conflict_free_layout, but for the sections. A block starts to add
later than the one before it, by the time that its counting takes; from then on they go on side by side.

``deterministic_l2_aware``, inside this step: in order, without a mask, with heads side by side.

In step dq_writer_warp the blocks of a head begin one right after the other, and without a mask they all begin with the
first tile of queries. A block may add to it when the one before has, and learns of that by way of global memory. If
that takes as long as a block takes for a tile, the last block of a head begins to add as many tiles late as there are
blocks before it. Meanwhile it can compute one tile ahead, and no more.

Here blocks begin in sections of heads, as in step l2_aware_lpt: first the block with the first keys of every head of a
section, then those with the next keys. So a block begins when the one before it in its head has been at work for a
while. It still waits for blocks with lower numbers alone, which have begun.

To expect, as a hypothesis: what was lost to these waits is gained where there is no mask.

Under a causal mask nothing changes: the block with the last keys comes first, and has the fewest tiles.

What came since step dq_writer_warp is in here, too, where it goes together with turns: whole lines at head_dim 256
(step coalesced_atomics), kernels that begin early, and the newest rows first.

``two_dq_writers``, inside this step: two warps add in order.

The warp that adds in step dq_writer_warp does one thing after the other for every tile of queries. It asks global
memory whether its block's turn has come, waits for the sums, lets TMA add them, waits until TMA has written global
memory, and tells the next block. Only then does it see to the next tile. If these waits take longer together than the
warps that compute need for a tile, these wait for the adder at every tile.

Here two warps add, each every other tile. While one waits for global memory, the other sees to the next tile. Every
tile has a count of its own, so the order in which blocks add to it stays the same.

At head_dim 256 dQ is added from registers, and the warps that compute passed tiles on themselves, behind a fence. Now
each warpgroup has a warp that does this for it, as soon as the warpgroup has added. The warpgroups still ask for
their turn themselves.

To expect, as a hypothesis: the more is gained, the less time a tile takes, so most at head_dim 128. There a tile has 64
queries. At head_dim 64 it has 128, and twice as many exponentials.
"""

from steps.backward_hopper import adding, lib, products, rows, spare, step503_deterministic, step504_backward_ping_pong
from steps.core.problems import standard
from steps.hopper.lib import NO_TURNS

DQ_WRITER_WARP = step504_backward_ping_pong.CONFLICT_FREE_LAYOUT.evolve(
    name="dq_writer_warp",
    title="A dQ-writer warp",
    change="A dedicated warp waits until its block may add, has TMA add to dQ, and lets the next block go.",
    inside="fast_deterministic",
    generation=spare.fmha_backward,
    sequence=adding.IN_ORDER,
    sections=False,
    helpers=adding.ADDER,
)

DETERMINISTIC_L2_AWARE = DQ_WRITER_WARP.evolve(
    name="deterministic_l2_aware",
    title="Deterministic, L2-aware",
    change="Without a mask, blocks start in groups of heads, so that a block may add as soon as it is ready.",
    inside="fast_deterministic",
    sections=True,
    wide_adding=adding.LINES,
    begin=lib.EARLY,
    line_of_block=rows.last_head_first,
    default_problem=standard(4096, causal=False),
)

TWO_DQ_WRITERS = DETERMINISTIC_L2_AWARE.evolve(
    name="two_dq_writers",
    title="Two dQ-writer warps",
    change="Two warps add to dQ, each to every other tile. At head_dim 256 two count what the warpgroups have added.",
    inside="fast_deterministic",
    helpers=adding.TWO_ADDERS,
    wide_helpers=adding.PASS_ON,
)

STEP = TWO_DQ_WRITERS.evolve(
    number=508,
    name="fast_deterministic",
    previous=step503_deterministic.STEP,
    title="Deterministic, and fast",
    change="Dedicated warps add to dQ in a fixed order, and blocks start in the order in which they add.",
    fork=True,
    turns=NO_TURNS,
    fence=products.FENCE_BEHIND,
    gradient=products.FROM_ROW_SUMS,
    default_problem=standard(4096, causal=False),
)

INSIDE = (DQ_WRITER_WARP, DETERMINISTIC_L2_AWARE, TWO_DQ_WRITERS)
