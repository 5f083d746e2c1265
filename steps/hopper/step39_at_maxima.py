"""Step 39: the wait for the PV product stands between the maxima and the exponentials.

Step overlap wrote the wait for the PV product behind the softmax, and ptxas moved it to before the exponentials. Over a
loop it moves nothing, and the wait for a barrier is one: a second wait for the tile of values, which has long arrived,
holds the order as it was written. Held behind all of the softmax (``late_wait``, inside this step), the wait leaves the
rescaling of the old output to the very end, where nothing hides it. Between maxima and exponentials the maxima run
under the product, and the exponentials, which have the MUFU, mix with the rescaling, which has the FMA pipe. At
head_dim 256 without a mask ptxas does that by itself. Up to head_dim 128 the lanes of a row also add their sums after
the loop, which alone brings nothing (``lean_sum``, inside step room).

The first tile of keys is computed in front of the loop. Visited downwards that is the one on the diagonal, and none in
the loop needs the mask or the branch around it (``diagonal_first``, inside this step). FlashAttention walks this way.
"""

from steps.core.problems import HEADLINE, standard
from steps.hopper import step38_room
from steps.hopper.softmax import DOWNWARDS, SUM_AT_END, wait_behind_maxima, wait_behind_softmax

LATE_WAIT = step38_room.STEP.evolve(
    name="late_wait",
    title="The wait behind the softmax",
    change="The wait for the PV product stays behind the exponentials; up to head_dim 128 lanes add their sums last.",
    inside="at_maxima",
    default_problem=HEADLINE,
    softmax=wait_behind_softmax,
    sums=SUM_AT_END,
)

STEP = step38_room.STEP.evolve(
    number=39,
    name="at_maxima",
    title="The wait behind the maxima",
    change="The wait for the PV product is held between maxima and exponentials; lanes add their sums last.",
    default_problem=HEADLINE,
    softmax=wait_behind_maxima,
    sums=SUM_AT_END,
)

DIAGONAL_FIRST = STEP.evolve(
    name="diagonal_first",
    title="The diagonal first",
    change="At head_dim 256 with a causal mask the keys are visited from the diagonal back to the first.",
    inside="at_maxima",
    default_problem=standard(head_dim=256, causal=True),
    walk=DOWNWARDS,
)

INSIDE = (LATE_WAIT, DIAGONAL_FIRST)
