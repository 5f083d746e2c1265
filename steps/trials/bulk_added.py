"""Trial: dQ added by TMA, a whole tile with one instruction, where cuTile's steps add a number at a time.

``TiledView.atomic_store_add`` adds a tile and gives no old values back, so that the compiler may leave it to TMA, which
reads the tile from shared memory (SASS: UTMAREDG; in place of REDG). It orders no other access, as relaxed atomics.
"""

from __future__ import annotations

import re
from dataclasses import replace

from steps import get_step
from steps.core.problems import FULL, HEADLINE
from steps.trials.trial import Trial
from steps.writing.written import write_step

IN_BULK = " in bulk"
ADDITION = re.compile(r"    column = .*\n    index = .*\n    ct\.atomic_add\(DQ, index, (?P<sums>\w+), .*\)\n")
SHAPE = "(1, 1, TILE_QUERY, HEAD_DIM)"
ADDITION_IN_BULK = (
    rf"    DQ.tiled_view({SHAPE}).atomic_store_add((batch, head, i, 0), ct.reshape(\g<sums>, {SHAPE}))" + "\n"
)


def made(value: str, problem):
    """value: a step's name, or the same with " in bulk": of ordered_atomics and relaxed_atomics one kernel."""
    step = write_step(get_step(value.removesuffix(IN_BULK)), problem)
    if not value.endswith(IN_BULK):
        return step
    text, places = ADDITION.subn(ADDITION_IN_BULK, step.text)
    if places != 1:
        raise ValueError(f"the kernel must add dQ in one place, got {places}")
    return replace(step, text=text)


TRIAL = Trial(
    name="bulk_added",
    question="Is dQ added faster by TMA, a tile at a time?",
    base="ordered_atomics",
    values=("ordered_atomics", "relaxed_atomics", f"relaxed_atomics{IN_BULK}", "folded_lse", f"folded_lse{IN_BULK}"),
    problems=(HEADLINE, FULL),
    made=made,
)
