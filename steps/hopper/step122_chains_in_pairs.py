"""Step 122: steps 93, 120 and 121 together.

Step 93 visits the tiles of keys from the diagonal at head_dim 256 with a mask. Step 120 has two SMs share what TMA
brings. Step 121 takes maxima in four chains. None of them needs another. Blocks come in pairs at head_dim 128 alone,
from 2,048 queries on, and under a causal mask from 8,192 on. Elsewhere step 120 is slower than step 39 on most
problems, or no faster.
"""

from dataclasses import replace

from steps.core.problems import FULL
from steps.hopper import step121_four_chains
from steps.hopper.variant import Roles, Room, Stay

STAY = Stay(linked=True, ends="own, diagonal first", room=Room(), pairs="by rule")
LOOP = replace(step121_four_chains.LOOP, stay=STAY)

STEP = step121_four_chains.STEP.evolve(
    number=122,
    name="chains_in_pairs",
    title="Four chains, pairs, the diagonal first",
    change="Where it pays blocks come in pairs (step 120); at head_dim 256 the diagonal comes first (step 93).",
    default_problem=FULL,
    roles=Roles(registers=240, loop=LOOP),
)
