"""Trial: what the way of keys and values to shared memory costs, in time and in energy.

Every block fetches all keys and values of its head through L2: a byte for every 128 operations. Here the producer
fetches only every second or fourth tile, and else says that the tile is there: what then stands in its place is
multiplied once more. What is computed is wrong, and the time and energy are what a kernel would take at best that
fetched less: blocks in a cluster that share what TMA brings, say.
"""

from __future__ import annotations

from dataclasses import dataclass

from steps import get_step
from steps.core.problems import FULL, HEADLINE, standard
from steps.trials.trial import Trial
from steps.writing.written import edited, write_step

FETCHES = [
    (f"            mbarrier.wait(barriers.{name}_free.index(stage), used)\n", f"            fetch(arrays.{name}, ")
    for name in ("key", "value")
]


@dataclass(frozen=True)
class FetchedSeldom(Trial):
    """The value: of a hundred tiles, how many TMA fetches. The first of each place always are: memory holds no chance
    numbers then, on which power depends.
    """

    def version(self, value, problem, **named):
        step = write_step(get_step(self.base), problem, **named)
        every = round(100 / value)
        if every == 1:
            return step
        edits = []
        for wait, fetch in FETCHES:
            name = fetch.split(".")[1].rstrip(", ")
            seldom = f"""            if turn // STAGES % {every} == 0:
                fetch(arrays.{name}, """
            there = f"""            else:
                mbarrier.arrive(barriers.{name}_ready.index(stage), count=1)
"""
            [line] = [line for line in step.text.splitlines(keepends=True) if line.startswith(fetch)]
            edits.append((wait + line, wait + seldom + line.removeprefix(fetch) + there))
        return edited(step, *edits)


TRIAL = FetchedSeldom(
    name="fetched_seldom",
    question="How fast would step at_maxima be, and with how much less energy, if it fetched fewer keys and values?",
    base="at_maxima",
    values=(100, 50, 25),
    problems=(standard(head_dim=64), HEADLINE, FULL, standard(16384)),
    axis="tiles of keys and values that are fetched, %",
    right=False,
)
