"""Trial: the producer asks for the next keys before it waits for the place of these values.

The stamps of step at_maxima (``python -m steps.trace``) show each consumer wait for keys in every turn, while the
producer waits for a place of values, which consumers free last. The place of the next keys is free long before.
"""

from __future__ import annotations

from dataclasses import dataclass

from steps import get_step
from steps.core.problems import FULL, HEADLINE, standard
from steps.trials.trial import Trial
from steps.writing.written import edited, write_step

PRODUCER = "@gluon.jit\ndef produce("
FETCH_KEYS = '''@gluon.jit
def fetch_keys(arrays, tiles, barriers, kv_head, batch, key, turn):
    """Ask TMA for the turn-th tile of keys as soon as its place is free; key: its first row."""
    stage = turn % STAGES
    mbarrier.wait(barriers.key_free.index(stage), turn // STAGES & 1 ^ 1)
    fetch(arrays.key, tiles.key, barriers.key_ready, kv_head, batch, key, stage)


'''
TURN = """        for j in range(end):
            key = j * TILE_KEY
            stage = turn % STAGES
            used = turn // STAGES & 1 ^ 1
"""
KEYS = """            mbarrier.wait(barriers.key_free.index(stage), used)
            fetch(arrays.key, tiles.key, barriers.key_ready, kv_head, batch, key, stage)
"""
FIRST_KEYS = """        key = 0
        fetch_keys(arrays, tiles, barriers, kv_head, batch, key, turn)
"""
NEXT_KEYS = """            if j + 1 < end:
                # The next keys do not wait behind the place of these values, which is free only much later.
                following = key + TILE_KEY
                fetch_keys(arrays, tiles, barriers, kv_head, batch, following, turn + 1)
"""
EDITS = ((PRODUCER, FETCH_KEYS + PRODUCER), (TURN + KEYS, FIRST_KEYS + TURN + NEXT_KEYS))


@dataclass(frozen=True)
class KeysFirst(Trial):
    """Off: keys and values of a tile are asked for together."""

    def version(self, value, problem, **named):
        step = write_step(get_step(self.base), problem, **named)
        return edited(step, *EDITS) if value == "on" else step


TRIAL = KeysFirst(
    name="keys_first",
    question="Would it be faster to ask for the next keys before waiting for the place of these values?",
    base="at_maxima",
    values=("off", "on"),
    problems=(standard(head_dim=64), FULL, HEADLINE, standard(head_dim=256)),
)
