"""Looks again at what is recorded: is the step that is chosen for a problem right, and as far ahead of PyTorch's?

The ratio to PyTorch's own attention is taken inside each round, as the record's is (``tutorial_lib.timing``), and is
compared with the record of this very GPU: another GPU's tells nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from steps.core.choice import best
from steps.core.ladder import get_step
from steps.core.step import Step, Unsupported
from steps.measuring.bench import Bench
from tutorial_lib import timing
from tutorial_lib.accuracy import Accuracy
from tutorial_lib.passes import PASSES
from tutorial_lib.problem import Problem
from tutorial_lib.results import Run, folder_name
from tutorial_lib.worker import WorkerFailure

TOLERANCE = 0.03  # of the recorded ratio: medians of the same instructions on two days seldom differ by more
MORE = 8  # rounds, where the first say that the ratio is another one


@dataclass(frozen=True)
class Checked:
    """A problem to look at again. direction: a key of ``PASSES``."""

    problem: Problem
    direction: str = "forward"

    @property
    def name(self) -> str:
        """The name of its folder in results/."""
        return folder_name(self.problem.slug, self.direction)


@dataclass(frozen=True)
class Task:
    """A problem with the step that is chosen for it, and how many times as fast as PyTorch's it is recorded to be.

    step: None where no recorded step takes the problem; recorded: None where this GPU has no record of the step on it.
    """

    checked: Checked
    step: Step | None
    recorded: float | None


def task_of(checked: Checked, arch: str, slug: str, runs: Sequence[Run]) -> Task:
    """What to do on the GPU of this architecture whose records have this slug. runs: all of the direction's."""
    try:
        step = best(checked.problem, arch, runs, checked.direction).step
    except Unsupported:
        return Task(checked, None, None)
    here = [run for run in runs if run.machine["slug"] == slug and run.the_problem() == checked.problem]
    measured = [m.speedup_vs_baseline for run in here if (m := run.measurement(step.name)) and m.speedup_vs_baseline]
    return Task(checked, step, measured[0].median if measured else None)


@dataclass(frozen=True)
class Finding:
    """What was found. ratios: how many times as fast as PyTorch's in each round; failure: why there is no more."""

    task: Task
    accuracy: Accuracy | None = None
    ratios: list[float] = field(default_factory=list)
    failure: str | None = None

    @property
    def right(self) -> bool:
        return self.failure is None and self.accuracy is not None and self.accuracy.correct

    @property
    def ratio(self) -> timing.Spread | None:
        """Over all rounds, or None where it was not timed."""
        return timing.spread(self.ratios) if self.ratios else None

    @property
    def off(self) -> float:
        """By which share of the recorded ratio this one is above it, or below; 0 where there is nothing to compare."""
        if self.ratio is None or self.task.recorded is None:
            return 0.0
        return self.ratio.median / self.task.recorded - 1

    @property
    def as_recorded(self) -> bool:
        return abs(self.off) <= TOLERANCE

    @property
    def verdict(self) -> str:
        """In a few words: what went wrong, or how the ratio compares."""
        if self.failure is not None:
            return f"failed: {self.failure}"
        if not self.right:
            return self.accuracy.explain()
        if self.task.recorded is None:
            return "not recorded on this GPU"
        if self.as_recorded:
            return f"same as {self.task.recorded:.2f}"
        return f"{'faster' if self.off > 0 else 'slower'} than {self.task.recorded:.2f} by {abs(self.off):.1%}"


class Examiner:
    """The worker's side (``tutorial_lib.worker``): holds the inputs of one problem after the other."""

    def __init__(self, device: str):
        self.device = device
        self.bench: Bench | None = None

    def check(self, checked: Checked, name: str, seed: int) -> Accuracy:
        """Compare the step's output on inputs of this seed with float64."""
        import torch

        self.bench = None  # its memory first
        torch.cuda.empty_cache()
        self.bench = Bench(checked.problem, checked.direction, self.device, seed, check=True)
        return self.bench.check(get_step(name))

    def ratios(self, name: str, rounds: int) -> list[float]:
        """How many times as fast as PyTorch's the step is in each of so many rounds, on the inputs of ``check``."""
        baseline = PASSES[self.bench.kind.name].baseline
        names = [baseline, name]
        for each in names:
            if each not in self.bench.plans:
                self.bench.prepare(get_step(each))
        found = []
        for _ in range(rounds):
            random.shuffle(names)
            took = {each: self.bench.sample(each)["milliseconds"] for each in names}
            found.append(took[baseline] / took[name])
        return found


def examine(task: Task, worker, seed: int, rounds: int, timeout: float) -> Finding:
    """Check and time one problem in the worker, which serves an ``Examiner``; what fails is told in the finding."""
    if task.step is None:
        return Finding(task, failure="no recorded step takes it on this GPU")
    name, accuracy, ratios = task.step.name, None, []
    try:
        accuracy = worker.call("check", task.checked, name, seed, timeout=timeout)
        if accuracy.correct and task.recorded is not None:
            ratios = worker.call("ratios", name, rounds, timeout=timeout)
            if not Finding(task, accuracy, ratios).as_recorded:  # or it was chance
                ratios = ratios + worker.call("ratios", name, MORE, timeout=timeout)
    except WorkerFailure as failure:
        return Finding(task, accuracy, ratios, str(failure))
    return Finding(task, accuracy, ratios)


def examine_all(
    tasks: Sequence[Task],
    worker,
    seed: int,
    rounds: int,
    *,
    timeout: float = 90.0,
    tell: Callable[[str], None] = lambda what: None,
) -> Iterator[Finding]:
    """The findings in their order, each as soon as it is there. timeout: seconds of silence that end a problem.

    tell: is told what is being done.
    """
    for number, task in enumerate(tasks, 1):
        tell(f"{number} of {len(tasks)}: {task.checked.name}")
        try:
            yield examine(task, worker, seed, rounds, timeout)
        except Exception as error:  # of ours: the lines of the others are not lost by it
            yield Finding(task, failure=f"{type(error).__name__}: {error}")
