"""Step 43: atomic additions that order nothing else.

An atomic operation of cuTile acquires and releases by default: what a block wrote before it is seen by whoever sees the
addition, and the other way round. For that the compiler puts fences around each one. Nobody needs this here: the sums
are read by the next kernel, which begins when this one has ended. A *relaxed* addition is still one piece, with nobody
in between, and promises nothing about other reads and writes.
"""

from steps.backward_cutile import step42_atomics

STEP = step42_atomics.STEP.evolve(
    number=43,
    name="relaxed",
    title="Relaxed atomics",
    change="The atomic additions are relaxed: they order no other access to memory.",
    d_query="relaxed atomics",
)
