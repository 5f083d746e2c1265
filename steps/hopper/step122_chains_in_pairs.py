"""Step 122: steps diagonal_first, kv_multicast, four_chains and even_end together.

Step diagonal_first visits the tiles of keys from the diagonal at head_dim 256 with a mask. Step kv_multicast has two SMs share what TMA
brings. Step four_chains takes maxima in four chains. Step even_end deals the tiles so that blocks end together. None of them needs
another. Blocks come in pairs at head_dim 128 alone, from 2,048 queries on, and under a causal mask from 8,192 on.
Elsewhere step kv_multicast is slower than step at_maxima on most problems, or no faster. (Among the exceptions is head_dim 160 under a
mask, where it is much faster.)

At head_dim 256 with a mask the lanes of a row also add their sums after the loop, as in step lean_sum. That step leaves
head_dim 256 out, because it was slower there. With the diagonal first it was faster in a trial, which is not among the
records. Why was not looked into.
"""

from dataclasses import replace

from steps.core.order import DEALT
from steps.core.problems import FULL
from steps.hopper import step121_four_chains
from steps.hopper.softmax import DOWNWARDS, SUM_AT_END

STEP = step121_four_chains.STEP.evolve(
    number=122,
    name="chains_in_pairs",
    title="Four chains, pairs, the diagonal first",
    change="Pairs where they pay (120), an even end (141); at head_dim 256 the diagonal first (93) and lean sums (92).",
    default_problem=FULL,
    pairs="by rule",
    order=replace(DEALT, even_end=True),
    walk=DOWNWARDS,
    sums_downwards=SUM_AT_END,
)
