"""Trial: in cuTile, blocks that stay walk over K and V forwards and backwards in turn.

What was read last is then still in the L2 cache when the walk turns. Without a mask, and where the last tile is full.
"""

from __future__ import annotations

from dataclasses import dataclass

from steps import get_step
from steps.core.problems import FULL
from steps.trials.trial import Trial
from steps.writing.written import edited, write_step

HEADING = "            # QK product: scores [query, key].\n"
EDITS = (
    (HEADING, "            at = j + (n - first) % 2 * (end - 1 - 2 * j)\n" + HEADING),
    ("load_key_transposed(K, batch, kv_head, j)", "load_key_transposed(K, batch, kv_head, at)"),
    ("(batch, kv_head, j, 0)", "(batch, kv_head, at, 0)"),
)


@dataclass(frozen=True)
class Alternating(Trial):
    def version(self, value, problem, **named):
        step = write_step(get_step(self.base), problem, **named)
        return edited(step, *EDITS) if value == "on" else step


TRIAL = Alternating(
    name="alternating",
    question="Would it help the L2 cache to walk over K and V forwards and backwards in turn?",
    base="stay",
    values=("off", "on"),
    problems=(FULL,),
)
