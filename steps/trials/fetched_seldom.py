"""Trial: what the way of keys and values to shared memory costs, in time and in energy.

Every block fetches all keys and values of its head through L2: a byte for every 128 operations. Here the producer
fetches only every second or fourth tile, and else says that the tile is there: what then stands in its slot is
multiplied once more. What is computed is wrong, and the time and energy are what a kernel would take at best that
fetched less: blocks in a cluster that share what TMA brings, say.
"""

from __future__ import annotations

from steps.core.problems import FULL, HEADLINE, standard
from steps.trials.trial import Trial

FETCH_SELDOM = """
def fetch_seldom(arrays, tiles, barriers, kv_head, batch, row, iteration):
    stage = iteration % STAGES
    used = iteration // STAGES & 1 ^ 1
    mbarrier.wait(barriers.key_empty.index(stage), used)
    if iteration // STAGES % {every} == 0:
        fetch(arrays.key, tiles.key, barriers.key_full, kv_head, batch, row, stage)
    else:
        mbarrier.arrive(barriers.key_full.index(stage), count=1)
    mbarrier.wait(barriers.value_empty.index(stage), used)
    if iteration // STAGES % {every} == 0:
        fetch(arrays.value, tiles.value, barriers.value_full, kv_head, batch, row, stage)
    else:
        mbarrier.arrive(barriers.value_full.index(stage), count=1)
"""


def functions(value: float) -> dict[str, str]:
    """value: of a hundred tiles, how many TMA fetches. The first of each slot always are: memory holds no chance
    numbers then, on which power depends.
    """
    every = round(100 / value)
    return {"fetch_key_and_value": FETCH_SELDOM.format(every=every)} if every > 1 else {}


TRIAL = Trial(
    name="fetched_seldom",
    question="How fast would step pv_wait_after_max be, and how much energy would it save, if it fetched fewer keys?",
    base="pv_wait_after_max",
    values=(100, 50, 25),
    problems=(standard(head_dim=64), HEADLINE, FULL, standard(16384)),
    axis="tiles of keys and values that are fetched, %",
    right=False,
    functions=functions,
)
