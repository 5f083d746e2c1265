"""Step 40: the wait for the PV product stands between the maxima and the exponentials.

Behind the wait the old output is rescaled, in front of it nothing but the scores can be worked on. Left alone, ptxas
waits before the maxima, with a mask at least; held behind all of the softmax, the wait leaves the rescaling to the very
end, where nothing hides it. Between the two the maxima run under the product, and the exponentials, which have the
MUFU, mix with the rescaling, which has the FMA pipe. At head_dim 256 without a mask ptxas does that by itself.
"""

from steps import step39_late_wait
from steps.hopper import AT_MAXIMA

STEP = step39_late_wait.STEP.evolve(
    number=40,
    name="at_maxima",
    title="The wait behind the maxima",
    change="The wait for the PV product is held behind the maxima, in front of the exponentials.",
    late_wait=AT_MAXIMA,
)
