"""results.json: its schema, and reading and writing it.

Every number in a table, a plot or the prose comes from such a file. Files are written whole or not at all.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from tutorial_lib import timing
from tutorial_lib.architectures import ARCHITECTURES
from tutorial_lib.files import write_whole
from tutorial_lib.problem import Problem

RUNS_SCHEMA = 3  # of results.json; in 2 a measurement held what the ladder said of its step then
OF_THE_LADDER = ("number", "title", "file", "part", "fork", "inside", "previous_number", "change", "key_changes")
SHARED = 1.5  # times the fewest clocks: what the matrix product never takes alone, as all records show
LONGEST_NAME = 120  # of a kernel: those of C++ templates have up to a thousand characters
NEW_KERNEL = "new kernel"  # how the key changes of a skeleton's first step begin

Status = Literal["measured", "checked", "compiled", "skipped", "failed"]


COMPILERS = {"triton": "Triton", "nvidia-cuda-tileiras": "tileiras"}  # packages that make machine code, and their names


def compilers(versions: dict[str, str]) -> str:
    """Such as "Triton 3.9.0, tileiras 13.5.37": by what the kernels of these versions were made."""
    return ", ".join(f"{name} {versions[package]}" for package, name in COMPILERS.items() if package in versions)


def now() -> str:
    """This moment, as records have it: ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


Naming = Callable[[str], str]  # what a step is called now, by the name that a file has


def _called(name: str, info: ValidationInfo) -> str:
    return info.context(name) if info.context else name


StepName = Annotated[str, AfterValidator(_called)]  # a file keeps the name of its day; who reads it may say today's


class Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class OnProblem:
    """What has a field ``problem`` with the fields of one."""

    def the_problem(self) -> Problem:
        return Problem(**self.problem)


class Latency(Record):
    """Milliseconds a launch: the median of ``rounds`` rounds, their 10th and 90th percentile."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Latency:
        """Of what was found in so many rounds."""
        found = timing.spread(values)
        return cls(median=found.median, low=found.low, high=found.high, rounds=len(values))


class Sustained(Record):
    """A load that goes on, without rest: medians over turns. joules: a call; watts: that, over the time it takes."""

    latency_ms: Latency
    tflops: float
    clock_ghz: float | None = None
    cycles: float | None = None
    joules: float | None = None
    watts: float | None = None


class Speedup(Record):
    """How many times faster, taken inside each round; the verdict is ``verdict_of``'s.

    same_code: the same machine code ran, and what the rounds differ by is noise. earlier: the day of its rounds, where
    they were of an earlier run than the record's.
    """

    median: float
    low: float
    high: float
    verdict: Literal["faster", "slower", "same"]
    same_code: bool = False
    earlier: str | None = None


class Exchange(Record):
    """What ranks sent each other in a call, and how much of that cost time.

    sent_bytes: by the rank that sends most. computing_ms, sending_ms: of a call that sends nothing, and of what it
    sends alone; hidden_ms, open_ms: of the sending, what costs no time and what does. Null where nothing was timed.
    """

    sent_bytes: int
    computing_ms: Latency | None = None
    sending_ms: Latency | None = None
    hidden_ms: Latency | None = None
    open_ms: Latency | None = None


class Measurement(Record):
    """What one step, or a peer, did on the problem.

    A record knows a step of the ladder by its name alone: what the ladder says of it (``OF_THE_LADDER``) is looked up
    when the record is read (``steps.core.recorded``). A contender that stands in no ladder says it itself.
    number: null for a peer, and for what is inside another step: the name of that is ``inside``. file: the step's
    module, relative to the repository's root; part: the part of the ladder that it belongs to; fork: whether it stands
    beside the main path.

    status: measured (timed), checked (ran on the CPU, not timed), compiled, skipped or failed, with the reason for the
    last two. correct is null when it was not checked, the rest null where it does not apply.

    clock_ghz, cycles: of the SMs, from their own counters, and so many of them a call. host_us: microseconds that the
    host needs for an eager call. Records from before 2026-11-23 hold none of them, and sm_clock_mhz, which is NVML's:
    what the clock was set to, not what the SMs ran at.

    earlier: the day on which it was measured, where that was in an earlier run than the record's rounds.
    """

    number: int | None = None
    name: str
    title: str = ""
    gpus: int = 1  # that compute a call together: tflops and percent_of_ceiling are those of one of them
    file: str | None = None
    part: str | None = None
    fork: bool = False
    inside: str | None = None
    earlier: str | None = None
    status: Status
    reason: str | None = None
    latency_ms: Latency | None = None
    tflops: float | None = None
    gigabytes_per_s: float | None = None  # where bytes decide how long it takes, of those that must be moved
    percent_of_ceiling: float | None = None  # of the ceiling's operations a second, or of its bytes
    speedup_vs_baseline: Speedup | None = None
    speedup_vs_previous: Speedup | None = None
    previous: str | None = None  # the step that speedup_vs_previous speaks of
    previous_number: int | None = None
    max_error: float | None = None
    reference_error: float | None = None
    cosine: float | None = None  # between output and float64's, as others publish; null in records before 2026-11-24
    correct: bool | None = None
    repeat_difference: float | None = None  # between calls on the same inputs, the largest; 0: always the same bits
    change: str = ""
    key_changes: list[str] = []
    resources: dict | None = None  # what the compiler made, see tutorial_lib.compiler.Compiled; "code": its fingerprint
    counters: dict[str, float] | None = None  # what ncu read: see tutorial_lib.counters.METRICS
    clock_ghz: float | None = None
    cycles: float | None = None
    host_us: float | None = None
    sustained: Sustained | None = None
    sm_clock_mhz: float | None = None
    kernels: list[str] | None = None  # names of the GPU kernels that PyTorch chose, as far as ``LONGEST_NAME``
    exchange: Exchange | None = None  # of a step over several ranks

    @field_validator("kernels")
    @classmethod
    def _in_short(cls, kernels: list[str] | None) -> list[str] | None:
        cut = LONGEST_NAME - 1
        return kernels and [k if len(k) <= LONGEST_NAME else f"{k[:cut]}…" for k in kernels]

    @field_validator("resources")
    @classmethod
    def _with_zeros(cls, resources: dict | None) -> dict | None:
        return resources and _whole(resources)

    @property
    def label(self) -> str:
        return self.name if self.number is None else f"{self.number} {self.name}"

    @property
    def percent_of_ideal(self) -> float | None:
        """The share of the speed that as many GPUs would have without each other: of one alone, times their number."""
        return None if self.speedup_vs_baseline is None else 100 * self.speedup_vs_baseline.median / self.gpus

    @property
    def begins_a_skeleton(self) -> bool:
        """Whether this step is the first of a kernel of its own, by what it says has changed."""
        return bool(self.key_changes) and self.key_changes[0].startswith(NEW_KERNEL)

    @property
    def code(self) -> str | None:
        """A fingerprint of the machine code that ran, or None where it is not known."""
        return (self.resources or {}).get("code")

    @property
    def follows(self) -> bool:
        """Whether the previous step is the one with the number right before."""
        return self.number is not None and self.previous_number == self.number - 1

    @property
    def verdict(self) -> str:
        """ "faster" or "same code", or "faster than registers" where the previous step is not the one before."""
        speedup = self.speedup_vs_previous
        told = "same code" if speedup.same_code else speedup.verdict
        if self.follows or self.previous is None:
            return told
        return f"{told} {'as' if speedup.verdict == 'same' else 'than'} {self.previous}"


class Round(Record):
    """One round: every contender's latency in ms by name, its clock, and the GPU while they ran.

    clock_ghz holds who has one; joules, a call, are those of sustained rounds. computing_ms and sending_ms are of steps
    over several ranks: see ``Exchange``.
    """

    latency_ms: dict[str, float]
    clock_ghz: dict[str, float] = {}
    host_us: dict[str, float] = {}
    joules: dict[str, float] = {}
    computing_ms: dict[str, float] = {}
    sending_ms: dict[str, float] = {}
    sm_clock_mhz: float | None = None  # NVML's, median
    power_w: float | None = None  # largest
    temperature_c: float | None = None  # largest
    throttled_by: list[str] = []


class EarlierRounds(Record):
    """Rounds of an earlier run, of who was timed together in none since: their latencies and clocks.

    versions, notes: that run's.
    """

    day: str
    versions: dict[str, str] = {}
    notes: list[str] = []
    rounds: list[Round]


class Ceiling(Record):
    """The large matrix product that was timed in the same rounds, or where bytes decide, the copy.

    tflops or gigabytes_per_s, whichever of them it is, and that one's low and high.
    """

    what: str
    tflops: float | None
    gigabytes_per_s: float | None = None
    low: float
    high: float
    clock_ghz: float | None = None
    sustained: Sustained | None = None


class Run(Record, OnProblem):
    """All that was measured on one problem, on one machine, in one go.

    steps: in the order of the ladder. inside: variants of them. direction: which pass, see
    ``tutorial_lib.passes``. ranks: processes that measured together, on a GPU each; where there are several, speedups
    over the baseline are those over one GPU alone.
    """

    schema_: Literal[3] = Field(RUNS_SCHEMA, alias="schema")
    date: str  # ISO 8601, UTC
    machine: dict
    versions: dict[str, str]
    settings: dict
    problem: dict
    direction: Literal["forward", "backward", "paged", "fp8"] = "forward"
    ranks: int = 1
    steps: list[Measurement]
    inside: list[Measurement] = []
    peers: list[Measurement] = []
    ceiling: Ceiling | None = None
    rounds: list[Round] = []
    sustained: list[Round] = []
    earlier_rounds: list[EarlierRounds] = []  # the newest first
    notes: list[str] = []

    @model_validator(mode="before")
    @classmethod
    def _of_schema_2(cls, data):
        """An older record without what it says of the ladder."""
        if not isinstance(data, dict) or data.get("schema") != 2:
            return data
        steps = [_without_ladder(m) for m in (*data["steps"], *data.get("inside", ()))]
        return {**data, "schema": RUNS_SCHEMA, "steps": steps, "inside": []}

    def measurement(self, name: str) -> Measurement | None:
        """The step of this name, one that is inside another, or the peer; None where it is not in the run."""
        return next((m for m in self.everybody if m.name == name), None)

    def latencies(self, name: str) -> list[float] | None:
        """Milliseconds in every round, or None for who was not in all of them."""
        return [r.latency_ms[name] for r in self.rounds] if name in in_all(self.rounds) else None

    def together(self, m: Measurement, other: Measurement) -> EarlierRounds | None:
        """The newest rounds in which both were timed every time, be they of an earlier run; None where there are none.

        Of the record's own rounds the day is empty.
        """
        of_days = [EarlierRounds(day="", rounds=self.rounds), *self.earlier_rounds]
        return next((each for each in of_days if {m.name, other.name} <= in_all(each.rounds)), None)

    def as_together(self, m: Measurement, other: Measurement) -> Run:
        """This run, or of the rounds that ``together`` gives the earlier one: its day, versions and times."""
        found = self.together(m, other)
        if found is None or not found.day:
            return self
        timed = in_all(found.rounds)
        stale = dict.fromkeys(("clock_ghz", "cycles", "gigabytes_per_s", "percent_of_ceiling", "earlier"))

        def then(each: Measurement) -> Measurement:
            took = Latency.of([r.latency_ms[each.name] for r in found.rounds])
            tflops = each.tflops and each.tflops * each.latency_ms.median / took.median
            return each.model_copy(update=stale | {"latency_ms": took, "tflops": tflops})

        both = {
            kind: [then(x) for x in getattr(self, kind) if x.name in timed] for kind in ("steps", "inside", "peers")
        }
        of_then = {"date": found.day, "versions": self.versions | found.versions, "rounds": found.rounds}
        return self.model_copy(update=both | of_then | {"notes": found.notes})

    def speedup(self, m: Measurement, other: Measurement) -> Speedup | None:
        """How many times as fast ``m`` is as ``other``, or None where no rounds hold both."""
        if (found := self.together(m, other)) is None:
            return None
        before, now = ([r.latency_ms[x.name] for r in found.rounds] for x in (other, m))
        ratio = speedup_of(timing.speedup(before, now), m, other)
        return ratio.model_copy(update={"earlier": found.day}) if found.day else ratio

    def is_faster(self, m: Measurement, other: Measurement) -> bool:
        """Whether the verdict on ``m`` beside ``other`` is "faster"; where no rounds hold both, by their medians."""
        if ratio := self.speedup(m, other):
            return ratio.verdict == "faster"
        return timing.verdict(timing.Spread(*[m.tflops / other.tflops] * 3)) == "faster"

    def split(self, m: Measurement, other: Measurement) -> tuple[float, float] | None:
        """What a speedup consists of: (how many times fewer cycles, how many times the clock), medians over rounds.

        Their product is the speedup, but for what medians of ratios differ by. None where a clock was not read.
        """
        found = self.together(m, other)
        return split(found.rounds, m.name, other.name) if found else None

    def shared_rounds(self) -> int:
        """In how many rounds another process must have used the GPU, by the clocks that the matrix product took.

        0 where that cannot be told: it was not timed, its clock is not known, or what tensor cores do in a clock.
        """
        arch = ARCHITECTURES.get(self.machine.get("arch"))
        per_clock = ((arch and arch.tensor_flops) or 0) * self.machine.get("multiprocessors", 0)
        per_clock *= 2 if self.the_problem().fp8 else 1
        if not per_clock or self.ceiling is None or self.ceiling.tflops is None:
            return 0
        most = SHARED * timing.CEILING_FLOPS / per_clock
        name = timing.CEILING
        known = [r for r in self.rounds if name in r.latency_ms and name in r.clock_ghz]
        return sum(r.latency_ms[name] * 1e6 * r.clock_ghz[name] > most for r in known)

    @property
    def everybody(self) -> list[Measurement]:
        return [*self.steps, *self.inside, *self.peers]

    def by_speed(self) -> list[Measurement]:
        """The steps and variants timed in its rounds and right, the fastest first; not PyTorch's, their baseline."""
        from tutorial_lib.passes import PASSES

        others = [m for m in (*self.steps, *self.inside) if m.name != PASSES[self.direction].baseline and not m.earlier]
        return sorted((m for m in others if m.tflops and m.correct), key=lambda m: -m.tflops)

    def known(self) -> list[Measurement]:
        """The steps known to be no faster than its fastest: those of its rounds, and slower ones of earlier runs."""
        timed = self.by_speed()
        return timed + [m for m in self.steps if timed and m.earlier and m.tflops and m.tflops < timed[0].tflops]

    def with_earlier(self, record: Run) -> Run:
        """This run, and what an earlier record of the same problem holds that it leaves out.

        Steps and peers keep their figures, and the ratios of their own rounds; a step keeps its ratio to the previous
        one where this run leaves out that, and its counters, as a peer does. Kept are also rounds in which two were
        timed who are not both in this run's. Whoever this run has measured as something else, such as a step whose
        kernel has changed, keeps none of that. A step that this run leaves out may have changed since: the day of its
        figures is all that tells. A record of another GPU adds nothing.
        """
        if record.machine["name"] != self.machine["name"]:
            return self
        here = {m.name for m in self.everybody}
        all_of = {}
        for kind in ("steps", "inside", "peers"):
            all_of[kind], before = [_completed(m, self, record) for m in getattr(self, kind)], None
            for m in getattr(record, kind):
                if m.name not in here and m.status == "measured":
                    at = next((n for n, other in enumerate(all_of[kind], 1) if other.name == before), 0)
                    all_of[kind].insert(at, m.model_copy(update={"earlier": m.earlier or record.day}))
                before = m.name
        return self.model_copy(update=all_of | {"earlier_rounds": _rounds_kept(self, record)})

    @property
    def told(self) -> list[str]:
        """Its notes, and what was measured before its rounds."""
        notes = list(self.notes)
        ratios = {m.label: m.speedup_vs_previous.earlier for m in self.everybody if m.speedup_vs_previous}
        for day in sorted({m.earlier for m in self.everybody} | {*ratios.values()} - {None}, key=str):
            if names := [m.label for m in self.everybody if day and m.earlier == day]:
                notes.append(f"Measured on {day}, and not in these rounds: {', '.join(names)}.")
            if names := [label for label, measured in ratios.items() if day and measured == day]:
                notes.append(f"Set beside the previous step on {day}, and not in these rounds: {', '.join(names)}.")
        return notes + [f"Of the rounds of {each.day}: {note}" for each in self.earlier_rounds for note in each.notes]

    @property
    def day(self) -> str:
        return self.date[:10]

    @property
    def compilers(self) -> str:
        return compilers(self.versions)

    @property
    def made_by(self) -> tuple[str, str]:
        """The GPU and the compilers: times of one table are comparable where these are the same."""
        return self.machine["name"], self.compilers

    @property
    def where(self) -> str:
        """The machine, the day and the compilers: what must stand beside recorded numbers on a page that shows code."""
        return ", ".join(filter(None, [self.machine["name"], self.day, self.compilers]))

    @property
    def timed(self) -> bool:
        return self.steps_timed > 0

    @property
    def steps_timed(self) -> int:
        """How many steps were timed, in this run or, as far as it holds their figures, before."""
        return sum(m.status == "measured" for m in (*self.steps, *self.inside))


def _without_ladder(m: dict) -> dict:
    """A measurement as it is written down: what a ladder says is there, if it says something, for who is in none."""
    return {k: v for k, v in m.items() if k not in OF_THE_LADDER or (v and not m.get("part"))}


def _said(fields: dict) -> dict:
    """Without fields that are null, those of a ratio included, and without what most measurements say."""
    told = {k: v for k, v in fields.items() if v is not None and (k, v) not in USUAL}
    return {k: _said(v) if k.startswith("speedup") else v for k, v in told.items()}


def _completed(m: Measurement, run: Run, record: Run) -> Measurement:
    """A measurement of a run with what ``record`` holds, too: the ratio to a previous step that its own rounds lack,
    and counters where none were read: of the same machine code, or, where there is none, of the same versions.
    """
    before = record.measurement(m.name)
    if before is None or m.status != "measured":
        return m
    if not _still(m, before, run, record.versions):
        return m
    more = {}
    if before.speedup_vs_previous and not m.speedup_vs_previous:
        ratio = before.speedup_vs_previous
        day = ratio.earlier or before.earlier or record.day
        more["speedup_vs_previous"] = ratio.model_copy(update={"earlier": day})
    if m.counters is None:
        more["counters"] = before.counters
    return m.model_copy(update=more)


def _still(m: Measurement, before: Measurement, run: Run, versions: dict[str, str]) -> bool:
    """Whether a run measured what an earlier one did: the same machine code; where there is none, the same versions."""
    return same_code(m, before) or (m.code is before.code is None and run.versions == versions)


def in_all(rounds: Sequence[Round]) -> set[str]:
    """Who was timed in each of some rounds."""
    return set.intersection(*(set(r.latency_ms) for r in rounds)) if rounds else set()


def _rounds_kept(run: Run, record: Run) -> list[EarlierRounds]:
    """The rounds of an earlier record, of its own and of those before, that tell of two whom no newer ones hold both.

    Left out is whoever the run has measured since as something else.
    """
    newer, kept = [in_all(run.rounds)], []
    own = EarlierRounds(day=record.day, versions=record.versions, notes=record.notes, rounds=record.rounds)
    for each in (own, *record.earlier_rounds):
        names = {n for n in in_all(each.rounds) if _may_stand_beside(n, run, record, each.versions)}
        pairs = ({n, other} for n in names for other in names if n != other)
        new = set().union(*(pair for pair in pairs if not any(pair <= since for since in newer)))
        if new:
            latencies = [{n: r.latency_ms[n] for n in r.latency_ms if n in new} for r in each.rounds]
            clocks = [{n: r.clock_ghz[n] for n in r.clock_ghz if n in new} for r in each.rounds]
            rounds = [Round(latency_ms=of, clock_ghz=clock) for of, clock in zip(latencies, clocks, strict=True)]
            kept.append(each.model_copy(update={"rounds": rounds}))
            newer.append(new)
    return kept


def _may_stand_beside(name: str, run: Run, record: Run, versions: dict[str, str]) -> bool:
    """Whether old rounds tell of who a run has measured since, or of someone whom it leaves out."""
    before, now = record.measurement(name), run.measurement(name)
    if before is None:  # the matrix product, or who is no longer in the record
        return False
    return now is None or (now.status == "measured" and _still(now, before, run, versions))


def split(rounds: Sequence[Round], name: str, other: str) -> tuple[float, float] | None:
    """(cycles of ``other`` over those of ``name``, the clock of ``name`` over that of ``other``), or None."""
    both = [r for r in rounds if {name, other} <= set(r.clock_ghz)]
    if not both:
        return None
    cycles = [r.latency_ms[other] * r.clock_ghz[other] / (r.latency_ms[name] * r.clock_ghz[name]) for r in both]
    clocks = [r.clock_ghz[name] / r.clock_ghz[other] for r in both]
    return timing.spread(cycles).median, timing.spread(clocks).median


def same_code(mine: Measurement | None, other: Measurement | None) -> bool:
    """Whether both are known to have run the same machine code."""
    return mine is not None and other is not None and mine.code is not None and mine.code == other.code


def verdict_of(ratio: timing.Spread, mine: Measurement | None, other: Measurement | None) -> str:
    """What may be said of how many times as fast ``mine`` is as ``other``: the same code is never faster or slower."""
    return "same" if same_code(mine, other) else timing.verdict(ratio)


def speedup_of(ratio: timing.Spread, mine: Measurement | None, other: Measurement | None) -> Speedup:
    """A ratio that was taken inside the rounds, with its verdict."""
    return Speedup(
        median=ratio.median,
        low=ratio.low,
        high=ratio.high,
        verdict=verdict_of(ratio, mine, other),
        same_code=same_code(mine, other),
    )


def best_of(run: Run, candidates: Sequence[Measurement]) -> Measurement:
    """The best of some timed steps of a run: the earliest that none of the others is faster than, by the verdict.

    Within the noise chance decides which is the fastest, and the best must not change with it; the earliest is the
    simplest. Variants, which have no number, come behind all steps.
    """
    names = {m.name for m in candidates}
    in_order = [m for m in (*run.steps, *run.inside) if m.name in names]
    beaten_by_none = (m for m in in_order if not any(run.is_faster(other, m) for other in in_order))
    return next(beaten_by_none, max(in_order, key=lambda m: m.tflops))


class ResultsError(ValueError):
    """A results.json that is missing, not JSON, or not of this schema; the message is one line."""


DIGITS = 6  # of a number in a file: a millionth of a millisecond is less than any clock here can tell
EXACT = ("problem",)  # but for what a problem is called by
USUAL = (("same_code", False), ("gpus", 1))
OTHER_DIGITS = {"cosine": 10, "host_us": 4}  # the one lies next to 1; of the other the clock tells no more


def _rounded(value, digits: int = DIGITS):
    """A record's values, as JSON has them, with numbers of so many digits."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else float(f"{value:.{digits}g}")  # what is counted keeps all digits
    if isinstance(value, dict):
        return {k: v if k in EXACT else _rounded(v, OTHER_DIGITS.get(k, digits)) for k, v in value.items()}
    return [_rounded(inner, digits) for inner in value] if isinstance(value, list) else value


def _bare(figures: dict) -> dict:
    """What the compiler made, as ``Compiled.as_dict`` has it, without zeros and nothings: ``_whole`` adds them.

    Of the instructions by kind those of the hot loop are kept: nothing reads the whole kernel's of a record.
    """
    counts = {"hot_loop": {k: n for k, n in figures["hot_loop"].items() if n}} if figures.get("hot_loop") else {}
    return {key: value for key, value in (figures | counts).items() if value is not None and key != "kinds"}


def _whole(figures: dict) -> dict:
    from tutorial_lib import amdgcn, sass
    from tutorial_lib.compiled import FIGURES

    kinds = (amdgcn if figures.get("amd") else sass).ALL_KINDS
    counts = {"hot_loop": dict.fromkeys(kinds, 0) | figures["hot_loop"]} if figures.get("hot_loop") else {}
    return dict.fromkeys(FIGURES) | figures | counts


def as_json(record: Record) -> str:
    """A record as its file holds it: a line for each field, and for each element of a list of records."""

    def one_line(value) -> str:
        return json.dumps(value, ensure_ascii=False)

    lines = []
    whole = _rounded(json.loads(record.model_dump_json(by_alias=True)))  # NaN is null there, as JSON has none
    if isinstance(record, Run):
        whole["steps"] += whole.pop("inside")
        whole["rounds"] = [{k: v for k, v in each.items() if v not in ({}, [], None)} for each in whole["rounds"]]
        for kind in ("steps", "peers"):
            whole[kind] = [_said(_without_ladder(m)) for m in whole[kind]]
            for m in (m for m in whole[kind] if "resources" in m):
                m["resources"] = _bare(m["resources"])
    for key, value in whole.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            value = "[\n  " + ",\n  ".join(map(one_line, value)) + "\n ]"
        elif isinstance(value, dict) and value and all(isinstance(inner, dict) for inner in value.values()):
            value = "{\n  " + ",\n  ".join(f"{one_line(k)}: {one_line(inner)}" for k, inner in value.items()) + "\n }"
        else:
            value = one_line(value)
        lines.append(f" {one_line(key)}: {value}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write_run(run: Run, folder: Path) -> Path:
    """Write ``folder/results.json`` and return its path."""
    path = Path(folder, "results.json")
    write_whole(path, as_json(run))
    return path


def read_bare_run(path: Path) -> Run:
    """Read a results.json, or the one in a folder, without what the ladder says of its steps; raises ResultsError."""
    path = Path(path)
    if path.is_dir():
        path /= "results.json"
    try:
        return Run.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ResultsError(f"cannot read {path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ResultsError(f"{path} is not a results.json of schema {RUNS_SCHEMA}: {where}: {first['msg']}") from None


def folder_name(slug: str, direction: str) -> str:
    """The name of the folder that a run on the problem of this slug is kept in."""
    return slug if direction in ("forward", "fp8") else f"{slug}_{direction}"  # a slug says its dtype


def of_one_machine(runs: Sequence[Run]) -> list[Run]:
    """The runs of the machine on which one run timed most steps, in their order: what a page's tables are made of.

    A part's headline is such a run, so tables and the headline are of one GPU.
    """
    most = max((run for run in runs if run.timed), key=lambda run: (run.steps_timed, run.date), default=None)
    return [run for run in runs if most and run.machine["name"] == most.machine["name"]]


def of_most_problems(runs: Sequence[Run]) -> list[Run]:
    """The runs of the machine on which most were timed, in their order: what tells of all problems is made of them."""
    counted = Counter(run.machine["name"] for run in runs if run.timed)
    return [run for run in runs if counted and run.machine["name"] == counted.most_common(1)[0][0]]


def of_every_part(runs: Sequence[Run]) -> list[Run]:
    """Those that hold a step of every part that any of them holds, and have as many queries as keys, in their order.

    What is told over the lengths is made from them: a run of a few steps would leave gaps.
    """
    parts = {m.part for run in runs for m in run.steps}
    square = [run for run in runs if run.problem["seq_len_q"] == run.problem["seq_len_kv"]]
    return [run for run in square if parts <= {m.part for m in run.steps}]
