"""What is shown while ``python -m steps.run`` measures: what goes on, what is done, and how long the rest will take."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext

from steps.measuring.measure import Progress


class Listener(Progress):
    """Told by ``measure`` how far it is.

    show(done, of, text): where a person looks on, of the checks, and then of the rounds; None where nobody does.
    """

    def __init__(self, show: Callable[[int, int, str], None] | None = None, clock: Callable = time.perf_counter):
        self._show, self._clock = show, clock
        self._checks = self._rounds = self._checked = self._timed = 0
        self._what = "starting: inputs, and the result in float64"
        self._begun = [("starting", clock())]  # what, and since when

    def total(self, checks, rounds, round_seconds):
        self._checks, self._rounds = checks, rounds
        self._tell()

    def doing(self, what):
        self._begun.append((what, self._clock()))
        self._what = what
        self._tell()

    def checked(self):
        self._checked += 1
        self._tell()

    def timed(self):
        self._timed += 1
        self._tell()

    def _tell(self) -> None:
        if self._show is None:
            return
        done = [f"{self._checked} of {self._checks} checked"]
        done += [f"{self._timed} of {self._rounds} rounds timed"] if self._rounds else []
        checking = self._checked < self._checks
        pace = (self._checked, self._checks) if checking or not self._rounds else (self._timed, self._rounds)
        self._show(*pace, f"{self._what}; {', '.join(done)}")

    def seconds(self) -> str:
        """How long each kind of action took so far, in one line; of actions side by side the last that began counts."""
        took = Counter()
        for (what, since), (_, until) in itertools.pairwise([*self._begun, ("", self._clock())]):
            took[what.split()[0].strip(",:")] += until - since
        return "Seconds: " + ", ".join(f"{kind} {seconds:.0f}" for kind, seconds in took.items()) + "."


def progress(console):
    """(a context, a ``Listener``): inside the context a terminal that can move its cursor shows a line that changes."""
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar
    from rich.table import Column

    if not console.is_terminal or console.is_dumb_terminal:
        return nullcontext(), Listener()
    text = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis"))
    wide = [BarColumn(20), TimeRemainingColumn()] if console.width >= 100 else []
    columns = (SpinnerColumn(), TimeElapsedColumn(), *wide, text)
    bar = Bar(*columns, console=console, transient=True)
    task = bar.add_task("starting", total=None)

    def show(done: int, of: int, words: str) -> None:
        if not done and bar.tasks[task].completed:  # rounds of timing have another pace than checks
            bar.reset(task)
        bar.update(task, completed=done, total=of, description=words)

    return bar, Listener(show)
