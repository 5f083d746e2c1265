"""Step 132: a warp adds to dQ in turn.

In step in_turn the warps that compute wait for their block's turn at every tile of queries, and count their block at the
tile before. That is a load from global memory, a meeting of all warps and an atomic addition, a turn, between products.

Here a warp of the producer's warp group does that, which had nothing to do. The warps that compute store dQ in shared
memory and go on; they wait only where TMA has not read what they stored a turn ago. The warp that adds also counts the
block as soon as TMA has written global memory, where step in_turn counts it a turn later, so the next block waits less.
FlashAttention-3 has such a warp, too (https://github.com/Dao-AILab/flash-attention, hopper/).

At head_dim 256 dQ is added from registers, not by TMA, and nothing changes.

To expect, as a hypothesis: nearly the speed of step even_banks, but for the sections. A block starts to add later than the one
before it, by the time that its counting takes; from then on they go on side by side.
"""

from steps.backward_hopper import adding, spare, step58_even_banks

STEP = step58_even_banks.STEP.evolve(
    number=132,
    name="adder",
    title="A warp adds in turn",
    change="Blocks add to dQ in turn again; a warp of its own waits for the turn, has TMA add, and passes it on.",
    fork=True,
    generation=spare.fmha_backward,
    sequence=adding.IN_TURN,
    sections=False,
    helpers=adding.ADDER,
)
