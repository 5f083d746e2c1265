"""All records but results.json: their schemas, and reading them.

Files of older schemas, and those that are no such record, are passed over: they are nothing to show.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, ValidationError

from tutorial_lib import timing
from tutorial_lib.results import Latency, Naming, OnProblem, Record, StepName, Sustained, compilers, folder_name, now

SCHEMA = 2


class Dated(Record):
    """Something that was found on one machine. FILES: where such records are, in a folder of results."""

    FILES: ClassVar[str]

    schema_: Literal[2] = Field(SCHEMA, alias="schema")
    date: str
    machine: dict

    @property
    def day(self) -> str:
        return self.date[:10]


class Versioned(Dated):
    """With the versions of everything that it depends on."""

    versions: dict[str, str]

    @classmethod
    def made_here(cls, machine: dict, **fields) -> Self:
        """A record of this moment, with what is installed here."""
        from tutorial_lib.hardware import describe_versions

        return cls(schema=SCHEMA, date=now(), machine=machine, versions=describe_versions(), **fields)


class Survey(Record):
    """What the compiler made of every step for every architecture: ``Compiled.as_dict()``, or why there is nothing."""

    schema_: Literal[2] = Field(SCHEMA, alias="schema")
    date: str
    compiler: str
    problem: dict
    architectures: list[str]
    steps: list[StepName]
    compiled: dict[StepName, dict[str, dict | str]]  # step -> architecture -> figures or reason


class Configuration(Record):
    """How a cuTile kernel was compiled in a search; null: left to the compiler."""

    query: int
    key: int
    warps: int | None
    cluster: int | None
    occupancy: int | None

    @property
    def label(self) -> str:
        together = [f"{self.warps} warps"] if self.warps else []
        together += [f"cluster of {self.cluster}"] if self.cluster else []
        return ", ".join([f"{self.query} x {self.key}", *together, f"{self.occupancy} per SM"])


class Found(Record):
    """What ``cuda.tile.tune`` measured of a configuration: the mean, and half of its 95 % confidence interval."""

    configuration: Configuration
    microseconds: float
    margin: float
    samples: int
    tflops: float
    registers: int
    spill_instructions: int | None
    shared_bytes: int


class Searched(Record, OnProblem):
    """A search on one problem, the fastest first, and why the others failed.

    kernel: which of the step's kernels, where it has several. step: the step's name. date: when it was searched. Older
    records lack both.
    """

    problem: dict
    kernel: str | None = None
    step: StepName | None = None
    date: str | None = None
    found: list[Found]
    failed: dict[str, str]


class Search(Versioned):
    """What was searched on one machine. date, machine and versions: of the newest part."""

    searched: list[Searched]

    @property
    def day(self) -> str:
        return self.date[:10]


class UnitRate(Record):
    """What an SM does in a clock, measured by a kernel that does nothing else: see ``tutorial_lib.rates``."""

    name: str
    what: str
    a_clock: Latency  # operations (of results, for exponentials and multiply-adds) a clock and SM; no milliseconds
    clock_ghz: float


class Load(Record):
    """A load's speed, clock and power, with random numbers for inputs or with zeros. sustained: without any rest."""

    name: str
    inputs: Literal["random", "zeros"]
    rested_ms: Latency
    rested_tflops: float
    rested_ghz: float | None
    sustained: Sustained


class Physics(Versioned):
    """What a machine does whatever the kernel: the rates of its units in clocks, and what power does to its clock."""

    FILES = "*/physics.json"

    problem: dict  # of the attention among the loads
    rates: list[UnitRate]
    loads: list[Load]
    notes: list[str] = Field(default_factory=list)

    def rate(self, name: str) -> float | None:
        """The median rate of a unit, or None where it was not measured."""
        return next((r.a_clock.median for r in self.rates if r.name == name), None)


class Trace(Versioned, OnProblem):
    """When the roles of a kernel's blocks waited, issued products and took their softmax, in clocks of the SM.

    slowed: how many times as long the kernel took with the stamps. clocks: of the traced blocks, the median.
    shares: role -> what it did -> its share of the role's time, all traced blocks together. events: of one block, as
    (role, kind, label, begin, end), kinds as ``steps.writing.stamps`` has them; those near its start and its end.
    """

    FILES = "*/*/trace_*.json"

    problem: dict
    step: StepName
    slowed: Latency  # a factor; no milliseconds
    blocks: int
    clocks: float
    shares: dict[str, dict[str, float]]
    events: list[tuple[str, str, str, int, int]]

    @property
    def compilers(self) -> str:
        return compilers(self.versions)


class TrainingTime(Record, OnProblem):
    """Attention with its gradients, called eagerly: milliseconds of every round, by contender.

    steps: of both passes; front_door: whether they were called through ``steps.attention``.
    """

    problem: dict
    steps: list[StepName]
    front_door: bool
    milliseconds: dict[str, list[float]]


class Training(Versioned):
    """A small transformer trained with SDPA and with steps (``steps.train``).

    losses: of every training step, nats a token, by what computed attention. floor: the least that the data allow.
    """

    FILES = "*/training.json"

    forward: StepName
    backward: StepName
    size: dict
    floor: float
    losses: dict[str, list[float]]
    timed: list[TrainingTime]

    @property
    def day(self) -> str:
        return self.date[:10]


FRONT_DOOR, BASELINE = "steps.attention", "sdpa"  # the contenders of a sweep that take every problem


class Swept(Record, OnProblem):
    """A problem of a sweep: milliseconds a call, by contender; ``Sweep`` says what a call is.

    family, model: from which it was drawn; seed: of the drawing. steps: by which ``steps.attention`` computes it: one,
    for "forward", or one for each pass; "sdpa" alone where it leaves it to PyTorch; empty in ``Candidates``.
    milliseconds: of every round; who was far behind in the first took part in no other. host_us: microseconds that the
    host needs for a call, by contender, the median of the rounds; empty where the calls' own times include it.
    skipped: who takes no part, and why. max_error, limit: of the front door's output or gradients, as
    ``tutorial_lib.accuracy`` has them; null where they were not checked. failure: why nothing was timed.
    """

    pass_: Literal["forward", "backward", "training"] = Field(alias="pass")
    problem: dict
    family: str
    model: str
    seed: int
    date: str
    versions: dict[str, str]
    steps: list[StepName] = Field(default_factory=list)
    milliseconds: dict[str, list[float]] = Field(default_factory=dict)
    host_us: dict[str, float] = Field(default_factory=dict)
    skipped: dict[str, str] = Field(default_factory=dict)
    max_error: float | None = None
    limit: float | None = None
    failure: str | None = None

    @property
    def correct(self) -> bool | None:
        """Whether the error is within its limit; None where that was not checked."""
        return None if self.limit is None else self.max_error is not None and self.max_error <= self.limit

    @property
    def timed(self) -> bool:
        """Whether it is timed, and right as far as that was checked."""
        return self.failure is None and self.correct is not False

    @property
    def fell_back(self) -> bool:
        """Whether ``steps.attention`` left it to PyTorch."""
        return self.steps == [BASELINE]

    def waited(self, name: str) -> list[float]:
        """Milliseconds a call in every round that who makes such calls eagerly waits: no less than the host needs."""
        least = self.host_us.get(name, 0.0) / 1000
        return [max(found, least) for found in self.milliseconds[name]]

    @property
    def best_peer(self) -> str:
        """The fastest of the others, by its median."""
        others = [name for name in self.milliseconds if name != FRONT_DOOR]
        return min(others, key=lambda name: timing.spread(self.milliseconds[name]).median)

    def ratio(self, name: str) -> timing.Spread:
        """How many times as fast ``steps.attention`` is as a contender, in each of the rounds that it took part in."""
        its = self.milliseconds[name]
        return timing.speedup(its, self.milliseconds[FRONT_DOOR][: len(its)])


class Sweep(Dated):
    """``steps.attention`` beside all others on problems that people bring (``steps.sweep``).

    A call is attention without gradients ("forward"), the gradients alone, by autograd ("backward"), or both
    ("training"). The first two are times on the GPU, the host's left out; the third is what a caller waits, the host's
    time included. date: of the newest row.
    """

    FILES = "*/sweep.json"

    rows: list[Swept]

    def of(self, timed: str) -> list[Swept]:
        """The timed rows of a pass, the slowest beside the best of the others first."""
        rows = [row for row in self.rows if row.pass_ == timed and row.timed]
        return sorted(rows, key=lambda row: row.ratio(row.best_peer).median)


class Candidates(Sweep):
    """Every step that might be the fastest, beside SDPA, on such problems, in forward calls (``steps.sweep --steps``).

    ``steps.best`` learns from them which is.
    """

    FILES = "*/candidates.json"


def recorded(kind: type[Dated], folder: Path, today: Naming | None = None) -> list:
    """Every readable record of a kind under ``folder``, newest first. today: by which names steps are known."""
    return _readable(kind, Path(folder).glob(kind.FILES), today)


recorded_physics, recorded_trainings, recorded_sweeps, recorded_candidates = (
    partial(recorded, kind) for kind in (Physics, Training, Sweep, Candidates)
)


def recorded_traces(folder: Path, step: str | None = None) -> list[Trace]:
    """Every readable ``<machine>/<problem>/trace_<step>.json`` under ``folder``, newest first; of one step, or all."""
    return _readable(Trace, Path(folder).glob(f"*/*/trace_{step or '*'}.json"))


def traces_in(folder: Path) -> list[Trace]:
    """The readable traces beside a run's results.json, in the order in which they were made."""
    return _readable(Trace, Path(folder).glob("trace_*.json"))[::-1]


def _readable(kind: type, paths: Iterable[Path], today: Naming | None = None) -> list:
    found = []
    for path in sorted(paths):
        try:
            found.append(kind.model_validate_json(path.read_bytes(), context=today))
        except (OSError, ValidationError):
            continue  # an older schema, or a file of somebody else's: it is nothing to show
    return sorted(found, key=lambda record: record.date, reverse=True)


def read_search(path: Path, today: Naming | None = None) -> Search | None:
    """The search in a file; None where there is none that can be read."""
    return next(iter(_readable(Search, [path], today)), None)


def recorded_searches(folder: Path, direction: str = "forward", today: Naming | None = None) -> list[Search]:
    """Every readable search of this pass under ``folder`` (``<machine>/search.json``), newest first."""
    return _readable(Search, Path(folder).glob(f"*/{folder_name('search', direction)}.json"), today)
