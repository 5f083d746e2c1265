"""Step 203: persistent blocks, and the LPT scheduler (longest processing time first).

With one block on an SM nothing hides the begin and the end of a block: the first tiles are on their way, or the output
is. Here every SM keeps one block, which gets a list of tiles of queries; the producer fetches for the next tile while
the last is still computed, and up to head_dim 128 the output leaves from shared memory of its own. The lists are made
before the launch (``steps.core.order``), so that all blocks end together, whatever the mask, and heads share L2.
"""

from steps.core.order import DEALT
from steps.core.problems import HEADLINE
from steps.hopper import step202_intra_warpgroup_overlap
from steps.hopper.conditions import next_queries_fit
from steps.hopper.lib import BEHIND_SOFTMAX
from steps.hopper.products import TO_ITS_OWN

OUTPUT_APART = step202_intra_warpgroup_overlap.STEP.evolve(
    only_for=next_queries_fit, output_to=TO_ITS_OWN, free=BEHIND_SOFTMAX
)

STEP = OUTPUT_APART.evolve(
    number=203,
    name="lpt_scheduler",
    previous=step202_intra_warpgroup_overlap.STEP,
    title="Persistent, LPT scheduler",
    change="As many blocks run as there are SMs, and each computes a list of tiles, dealt longest first.",
    default_problem=HEADLINE,
    order=DEALT,
)
