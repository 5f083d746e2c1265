"""Trial: the producer asks for the next keys before it waits for the slot of these values.

The stamps of step pv_wait_after_max (``python -m steps.trace``) show each consumer wait for keys in every iteration,
while the producer waits for a slot of values, which consumers release last. The slot of the next keys is free long
before.
"""

from __future__ import annotations

from steps.core.problems import FULL, HEADLINE, standard
from steps.trials.trial import Trial

FETCH_KEYS = """
def fetch_keys(arrays, tiles, barriers, kv_head, batch, key, iteration):
    # As soon as their slot is empty; key: the first of them.
    stage = iteration % STAGES
    mbarrier.wait(barriers.key_empty.index(stage), iteration // STAGES & 1 ^ 1)
    fetch(arrays.key, tiles.key, barriers.key_full, kv_head, batch, key, stage)
"""
FETCH_ALL = """
def fetch_all(arrays, tiles, barriers, kv_head, batch, end, iteration):
    fetch_keys(arrays, tiles, barriers, kv_head, batch, 0, iteration)
    for j in range(end):
        key = j * TILE_KEY
        stage = iteration % STAGES
        used = iteration // STAGES & 1 ^ 1
        if j + 1 < end:
            # The next keys do not wait behind the slot of these values, which is released only much later.
            fetch_keys(arrays, tiles, barriers, kv_head, batch, key + TILE_KEY, iteration + 1)
        mbarrier.wait(barriers.value_empty.index(stage), used)
        fetch(arrays.value, tiles.value, barriers.value_full, kv_head, batch, key, stage)
        iteration += 1
    return iteration
"""


# Off: keys and values of a tile are asked for together.
TRIAL = Trial(
    name="keys_first",
    question="Would it be faster to ask for the next keys before waiting for the slot of these values?",
    base="pv_wait_after_max",
    values=("off", "on"),
    problems=(standard(head_dim=64), FULL, HEADLINE, standard(head_dim=256)),
    functions=lambda value: {"fetch_all": FETCH_ALL} if value == "on" else {},
    beside=FETCH_KEYS,
)
