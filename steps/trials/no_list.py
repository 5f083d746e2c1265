"""Trial: blocks compute which tiles of queries are theirs, in place of reading lists.

Before a block of step at_maxima can ask TMA for its first tile, it loads where its part of the list begins and ends,
and then the first number in it: two loads from device memory, one behind the other. Many short sequences take so little
time that this may be some of it. Here tile n belongs to block n modulo the number of blocks, head after head. Where all
tiles cost the same, as without a mask, the lists say nearly the same.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from steps import get_step
from steps.core.order import tiles_a_head
from steps.core.problems import standard
from steps.trials.trial import Trial
from steps.writing.written import write_step


@dataclass(frozen=True)
class NoList(Trial):
    """The number of all tiles, which a kernel would be passed, stands in the text."""

    def version(self, value, problem, **named):
        step = write_step(get_step(self.base), problem, **named)
        if value == "off":
            return step
        tiles = problem.batch * problem.heads * tiles_a_head(problem, get_step(self.base).variant(problem).tile)
        text = step.text
        for old, new, times in (
            ("last = gl.load(work.starts + first + 1)", f"last = {tiles}", 1),
            ("    first = gl.load(work.starts + first)\n", "", 1),
            ("gl.load(work.order + n)", "n", 2),
            ("n = n + 1\n", "n = n + gl.num_programs(0)\n", 2),
        ):
            if text.count(old) != times:
                raise ValueError(f"this must stand in the kernel {times} times, not {text.count(old)}:\n{old}")
            text = text.replace(old, new)
        return dataclasses.replace(step, text=text)


def short(batch: int, seq_len: int, causal: bool = False):
    return dataclasses.replace(standard(seq_len, causal=causal), batch=batch)


TRIAL = NoList(
    name="no_list",
    question="Would short sequences be faster if blocks did not have to read lists before they begin?",
    base="at_maxima",
    values=("off", "on"),
    problems=(
        short(8, 128),
        short(32, 128),
        short(8, 256),
        short(32, 256),
    ),
)
