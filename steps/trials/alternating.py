"""Trial: in cuTile, blocks that stay walk over K and V forwards and backwards in turn.

What was read last is then still in the L2 cache when the walk turns. Without a mask, and where the last tile is full.
"""

from __future__ import annotations

from dataclasses import dataclass

from steps import get_step
from steps.core.problems import FULL
from steps.trials.trial import Trial
from steps.writing.written import edited, write_step

EDITS = (
    ("def attend(i, head, batch, Q, K, V, Out, scale):", "def attend(i, head, batch, Q, K, V, Out, scale, backwards):"),
    ("attend(i, head, batch, Q, K, V, Out, scale)\n", "attend(i, head, batch, Q, K, V, Out, scale, (n - first) % 2)\n"),
    (
        "        scores = product(q, K, batch, kv_head, j)\n",
        "        at = j + backwards * (end - 1 - 2 * j)\n        scores = product(q, K, batch, kv_head, at)\n",
    ),
    ("absorb(scores, V, batch, kv_head, j, ", "absorb(scores, V, batch, kv_head, at, "),
)


@dataclass(frozen=True)
class Alternating(Trial):
    def version(self, value, problem, **named):
        step = write_step(get_step(self.base), problem, **named)
        if value == "off":
            return step
        *all_but_last, (old, new) = EDITS
        definition = "def absorb(scores, V, batch, kv_head, j, "
        return edited(step, *all_but_last, (old, new)) if definition not in step.text else edited(step, *all_but_last)


TRIAL = Alternating(
    name="alternating",
    question="Would it help the L2 cache to walk over K and V forwards and backwards in turn?",
    base="stay",
    values=("off", "on"),
    problems=(FULL,),
)
