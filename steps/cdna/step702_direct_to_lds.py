"""Step 702: direct-to-LDS copies.

gfx950 can copy 16 bytes a lane from memory to LDS, past the registers (buffer_load_dwordx4 ... lds). The copy goes on
by itself, as cp.async does on NVIDIA's: a kernel begins it, commits what it has begun as a group, and waits later until
so many groups are left. So LDS gets two tiles of K and of V: one is used while the next one comes.

Three things are AMD's own. A wave waits for its own copies only, so that all waves must meet behind the wait; the
compiler sees to that. The lanes of one copy must fill 1024 bytes in a row, as the hardware knows one address in LDS for
the whole wave. Padding could only stand behind these; a swizzle that stays within a row goes with them: chunks of 16
bytes change places, and the lanes exchange their addresses in memory instead. With 64 banks of 4 bytes, 16 lanes that
read 16 bytes of different rows of K find them in different banks. Reads of V, which are transposed, meet four rows that
follow each other, and find them in the same banks still (``tutorial_lib.layouts``, a model). And the kernel says
itself when it has waited, by ``load_shared_relaxed``, and when all waves have read a tile, by a barrier, before the
next copy overwrites it. Triton 3.9 would see to both: with ordinary reads and without that barrier it makes the same
code. Before, it waited for all copies in front of every ordinary read of LDS.

What to expect: memory's latency is hidden behind an iteration of the loop, and no register holds what only passes
through.

``scaled_query``, inside this step: Q scaled once, before the loop.

So far every score was multiplied by the scale, in every iteration: a fused multiply-add that also subtracts the
maximum. Q is the same in all iterations, and much smaller than all scores together. Multiplied by the scale before the
loop, and rounded to 16 bits again, it gives scores that are scaled already. The maximum of a row needs no
multiplication then, and the exponent only a subtraction.

What to expect: the subtraction takes as long as the multiply-add did. What is saved is little, the multiplication of
the maxima. The price is one more rounding of Q. Its effect grows with the scores, and with four times the usual scale
outputs would be further off than the rule of correctness allows. So beyond twice the usual scale, 1 / sqrt(D), the
scores are multiplied as before. But inputs four times as large do the same, in either dtype, and no kernel knows how
large its inputs are. So no later step scales Q.

``vote``, inside this step: the output is rescaled only when a wave votes for it.

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
which are more instructions than the multiplications were. So it has no number: on paper it loses, until somebody finds
a way to vote without these moves. On Hopper, without such moves, a vote of each warp was measured
(``steps/trials/warp_vote.py``), and is not faster either.
"""

from steps.cdna import step701_mfma
from steps.cdna.kernel import STRAIGHT
from steps.cdna.softmax import BY_VOTE, SCALE_QUERY
from steps.cdna.variant import Transfer

STEP = step701_mfma.STEP.evolve(
    number=702,
    name="direct_to_lds",
    title="Direct-to-LDS",
    change="Tiles go straight to LDS, swizzled: the next one is copied while this one is used.",
    transfer=Transfer(STRAIGHT, stages=2, swizzle=True),
)

SCALED_QUERY = STEP.evolve(
    name="scaled_query",
    title="Q scaled once",
    change="Q is multiplied by the scale once, before the loop, instead of every score.",
    inside="direct_to_lds",
    scaling=SCALE_QUERY,
)

VOTE = STEP.evolve(
    name="vote",
    title="Rescaled by a vote",
    change="A wave rescales its output only if some row's maximum has grown by more than a factor of 2^8.",
    inside="direct_to_lds",
    rescaling=BY_VOTE,
)

INSIDE = (SCALED_QUERY, VOTE)
