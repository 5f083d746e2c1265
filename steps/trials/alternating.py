"""Trial: in cuTile, persistent blocks walk over K and V forwards and backwards in turn.

What was read last is then still in the L2 cache when the walk turns. Without a mask, and where the last tile is full.
"""

from __future__ import annotations

from dataclasses import dataclass

from steps import get_step
from steps.core.problems import FULL
from steps.trials.trial import Trial
from steps.writing.functions import with_functions

FUNCTIONS = {
    "attend": """
def attend_in_turns(i, head, batch, Q, K, V, Out, scale, backwards):
    kv_head = head // GROUP_SIZE
    q = load_query(Q, i, head, batch)
    row_max, row_sum, accumulator = begin()
    _, end = tiles_to_visit(K.shape[2])
    for j in range(end):
        at = j + backwards * (end - 1 - 2 * j)
        scores = product(q, K, batch, kv_head, at)
        row_max, row_sum, accumulator = absorb(scores, V, batch, kv_head, at, row_max, row_sum, accumulator, scale)
    finish(Out, i, head, batch, row_sum, accumulator)
""",
    "fmha": """
def fmha(Q, K, V, Out, scale, order, starts):
    block = ct.bid(0)
    first = ct.load(starts, (block,), ())
    for n in range(first, ct.load(starts, (block + 1,), ())):
        i, head, batch = position(ct.load(order, (n,), ()), Q)
        attend_in_turns(i, head, batch, Q, K, V, Out, scale, (n - first) % 2)
""",
}


@dataclass(frozen=True)
class Alternating(Trial):
    def version(self, value, problem, **named):
        return with_functions(get_step(self.base), problem, FUNCTIONS if value == "on" else {}, **named)


TRIAL = Alternating(
    name="alternating",
    question="Would it help the L2 cache to walk over K and V forwards and backwards in turn?",
    base="persistent",
    values=("off", "on"),
    problems=(FULL,),
)
