"""Step 906: the sliding window of step window, in the kernel for Hopper.

Nothing is told to any role but where the window begins. The producer fetches no tile of keys before the first that
somebody sees, and the warps that compute count queries and keys from that tile on: a mask asks for differences of their
numbers, which stay what they are. So the loop is the one of step pv_wait_after_max, with one more mask, which only
tiles at the left edge ask for. All warpgroups of a block begin with the same tile; it may hide all its keys from the
queries of a warpgroup.
"""

from steps.everyday import step903_window
from steps.hopper import step206_pv_wait_after_max

STEP = step206_pv_wait_after_max.STEP.evolve(
    number=906,
    name="hopper_window",
    title="A sliding window, for Hopper",
    change="All roles begin at the first tile of keys inside the window; the window needs a mask at its edge.",
    fork=True,
    default_problem=step903_window.STEP.default_problem,
    takes=("window",),
)
