"""What is shown while ``python -m steps.run`` measures: what goes on, what is done, and how long the rest will take."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext

from steps.measuring.measure import Progress

TELLING = 3  # checks from which on their pace says something


class Estimate:
    """How long the rest will take, from how long what is done took. clock: seconds, as ``time.perf_counter`` has them.

    Checks go at the pace of those before, several side by side or not. Rounds of timing take as long as those before,
    or, before the first, as long as they are planned to.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock, self._lock = clock, threading.Lock()
        self.checks = self.rounds = self.checks_done = self.rounds_done = 0
        self._planned = 0.0
        self._began = self._timing_began = clock()

    def total(self, checks: int, rounds: int, round_seconds: float) -> None:
        """As ``Progress.total``."""
        self.checks, self.rounds, self._planned = checks, rounds, round_seconds
        self._began = self._clock()

    def checked(self) -> None:
        """A check is over."""
        with self._lock:
            self.checks_done += 1
            self._timing_began = self._clock()

    def timed(self) -> None:
        """A round is over."""
        self.rounds_done += 1

    def left(self) -> float | None:
        """Seconds, or None where nothing is known yet."""
        checks = self.checks - self.checks_done
        if checks and self.checks_done < TELLING:
            return None
        now, seconds = self._clock(), 0.0
        if checks:
            seconds += checks * (now - self._began) / self.checks_done
        rounds = self.rounds - self.rounds_done
        round_seconds = (now - self._timing_began) / self.rounds_done if self.rounds_done else self._planned
        return seconds + rounds * round_seconds


def rounded(seconds: float) -> str:
    """Words for a time that nobody knows to the second: ``40 s``, ``3 min``."""
    if seconds < 100:
        return f"{5 * max(1, round(seconds / 5))} s"
    return f"{round(seconds / 60)} min"


class Listener(Progress):
    """Told by ``measure`` how far it is. show(done, of, text): where a person looks on; None where nobody does."""

    def __init__(self, show: Callable[[int, int, str], None] | None = None, clock: Callable = time.perf_counter):
        self._show, self._clock = show, clock
        self._estimate, self._what = Estimate(clock), "starting: inputs, and the result in float64"
        self._begun = [("starting", clock())]  # what, and since when

    def total(self, checks, rounds, round_seconds):
        self._estimate.total(checks, rounds, round_seconds)
        self._tell()

    def doing(self, what):
        self._begun.append((what, self._clock()))
        self._what = what
        self._tell()

    def checked(self):
        self._estimate.checked()
        self._tell()

    def timed(self):
        self._estimate.timed()
        self._tell()

    def _tell(self) -> None:
        if self._show is None:
            return
        e = self._estimate
        done = [f"{e.checks_done} of {e.checks} checked"]
        done += [f"{e.rounds_done} of {e.rounds} rounds timed"] if e.rounds else []
        left = e.left()
        if left:
            done.append(f"about {rounded(left)} left")
        self._show(e.checks_done + e.rounds_done, e.checks + e.rounds, f"{self._what}; {', '.join(done)}")

    def seconds(self) -> str:
        """How long each kind of action took so far, in one line; of actions side by side the last that began counts."""
        took = Counter()
        for (what, since), (_, until) in itertools.pairwise([*self._begun, ("", self._clock())]):
            took[what.split()[0].strip(",:")] += until - since
        return "Seconds: " + ", ".join(f"{kind} {seconds:.0f}" for kind, seconds in took.items()) + "."


def progress(console):
    """(a context, a ``Listener``): inside the context a terminal that can move its cursor shows a line that changes."""
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar
    from rich.table import Column

    if not console.is_terminal or console.is_dumb_terminal:
        return nullcontext(), Listener()
    text = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis"))
    columns = (SpinnerColumn(), TimeElapsedColumn(), *([BarColumn(20)] if console.width >= 100 else []), text)
    bar = Bar(*columns, console=console, transient=True)
    task = bar.add_task("starting", total=None)

    def show(done: int, of: int, words: str) -> None:
        bar.update(task, completed=done, total=of, description=words)

    return bar, Listener(show)
