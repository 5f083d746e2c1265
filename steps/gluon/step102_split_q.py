"""Step 102: split-Q.

Each warp takes 16 queries and all keys, instead of all queries and a quarter of the keys. Maximum and sum of a row
then lie in four neighbouring lanes of one warp, and the scores of a warp are, register for register, what the next
product wants as its left factor. Nothing is exchanged between warps any more (FlashAttention-2, section 3.3).
"""

from steps.gluon import step101_swizzle
from steps.gluon.variant import Warps

SPLIT_Q = Warps(rows=4, columns=1)

STEP = step101_swizzle.STEP.evolve(
    number=102,
    name="split_q",
    title="Split-Q",
    change="Every warp owns rows of Q, so that no row is shared between warps.",
    warps=SPLIT_Q,
)
