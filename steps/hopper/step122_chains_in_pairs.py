"""Step 122: steps 120 and 121 together, each where it pays.

Step 120 has two SMs share what TMA brings, and step 121 takes maxima in four chains. Neither needs the other. Blocks
come in pairs at head_dim 128 alone, from 2,048 queries on, and under a causal mask from 8,192 on. Elsewhere step 120 is
slower than step 39 on most problems, or no faster.
"""

from dataclasses import replace

from steps.core.problems import FULL
from steps.hopper import step120_kv_multicast, step121_four_chains
from steps.hopper.variant import Roles

LOOP = replace(step121_four_chains.LOOP, stay=replace(step120_kv_multicast.STAY, pairs="by rule"))

STEP = step121_four_chains.STEP.evolve(
    number=122,
    name="chains_in_pairs",
    title="Four chains, and one copy for two SMs",
    change="Where it pays blocks come in clusters of two that share copies, as in step 120.",
    default_problem=FULL,
    roles=Roles(registers=240, loop=LOOP),
)
