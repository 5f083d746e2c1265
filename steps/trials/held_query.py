"""Trial: the queries stay in registers, so that the QK product reads one factor from shared memory, and not two.

In step pv_wait_after_max a warpgroup's product of 64 queries with a tile of 128 keys reads both from shared memory, in
every iteration of the loop. The queries are the same in every iteration. Held in registers they cost a thread 32 of
them at head_dim 128, and save a third of what the QK product reads from shared memory.
"""

from __future__ import annotations

from steps.core.problems import FULL, HEADLINE, standard
from steps.trials.trial import Trial

HELD = """
def held(query):
    return query.load(gl.DotOperandLayout(0, ACCUMULATOR, 2))
"""


# The first product for a tile of queries still reads them from shared memory: it is begun before they are held.
TRIAL = Trial(
    name="held_query",
    question="Would it be faster, or take less energy, to keep the queries in registers?",
    base="pv_wait_after_max",
    values=("off", "on"),
    problems=(standard(head_dim=64), FULL, HEADLINE),
    functions=lambda value: {"left_in_shared": HELD} if value == "on" else {},
)
