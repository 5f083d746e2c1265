"""What was tried and left: a step is kept when it helps somewhere; what helps nowhere is measured all the same.

Each trial is a module with a ``TRIAL``. It makes versions of one step's kernel, outside the skeletons: most replace
lines of the kernel as ``steps.show`` writes it out. ``python -m steps.trials`` measures them on a GPU.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path

from tutorial_lib.naming import unknown

NO_TRIALS = ("__init__", "__main__", "trial")


@cache
def all_trials() -> dict[str, object]:
    """Every trial by its name, found by its module."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in NO_TRIALS)
    return {name: import_module(f"steps.trials.{name}").TRIAL for name in names}


def get_trial(name: str):
    """The trial of this name; raises ValueError that tells the nearest ones."""
    if name not in all_trials():
        raise ValueError(unknown("trial", name, all_trials(), "`python -m steps.trials --help` lists them"))
    return all_trials()[name]


def recorded_trial(trial, results: Path):
    """What was recorded of a trial, in the order of its problems."""
    from steps.core.ladder import today
    from steps.core.recorded import read_run, renamed
    from tutorial_lib.results import ResultsError

    def now(name: str | None) -> str | None:
        """Versions that are named for steps have today's names."""
        version = (name or "").removeprefix(f"{trial.name}_")
        return name if version == name else f"{trial.name}_{' '.join(map(today, version.split(' ')))}"

    runs = []
    for path in sorted(results.glob(f"*/trials/{trial.name}/*.json")):
        try:
            runs.append(renamed(read_run(path), now))
        except ResultsError:
            continue  # somebody else's file
    return sorted(runs, key=lambda run: run.the_problem().order)
