"""Step 303: keys in the order in which lanes have the weights.

A sum over keys may be in any order, if weights and values have the same. Of 16 keys a lane has the weights of a pair in
the first half, and of one in the second. If V has those four side by side, what the lane has is what wgmma wants, and
no lane asks another. The kernel that transposes V reads its rows in that order, for nothing.

FlashAttention-3 permutes V in the same place (Shah et al. 2024, section 3.3).
"""

from steps.fp8 import step302_pv_fp8
from steps.fp8.products import PERMUTED

STEP = step302_pv_fp8.STEP.evolve(
    number=303,
    name="permuted_keys",
    title="Permuted keys",
    change="V is transposed with its keys in the order in which lanes hold the weights, which stay where they are.",
    values=PERMUTED,
)
