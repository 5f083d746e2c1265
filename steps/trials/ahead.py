"""Trial: in cuTile, the QK product of the next tile of keys is written before the softmax of this one."""

from __future__ import annotations

from dataclasses import dataclass

from steps import get_step
from steps.core.problems import FULL, HEADLINE
from steps.trials.trial import Trial
from steps.writing.functions import with_functions
from tutorial_lib.problem import Problem

MASK = """
        if j >= unmasked:
            scores = hide(scores, query_index, j)"""


def functions(problem: Problem) -> dict[str, str]:
    """Of step persistent, written out for whole tiles of keys: other parameters are left under a causal mask."""
    causal = problem.causal
    attend = f"""
def attend(i, head, batch, Q, K, V, Out, scale):
    kv_head = head // GROUP_SIZE
    q = load_query(Q, i, head, batch)
    row_max, row_sum, accumulator = begin()
    unmasked, end = tiles_to_visit({"i, " if causal else ""}K.shape[2])
    {"query_index = query_indices(i)" if causal else ""}
    following = product(q, K, batch, kv_head, 0)
    for j in range(end):
        scores = following
        following = product(q, K, batch, kv_head, min(j + 1, end - 1)){MASK if causal else ""}
        row_max, row_sum, accumulator = absorb(scores, V, batch, kv_head, j, row_max, row_sum, accumulator, scale)
    finish(Out, i, head, batch, row_sum, accumulator)
"""
    return {"attend": attend}


@dataclass(frozen=True)
class Ahead(Trial):
    def version(self, value, problem, **named):
        return with_functions(get_step(self.base), problem, functions(problem) if value == "on" else {}, **named)


TRIAL = Ahead(
    name="ahead",
    question="Would cuTile's kernel be faster with the QK product of the next tile before the softmax of this one?",
    base="persistent",
    values=("off", "on"),
    problems=(FULL, HEADLINE),
)
