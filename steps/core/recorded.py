"""What is recorded under results/: the run of a problem, the search for tiles; and how a survey is shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

from steps.core.grids import GRIDS
from steps.core.ladder import (
    get_step,
    is_variant,
    line,
    module_file,
    owner_of,
    part_of,
    today,
    whole_ladder,
)
from tutorial_lib import records as of_files
from tutorial_lib.files import RESULTS
from tutorial_lib.passes import PASSES
from tutorial_lib.problem import Problem
from tutorial_lib.records import BASELINE, FRONT_DOOR, Search, Survey, Sweep, Swept, recorded_searches
from tutorial_lib.results import Latency, Measurement, ResultsError, Round, Run, of_most_problems, read_bare_run

# These records know steps by the names of their day; they are read by today's.
recorded_sweeps = partial(of_files.recorded_sweeps, today=today)
recorded_candidates = partial(of_files.recorded_candidates, today=today)
recorded_trainings = partial(of_files.recorded_trainings, today=today)
LABEL = re.compile(r"step \d+ (?P<name>\w+)")  # in a title: "one GPU alone, by step 207 kv_multicast"


def read_run(path: Path) -> Run:
    """Read a results.json, or the one in a folder; raises ResultsError."""
    return in_the_ladder(read_bare_run(path))


def in_the_ladder(run: Run) -> Run:
    """A run with what today's ladder says of its steps, in the ladder's order.

    Steps that are called otherwise now are found under their new names, those that are no more among the peers.
    """
    run = renamed(run)
    order = {step.name: n for n, step in enumerate(whole_ladder())}
    measured = [*run.steps, *run.inside]
    gone = [m for m in measured if not m.title and m.name not in order]
    told = sorted((_told(m, run) for m in measured if m not in gone), key=lambda m: order.get(m.name, len(order)))
    steps, inside = [m for m in told if not m.inside], [m for m in told if m.inside]
    peers = [m.model_copy(update={"title": LABEL.sub(_label_of, m.title)}) for m in run.peers]
    peers = [*peers, *(m.model_copy(update={"title": m.name}) for m in gone)]
    return run.model_copy(update={"steps": steps, "inside": inside, "peers": peers})


def _label_of(found: re.Match) -> str:
    """Today's label of a step that a peer's title names with a number and a name of its day."""
    return f"step {get_step(today(found['name'])).label}"


def _told(m: Measurement, run: Run) -> Measurement:
    if m.title:  # in no ladder: it says itself what it is
        return m
    step = get_step(m.name)
    before, ratio = m.previous, m.speedup_vs_previous
    if before not in line(step) and before not in _inside(step.name):
        before, ratio = None, None  # what the step was put together from may stand in for its predecessor
    if step.previous and before != step.previous.name:
        other = run.measurement(step.previous.name)
        now = other and m.status == "measured" and run.speedup(m, other)
        if now or before is None:
            before, ratio = step.previous.name, now or None
    compared = {"previous": before, "speedup_vs_previous": ratio}
    compared["previous_number"] = before and get_step(before).number
    return m.model_copy(update=_said(step.name) | compared)


@cache
def _inside(name: str) -> frozenset[str]:
    """The variants that stand inside a step."""
    return frozenset(step.name for step in whole_ladder() if step.inside == name)


@cache
def _said(name: str) -> dict:
    """What the ladder says of a step, but for what it goes on from."""
    step = get_step(name)
    return {
        "number": step.number,
        "title": step.title,
        "file": module_file(step),
        "part": part_of(owner_of(step).number).name,
        "fork": step.fork,
        "inside": step.inside if is_variant(step) else None,
        "change": step.change,
        "key_changes": step.key_changes(),
    }


def renamed(run: Run, now: Callable[[str | None], str | None] = today) -> Run:
    """A run that knows steps by today's names, or by those that ``now`` gives."""
    if all(now(m.name) == m.name for m in run.steps):
        return run

    def of_round(r: Round) -> Round:
        by_name = {field: value for field, value in r if isinstance(value, dict)}
        return r.model_copy(update={field: {now(k): x for k, x in value.items()} for field, value in by_name.items()})

    steps = [m.model_copy(update={"name": now(m.name), "previous": now(m.previous)}) for m in run.steps]
    earlier = [e.model_copy(update={"rounds": [of_round(r) for r in e.rounds]}) for e in run.earlier_rounds]
    rounds = {kind: [of_round(r) for r in getattr(run, kind)] for kind in ("rounds", "sustained")}
    return run.model_copy(update={"steps": steps, "earlier_rounds": earlier, **rounds})


def recorded_runs(folder: Path, direction: str = "forward", several: bool = False) -> list[Run]:
    """Every readable run with timings under ``folder`` (``<machine>/<problem>/results.json``), newest first.

    several: those on several GPUs at once, in place of those on one.
    """
    runs = []
    for path in sorted(Path(folder).glob("*/*/results.json")):
        try:
            about = path.stat()
            run = _read_once(path, about.st_mtime_ns, about.st_size)
        except (OSError, ResultsError):
            continue  # an older schema, or a file of somebody else's: it is nothing to show
        if run.timed and run.direction == direction and (run.ranks > 1) == several:
            runs.append(run)
    return sorted(runs, key=lambda run: run.date, reverse=True)


def recorded_timings(folder: Path, direction: str = "forward") -> list[Run]:
    """What the choice is made from: ``recorded_runs``, and behind them the rows of sweeps as runs of few steps."""
    rows = ((sweep, row) for sweep in (*recorded_candidates(folder), *recorded_sweeps(folder)) for row in sweep.rows)
    swept = [as_run(sweep, row) for sweep, row in rows if row.pass_ == direction and row.timed]
    return recorded_runs(folder, direction) + swept


def as_run(sweep: Sweep, row: Swept) -> Run:
    """A row of a sweep, forward or backward, as a run of PyTorch's attention and of the steps that were timed."""
    kind, problem = PASSES[row.pass_], row.the_problem()
    if FRONT_DOOR in row.milliseconds:
        names = {BASELINE: kind.baseline} | ({} if row.fell_back else {FRONT_DOOR: row.steps[-1]})
    else:
        names = {name: today(name) for name in row.milliseconds}
    steps = []
    for contender, name in names.items():
        took = Latency.of(row.milliseconds[contender])
        tflops = kind.operations(problem) / took.median / 1e9
        of_host = row.host_us.get(contender)
        timed = {"status": "measured", "correct": True, "latency_ms": took, "tflops": tflops, "host_us": of_host}
        steps.append(Measurement(name=name, **timed))
    rounds = [
        Round(latency_ms={names[c]: ms[n] for c, ms in row.milliseconds.items() if c in names and n < len(ms)})
        for n in range(len(row.milliseconds[BASELINE]))
    ]
    made = Run(
        date=row.date,
        machine=sweep.machine,
        versions=row.versions,
        settings={},
        problem=row.problem,
        direction=row.pass_,
        steps=steps,
        rounds=rounds,
    )
    baseline = made.measurement(kind.baseline)
    beside = [m.model_copy(update={"speedup_vs_baseline": made.speedup(m, baseline)}) for m in made.steps]
    return in_the_ladder(made.model_copy(update={"steps": beside}))


@cache
def _read_once(path: Path, changed: int, size: int) -> Run:
    """A chapter asks for all of them a dozen times."""
    return read_run(path)


def find_recorded(
    asked: Problem, folders: Sequence[Path] = (RESULTS,), direction: str = "forward", step: str | None = None
) -> Run | None:
    """The run with GPU timings of this very problem that holds most steps, the newest of several; None without one.

    step: the name of one that counts before the others: runs that hold it come first.
    """
    runs = [run for folder in dict.fromkeys(folders) for run in recorded_runs(folder, direction)]
    runs = [run for run in runs if run.the_problem() == asked]

    def holds(run: Run) -> tuple:
        measured = [m.name for m in (*run.steps, *run.inside) if m.status == "measured"]
        return step in measured, len(measured), run.date

    return max(runs, key=holds, default=None)


def completed_run(run: Run, record: Run) -> Run:
    """``run.with_earlier(record)`` with its steps in the order of the ladder."""
    return in_the_ladder(run.with_earlier(record))


def recorded_grid(name: str, results: Path = RESULTS) -> list[Run]:
    """The runs of a grid's problems in its order, as far as they are recorded, of the machine that has most of them."""
    problems = GRIDS[name].problems
    runs = [run for run in recorded_runs(results, GRIDS[name].direction) if run.the_problem() in problems]
    newest = {run.the_problem(): run for run in reversed(of_most_problems(runs))}
    return [newest[problem] for problem in problems if problem in newest]


@cache
def recorded_search(arch: str, results: Path = RESULTS, direction: str = "forward") -> Search | None:
    """The newest recorded search of a pass on an architecture, or None."""
    found = [search for search in recorded_searches(results, direction, today) if search.machine["arch"] == arch]
    return max(found, key=lambda search: search.date, default=None)


def read_survey(path: Path) -> Survey:
    """The survey in a file, by the steps' labels; raises OSError and ValueError."""
    return labelled(Survey.model_validate_json(path.read_bytes(), context=today))


def labelled(survey: Survey) -> Survey:
    """A survey by the steps' labels ("3 exp2"), as it is shown; its file knows their names."""
    known = {step.name: step.label for step in whole_ladder()}
    labels = {name: known.get(name) for name in survey.steps}
    found = {label: survey.compiled[name] for name, label in labels.items() if label}
    return survey.model_copy(update={"steps": list(found), "compiled": found})
