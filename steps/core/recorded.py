"""What is recorded under results/: the run of a problem, the survey of all architectures, the search for tiles."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from steps.core.grids import GRIDS
from steps.core.ladder import steps_of
from tutorial_lib.files import RESULTS
from tutorial_lib.problem import Problem
from tutorial_lib.results import Run, Search, Survey, of_one_machine, recorded_runs, recorded_searches


def find_recorded(
    asked: Problem, folders: Sequence[Path] = (RESULTS,), direction: str = "forward", step: str | None = None
) -> Run | None:
    """The run with GPU timings of this very problem that holds most steps, the newest of several; None without one.

    step: the name of one that counts before the others: runs that hold it come first.
    """
    runs = [run for folder in dict.fromkeys(folders) for run in recorded_runs(folder, direction)]
    runs = [run for run in runs if run.the_problem() == asked]

    def holds(run: Run) -> tuple:
        measured = [m.name for m in run.steps if m.status == "measured"]
        return step in measured, len(measured), run.date

    return max(runs, key=holds, default=None)


def completed_run(run: Run, record: Run) -> Run:
    """``run.with_earlier(record)`` with its steps in the order of the ladder.

    Steps that the ladder of one device does not hold come last, in the order of ``with_earlier``.
    """
    order = {step.name: n for n, step in enumerate(steps_of(run.direction))}
    whole = run.with_earlier(record)
    return whole.model_copy(update={"steps": sorted(whole.steps, key=lambda m: order.get(m.name, len(order)))})


def recorded_grid(name: str, results: Path = RESULTS) -> list[Run]:
    """The runs of a grid's problems in its order, as far as they are recorded, of the machine that has most of them."""
    runs = of_one_machine(recorded_runs(results, GRIDS[name].direction))
    newest = {run.the_problem(): run for run in reversed(runs)}
    return [newest[problem] for problem in GRIDS[name].problems if problem in newest]


@cache
def recorded_search(arch: str, results: Path = RESULTS, direction: str = "forward") -> Search | None:
    """The newest recorded search of a pass on an architecture, or None."""
    found = [search for search in recorded_searches(results, direction) if search.machine["arch"] == arch]
    return max(found, key=lambda search: search.date, default=None)


def recorded_survey(results: Path = RESULTS) -> Survey | None:
    """The newest survey of every step on every architecture, or None."""
    paths = sorted(results.glob("compiled/*/survey.json"))
    surveys = [Survey.model_validate_json(path.read_bytes()) for path in paths]
    return max(surveys, key=lambda survey: survey.date, default=None)
