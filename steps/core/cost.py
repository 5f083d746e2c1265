"""What a launch costs: a model of a step's time on a problem that nobody measured, fitted to the records.

A step's time is taken for a sum of six terms, each a cost of the step times what ``steps.core.work`` counts of its
launch. The costs are those that fit the step's records best, none below zero. What the sum leaves out, such as the L2
cache and the clock under load, is a factor: that by which near records differ from the sum.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from steps.core.ladder import get_step
from tutorial_lib.passes import PASSES
from tutorial_lib.problem import Problem

if TYPE_CHECKING:
    from tutorial_lib.results import Run

LAUNCH = 3.0  # microseconds that any kernel of a call takes at least; chosen, not fitted
ROUNDS = 3  # of fitting costs, and factors of whole problems beside them
RIDGE = 3e-3  # keeps costs that the records do not tell apart small
REACH = 0.7  # how far records are heard, in doublings of a length (``apart``): as far again they count 1/e
DOUBT = 0.1  # of a record's weight: what no record's factor, 1, counts
FEWEST = 7  # records of a step, below which its costs are not known
HEARD = 0.1  # of the weight that the best known step's records have: with less a step is not known there


def apart(a: Problem, b: Problem) -> float:
    """How far two problems are apart, in doublings of a length."""

    def doublings(x: float, y: float) -> float:
        return abs(math.log2(x / y))

    lengths = doublings(a.seq_len_q, b.seq_len_q) + doublings(a.seq_len_kv, b.seq_len_kv)
    groups = doublings(a.group_size, b.group_size) + doublings(a.window or 1, b.window or 1)
    heads = doublings(a.batch * a.heads, b.batch * b.heads)
    kind = 2 * doublings(a.head_dim, b.head_dim) + (a.causal != b.causal)
    return kind + 0.7 * (lengths + groups) + 0.2 * heads + 0.15 * (a.dtype != b.dtype)


@dataclass(frozen=True)
class Estimate:
    """seconds: expected. weight: how near the step's records are, 1 for each that is of this very problem."""

    seconds: float
    weight: float


class Model:
    """Costs of the steps, fitted to recorded runs of one pass, all of which ask for the same features."""

    def __init__(self, runs: Iterable[Run]):
        self.timed: dict[str, list[tuple[int, tuple[float, ...], float]]] = defaultdict(list)
        self.problems: list[Problem] = []
        self.single: dict[int, float] = {}  # where a head has one query: the logarithm of ``_of_baseline``
        for n, run in enumerate(runs):
            problem, arch = run.the_problem(), run.machine["arch"]
            self.problems.append(problem)
            self.baseline = PASSES[run.direction].baseline
            if problem.seq_len_q == 1 and (ratio := _of_baseline(run)):
                self.single[n] = math.log(ratio)
            for m in (*run.steps, *run.inside):
                if m.latency_ms and m.correct and (work := getattr(get_step(m.name), "work", None)):
                    launched = work(problem, arch)
                    us = 1000 * m.latency_ms.median - LAUNCH * launched.kernels
                    self.timed[m.name].append((n, launched.counts(problem), max(LAUNCH, us)))
        self.costs: dict[str, list[float]] = {}  # in microseconds
        self.factors = [1.0] * len(self.problems)  # of whole problems: what all steps share there
        for _ in range(ROUNDS):
            self._fit()

    def _fit(self) -> None:
        off = defaultdict(list)
        for name, found in self.timed.items():
            rows = [[x * self.factors[n] / us for x in counts] for n, counts, us in found]
            self.costs[name] = _not_negative(rows)
            for n, counts, us in found:
                if name != self.baseline:
                    off[n].append(us / _product(self.costs[name], counts))
        self.factors = [sorted(off[n])[len(off[n]) // 2] if off[n] else 1.0 for n in range(len(self.problems))]

    def estimate(self, name: str, problem: Problem, arch: str) -> Estimate | None:
        """How long a step takes on a problem, or PyTorch's attention; None where too few records hold it."""
        found = self.timed.get(name, ())
        if len(found) < min(FEWEST, max(map(len, self.timed.values()), default=0)) or not any(self.costs[name]):
            return None
        near = self._near(problem)
        weight = sum(near[n] for n, _, _ in found)
        off = sum(near[n] * math.log(us / _product(self.costs[name], c) / self.factors[n]) for n, c, us in found)
        shared = sum(w * math.log(f) for w, f in zip(near, self.factors)) / sum(near)
        launched = get_step(name).work(problem, arch)
        us = _product(self.costs[name], launched.counts(problem)) * math.exp(off / (weight + DOUBT) + shared)
        return Estimate((LAUNCH * launched.kernels + us) / 1e6, weight)

    def of_baseline(self, problem: Problem, arch: str, seconds: float) -> float | None:
        """How many times as long as so many seconds PyTorch's attention takes on a problem; None where nobody knows.

        With one query a head both read the same bytes, as fast as they can: there it is what near records have.
        """
        if problem.seq_len_q == 1 and self.single:
            near = {n: self._near(problem)[n] for n in self.single}
            return math.exp(sum(near[n] * log for n, log in self.single.items()) / sum(near.values()))
        its = self.estimate(self.baseline, problem, arch)
        return its and its.seconds / seconds

    @lru_cache(maxsize=8)  # noqa: B019 - one problem is asked about after the other, and the model stays
    def _near(self, problem: Problem) -> list[float]:
        """What each record counts for a problem."""
        return [math.exp(-apart(problem, recorded) / REACH) for recorded in self.problems]


def _of_baseline(run: Run) -> float | None:
    """How many times as fast as PyTorch's attention the fastest step is in a run; None where one is missing."""
    fastest, baseline = run.by_speed()[:1], run.measurement(PASSES[run.direction].baseline)
    return fastest[0].tflops / baseline.tflops if fastest and baseline and baseline.tflops else None


def _product(costs: Sequence[float], counts: Sequence[float]) -> float:
    return max(1e-12, sum(a * b for a, b in zip(costs, counts)))


def _not_negative(rows: list[list[float]]) -> list[float]:
    """Costs, none below zero, for which each row times them is as near 1 as can be, in the mean of squares.

    By the normal equations, without PyTorch: whoever asks for a kernel may be under one of its modes.
    """
    columns, width = list(range(len(rows[0]))), len(rows[0])
    squares = [[sum(row[a] * row[b] for row in rows) for b in columns] for a in columns]
    sums = [sum(row[a] for row in rows) for a in columns]
    while columns:
        table = [[squares[a][b] + RIDGE**2 * (a == b) for b in columns] + [sums[a]] for a in columns]
        found = _solved(table)
        if min(found) >= 0:
            costs = dict(zip(columns, found))
            return [costs.get(n, 0.0) for n in range(width)]
        columns.pop(found.index(min(found)))
    return [0.0] * width


def _solved(table: list[list[float]]) -> list[float]:
    """x for which a symmetric, positive matrix times x is the last column of the table, which Gauss eliminates."""
    size = len(table)
    for n in range(size):
        table[n] = [x / table[n][n] for x in table[n]]
        for other in range(size):
            if other != n:
                table[other] = [x - table[other][n] * y for x, y in zip(table[other], table[n])]
    return [row[-1] for row in table]
