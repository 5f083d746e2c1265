"""Step 43: atomic additions that order nothing else.

An atomic operation of cuTile acquires and releases by default: what a block wrote before it is seen by whoever sees the
addition, and the other way round. For that the compiler puts fences around each one, which wait until all of the
block's writes can be seen on the whole GPU. Nobody needs this here. The sums are read by the next kernel, and a launch
orders everything by itself. A *relaxed* addition promises that it is not torn, and nothing more.
"""

import cuda.tile as ct

from steps.backward_cutile import step42_atomics

STEP = step42_atomics.STEP.evolve(
    number=43,
    name="relaxed",
    title="Relaxed atomics",
    change="The atomic additions are relaxed: they order no other access to memory.",
    atomics=ct.MemoryOrder.RELAXED,
)
