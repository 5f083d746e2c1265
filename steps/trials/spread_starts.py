"""Trial: blocks of the backward pass begin with different tiles of queries.

Without a mask all blocks of a head begin with its first tile of queries, and go on at the same speed. So they add to
the same tile of dQ at the same time. Here the n-th block begins as many tiles further as its keys stand behind the
first, and goes round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from steps import get_step
from steps.core.problems import FULL, HEADLINE, standard
from steps.trials.trial import Trial
from steps.writing.written import write_step

TILE = "work.first + turn"
SPREAD = "work.first + (turn + work.key_row // TILE_QUERY) % work.a_head"


@dataclass(frozen=True)
class SpreadStarts(Trial):
    """For as many heads of keys as of queries: each has its own turns then. Raises ValueError for others."""

    def version(self, value, problem, **named):
        if problem.group_size > 1:
            raise ValueError(f"spread_starts takes as many kv heads as heads, got {problem.describe()}")
        step = write_step(get_step(self.base), problem, **named)
        if value == "off":
            return step
        if TILE not in step.text:
            raise ValueError(f"this must stand in the kernel: {TILE}")
        return replace(step, text=step.text.replace(TILE, SPREAD))


TRIAL = SpreadStarts(
    name="spread_starts",
    question="Would the backward pass be faster if blocks began with different tiles of queries?",
    base="groups_apart",
    values=("off", "on"),
    problems=(FULL, HEADLINE, standard(head_dim=64)),
)
