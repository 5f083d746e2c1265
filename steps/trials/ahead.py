"""Trial: in cuTile, the QK product of the next tile of keys is written before the softmax of this one."""

from __future__ import annotations

from dataclasses import dataclass

from steps import get_step
from steps.core.problems import FULL, HEADLINE
from steps.trials.trial import Trial
from steps.writing.written import edited, write_step

LOOP = """        for j in range(end):
            # QK product: scores [query, key].
            k = load_key_transposed(K, batch, kv_head, j)  # [head_dim, key]
            scores = ct.mma(q, k, ct.zeros((TILE_QUERY, TILE_KEY), ct.float32))
"""
AHEAD = """        k = load_key_transposed(K, batch, kv_head, 0)
        following = ct.mma(q, k, ct.zeros((TILE_QUERY, TILE_KEY), ct.float32))
        for j in range(end):
            scores = following
            k = load_key_transposed(K, batch, kv_head, min(j + 1, end - 1))
            following = ct.mma(q, k, ct.zeros((TILE_QUERY, TILE_KEY), ct.float32))
"""
EDITS = ((LOOP, AHEAD),)


@dataclass(frozen=True)
class Ahead(Trial):
    def version(self, value, problem, **named):
        step = write_step(get_step(self.base), problem, **named)
        return edited(step, *EDITS) if value == "on" else step


TRIAL = Ahead(
    name="ahead",
    question="Would cuTile's kernel be faster with the QK product of the next tile before the softmax of this one?",
    base="stay",
    values=("off", "on"),
    problems=(FULL, HEADLINE),
)
