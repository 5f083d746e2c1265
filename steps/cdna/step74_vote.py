"""Step 74, a fork from step scaled_query: the output is rescaled only when a wave votes for it.

Whenever the maximum of a row grows, what was summed so far must be multiplied by 2^(old - new). But any number may be
subtracted from the exponents, as long as nothing overflows: it cancels in the end. So a row keeps its old maximum until
some score exceeds it by more than 8 (FlashAttention-4, Zadouri et al. 2026, https://arxiv.org/abs/2603.05451, does so
on Blackwell). Weights are then up to 2^8, which float16 and the sums in float32 hold easily. For most rows the maximum
settles in the first tiles, and then the factor is 1.

Who decides? One condition for the whole block would go through LDS and a barrier. Instead every wave votes by itself:
a comparison leaves a bit for each of its 64 lanes in a scalar register, and a branch jumps over the multiplications if
all bits are zero. Gluon has no name for that, so these are instructions in plain text, for 16 registers at a time.

What to expect: for ordinary inputs the first tile is multiplied, and later ones hardly ever. Keys whose scores grow
from tile to tile force the other branch. The simulator counts both. But the lens shows a price: the compiler cannot let
the instructions in the text work on the registers that MFMA adds to. It moves the output to other registers and back,
which are more instructions than the multiplications were. That makes it a fork: on paper it loses, until somebody finds
a way to vote without these moves. On Hopper, without such moves, a vote of each warp was measured
(``steps/trials/warp_vote.py``), and is not faster either.
"""

from steps.cdna import step73_scaled_query

STEP = step73_scaled_query.STEP.evolve(
    number=74,
    name="vote",
    title="Rescaled by a vote",
    change="A wave rescales its output only if some row's maximum has grown by more than 2^8.",
    fork=True,
    threshold=8.0,
)
