"""Step 122: steps 120 and 121 together.

Step 120 has two SMs share what TMA brings, and step 121 takes maxima in four chains. Neither needs the other.
"""

from dataclasses import replace

from steps.core.problems import HEADLINE
from steps.hopper import step120_kv_multicast, step121_four_chains
from steps.hopper.variant import Roles

STEP = step121_four_chains.STEP.evolve(
    number=122,
    name="chains_in_pairs",
    title="Four chains, and one copy for two SMs",
    change="Blocks come in clusters of two that share copies, as in step 120.",
    default_problem=HEADLINE,
    roles=Roles(registers=240, loop=replace(step121_four_chains.LOOP, stay=step120_kv_multicast.STAY)),
)
