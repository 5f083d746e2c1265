"""Step 123: the warps of a group do not meet where nothing needs it.

Triton lets the four warps of a group meet before one of them arrives at an mbarrier. A meeting is a barrier, which
holds up each warp until the last has come. Triton 3.6.0, of which the records are, let them meet in front of waits,
too: four times for every tile of keys. Triton 3.9 leaves out those two by itself.

The product that has read a tile is one operation of all four warps. Once it is complete none of them needs the tile any
more, and one warp can say so without a meeting. In front of a wait there is nothing to protect either. Gluon has no
word for a meeting that is not wanted, so they are taken out of the PTX (``tutorial_lib.meetings``).

Then a warp may run ahead of the others. Step at_maxima waits for a tile of values a second time, to keep instructions in their
places. A warp that comes late to this wait could find that another one has already given the place of the values back,
and TMA has filled it anew: the mbarrier is a phase further, and the warp would wait for good. So the second wait is one
for an mbarrier where nobody arrives.

At other head_dims the meetings stay: at 64 and 256 the kernel was slower or no faster without them in a trial, which is
not among the records.
"""

from steps.core.problems import HEADLINE
from steps.hopper import step122_chains_in_pairs
from steps.hopper.lib import WITHOUT_MEETINGS

STEP = step122_chains_in_pairs.STEP.evolve(
    number=123,
    name="no_meetings",
    title="No meetings that nothing needs",
    change="The warps of a group no longer meet before waits, and before arrivals behind a product that is complete.",
    default_problem=HEADLINE,
    hold=WITHOUT_MEETINGS,
)
