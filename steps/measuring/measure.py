"""Measures steps on a problem: checks each, times them in turn, and returns what was found as a ``Run``."""

from __future__ import annotations

import json
import math
import os
import random
import statistics
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from itertools import islice

from steps.core.ladder import get_step, is_variant, module_file, owner_of, part_of
from steps.core.path import stands_on
from steps.core.step import DEFAULT_ARCH, Step
from steps.measuring.ahead import Ahead
from steps.measuring.bench import Bench, input_sets
from tutorial_lib import timing
from tutorial_lib.counters import CountersError, find_ncu, read_counters, together
from tutorial_lib.hardware import available_bytes, describe_machine, describe_versions, gpu_turn
from tutorial_lib.needs import is_missing, lacking
from tutorial_lib.passes import Pass, pass_of
from tutorial_lib.problem import FP8, Problem
from tutorial_lib.results import (
    Ceiling,
    Exchange,
    Latency,
    Measurement,
    Round,
    Run,
    Speedup,
    Sustained,
    now,
    speedup_of,
)
from tutorial_lib.samples import cycles_of, ghz_of, median_of, sustained_of
from tutorial_lib.worker import Inline, Worker, WorkerFailure

CHECKS_A_WORKER = 3  # on the CPU: fewer do not repay the seconds that a worker takes to start
ONCE = "steps.once"  # the command that runs steps once each, under a profiler's eyes


@dataclass(frozen=True)
class Settings:
    """How to measure. rounds: turns of everybody; timeout: seconds of silence that end a step.

    sustained: turns in a load that goes on, after the others. lasting: the steps that take them, by name, beside the
    baseline, the peers and the ceiling; None for all.
    isolated: in a process of its own; without, steps may hold what cannot be sent to one: a notebook's function.
    ranks: processes that measure together, each of which calls ``measure``; the group is there, and none is isolated.
    """

    device: str  # "cuda" or "cpu"
    seed: int
    rounds: int = 15
    sustained: int = 0
    lasting: tuple[str, ...] | None = None
    check: bool = True
    timeout: float = 120.0
    profile: bool = False
    isolated: bool = True
    ranks: int = 1


class Progress:
    """What a caller may want to show while it waits; this one shows nothing. Several threads may tell it things."""

    def total(self, checks: int, rounds: int, round_seconds: float) -> None:
        """How much there is to do: contenders to check, and rounds of timing, of so many seconds each by plan."""

    def doing(self, what: str) -> None:
        """An action begins."""

    def checked(self) -> None:
        """A contender was checked and compiled, or found to be unable to run."""

    def timed(self) -> None:
        """A round of timing is over."""


@dataclass
class _Contender:
    step: Step
    status: str = "skipped"
    reason: str | None = "not reached"
    accuracy: object = None
    repeat_difference: float | None = None
    resources: dict | None = None
    kernels: list[str] | None = None
    counters: dict | None = None
    sent_bytes: int | None = None  # by a rank in a call
    runs: bool = False  # nothing stands against timing it

    def fail(self, reason: str) -> None:
        # A peer that cannot run is nobody's failure here, and what does not fit in memory is wrong nowhere.
        harmless = self.step.backend == "peer" or reason.startswith("OutOfMemoryError")
        self.status, self.reason = ("skipped" if harmless else "failed"), reason


def measure(
    problem: Problem,
    steps: Sequence[Step],
    peers: Sequence[Step],
    settings: Settings,
    progress: Progress | None = None,
    baseline: Step | None = None,
) -> tuple[Run, bool, str]:
    """Check and, on a GPU, time ``steps`` and ``peers`` on ``problem``.

    baseline: what speedups are over, None for PyTorch's own. Of several ranks all call this with the same arguments.
    Returns the run, whether it was interrupted (Ctrl-C: the run then holds what was finished), and the worker's
    output. A step that raises, is wrong, faults or hangs is recorded as failed; the others are measured all the same.
    """
    progress = progress or Progress()
    on_gpu = settings.device == "cuda"
    kind = pass_of(steps[0])
    baseline = baseline or _baseline_of(steps[0])
    taking_part = [baseline, *steps] if on_gpu and baseline not in steps else steps
    contenders = [_Contender(step) for step in (*taking_part, *peers)]
    rounds: list[dict[str, dict]] = []
    sustained: list[dict[str, dict]] = []
    notes: list[str] = []
    interrupted = False
    needs, free = kind.needed_bytes(problem, settings.check), available_bytes(settings.device)
    with ExitStack() as stack:
        workers = [
            stack.enter_context(made)
            for made in _workers(problem, kind, settings, _how_many(contenders, settings, needs, free))
        ]
        try:
            rounds_asked = settings.rounds + settings.sustained if on_gpu else 0
            a_sample = (timing.SAMPLE_MS + timing.REST_MS) / 1000
            progress.total(len(contenders), rounds_asked, a_sample * (len(contenders) + 1))
            if needs > free:
                for contender in contenders:
                    contender.reason = f"the problem needs {needs / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free"
            else:
                arch = describe_machine(settings.device)["arch"] or DEFAULT_ARCH
                notes += _qualify_all(workers, problem, contenders, arch, settings, progress)
                if kind.causes(problem) and any(c.accuracy for c in contenders):
                    notes += _by_cause(workers[0], settings)
                if on_gpu:
                    [worker] = workers
                    notes += _time(worker, contenders, settings, rounds, sustained, progress)
                    worker.close()  # its inputs would be in a profiler's way
                    if settings.profile:
                        notes += _profile(problem, contenders, settings, progress)
            if settings.profile and not on_gpu:
                notes.append("No counters were read: they take a GPU.")
        except KeyboardInterrupt:
            interrupted = True
            for worker in workers:
                worker.stop()  # at once: it may be deep in a kernel
        output = "".join(worker.output() for worker in workers)
    if interrupted:
        for contender in contenders:
            if contender.reason == "not reached":
                contender.reason = "interrupted before its turn"
    return _summarise(problem, contenders, settings, rounds, sustained, notes, baseline), interrupted, output


def _parallel_bench() -> type[Bench]:
    from steps.measuring.parallel import ParallelBench  # imports torch

    return ParallelBench


def _baseline_of(step: Step) -> Step:
    return get_step(pass_of(step).baseline)


def _workers(problem: Problem, kind: Pass, settings: Settings, count: int) -> list[Worker]:
    """So many workers, not started yet, each of which holds the problem's inputs."""
    threads = max(1, (os.cpu_count() or 1) // count) if count > 1 else None
    more = {} if threads is None else {"threads": threads}
    return [
        (Worker if settings.isolated else Inline)(
            partial(Bench if settings.ranks == 1 else _parallel_bench(), **more),
            problem,
            kind.name,
            settings.device,
            settings.seed,
            settings.check,
            on_start=lambda w: w.call("ready", timeout=settings.timeout),
        )
        for _ in range(count)
    ]


def _how_many(contenders: list[_Contender], settings: Settings, needs: int, free: int) -> int:
    """How many workers check side by side: one with a GPU, where kernels would be in each other's way."""
    if settings.device == "cuda" or not settings.isolated or settings.ranks > 1:
        return 1
    with_kernels = sum(c.step.backend not in ("torch", "peer") for c in contenders)
    return max(1, min(os.cpu_count() or 1, with_kernels // CHECKS_A_WORKER, free // max(1, needs)))


def _qualify_all(
    workers: list[Worker],
    problem: Problem,
    contenders: list[_Contender],
    arch: str,
    settings: Settings,
    progress: Progress,
) -> list[str]:
    """Check and compile all contenders, with all cores; returns notes, in the order of the contenders.

    On the CPU several workers share the contenders, and each compiles what it checks. On a GPU one worker checks, those
    first that are compiled already, while processes of their own compile the others. When this returns nothing is
    compiled any more: timing is not disturbed.
    """
    notes: dict[str, list[str]] = {}

    def qualify(worker: Worker, contender: _Contender) -> None:
        notes[contender.step.name] = _qualify(worker, problem, contender, arch, settings, progress)

    if len(workers) > 1:
        _share_out(workers, contenders, qualify)
    else:
        [worker] = workers
        with closing(_as_compiled(worker, problem, contenders, arch, settings, progress)) as turns:
            for contender in turns:
                qualify(worker, contender)
    return [note for contender in contenders for note in notes[contender.step.name]]


def _share_out(workers: list[Worker], contenders: list[_Contender], qualify: Callable) -> None:
    """``qualify(worker, contender)`` for every contender, each worker in a thread that takes the next one.

    Ctrl-C, which the main thread hears, ends the workers; what they were at was not reached.
    """
    left, stopped, wrong = deque(contenders), threading.Event(), []

    def serve(worker: Worker) -> None:
        while not stopped.is_set():
            try:
                contender = left.popleft()
            except IndexError:
                return
            try:
                qualify(worker, contender)
            except BaseException as error:
                wrong.append(error)
                stopped.set()
            if stopped.is_set() and contender.status == "failed":  # as its worker was ended
                vars(contender).update(vars(_Contender(contender.step)))

    # Daemons: were Ctrl-C to come twice, Python's end would not wait for a check that takes minutes.
    threads = [threading.Thread(target=serve, args=(worker,), daemon=True) for worker in workers]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=0.2)
            while thread.is_alive():  # by and by: a signal that another thread was given is heard here, too
                thread.join(timeout=0.2)
    except KeyboardInterrupt:
        stopped.set()
        while alive := [thread for thread in threads if thread.is_alive()]:  # one that was not started is not
            for worker in workers:  # again: one may just have been starting
                worker.kill()
            alive[0].join(timeout=0.1)
        raise
    if wrong:
        raise wrong[0]


def _as_compiled(
    worker: Worker, problem: Problem, contenders: list[_Contender], arch: str, settings: Settings, progress: Progress
) -> Iterator[_Contender]:
    """The contenders: those that need no compiler first, then the others as they are compiled side by side.

    What then goes wrong is told in each step's own turn.
    """
    kernels = [c for c in contenders if c.step.backend not in ("torch", "peer")]
    able = settings.isolated and not is_missing("triton")
    kernels = [c for c in kernels if c.step.unsupported(problem, arch) is None] if able else []
    try:
        names = (
            worker.call("not_compiled", [c.step for c in kernels], arch, timeout=settings.timeout) if kernels else ()
        )
    except WorkerFailure:
        names = ()
    missing = [c for c in kernels if c.step.name in names]
    with Ahead([(c.step, problem) for c in missing], arch) as ahead:
        if not ahead.processes:
            yield from contenders
            return
        told = f"compiling {len(missing)} kernels, {ahead.processes} at a time"
        progress.doing(told)
        yield from (c for c in contenders if c not in missing)
        left = dict(enumerate(missing))
        while True:
            progress.doing(f"{told}: {len(missing) - ahead.waiting} done")
            if (place := ahead.finished(settings.timeout)) is None:
                break
            yield left.pop(place)
        yield from left.values()


def _qualify(
    worker: Worker, problem: Problem, contender: _Contender, arch: str, settings: Settings, progress: Progress
) -> list[str]:
    """Find out whether a step can run and is right, and what its compiler makes of it; returns notes."""
    step, notes = contender.step, []
    if reason := lacking(step.package):  # what stands in for it cannot be sent to another process
        contender.reason = reason
        return notes
    arch = step.made_for if settings.device == "cpu" else arch

    def call(method: str, *args):
        return worker.call(method, *args, timeout=settings.timeout)

    try:
        progress.doing(f"checking {step.label}")
        runs = settings.device == "cuda" or step.runs_on_cpu
        on_cpu = settings.device == "cpu"
        if on_cpu and runs and not step.unsupported(problem, "cpu") and (reason := step.too_long_on_cpu(problem)):
            runs = False
            notes.append(f"{step.label} was compiled and not run: {reason}.")
        if reason := call("missing", step) if runs else step.unsupported(problem, arch):
            contender.reason = reason
            return notes
        if settings.ranks > 1 and step.several and step.backend != "peer":
            contender.sent_bytes = call("sent", step)
        if settings.check and runs:
            contender.accuracy = call("check", step)
            if not contender.accuracy.correct:
                contender.fail(contender.accuracy.explain())
                return notes
            contender.status, contender.reason = "checked", None
            if step.direction == "backward" and settings.device == "cuda":
                contender.repeat_difference = call("repeat", step)
                if reason := _unsteady(step, contender.repeat_difference):
                    contender.fail(reason)
                    return notes
        if step.backend not in ("torch", "peer") and not (runs and is_missing("triton")):  # cuobjdump is part of it
            progress.doing(f"compiling {step.label} for {arch}")
            try:
                contender.resources = call("compile", step, arch)
            except WorkerFailure as failure:
                if settings.device == "cpu":
                    raise
                notes.append(f"{step.label} runs, but cannot be looked into: {failure}.")  # no reason not to time it
            else:
                if not (settings.check and runs):
                    contender.status, contender.reason = "compiled", None
        elif not settings.check:
            contender.reason = "neither checked nor timed"
        if step is _baseline_of(step) and settings.device == "cuda":
            contender.kernels = call("kernels", step)
        contender.runs = True
    except WorkerFailure as failure:
        contender.fail(str(failure))
    finally:
        progress.checked()
    return notes


def _by_cause(worker: Worker, settings: Settings) -> list[str]:
    """A note on what errors come from."""
    try:
        return [worker.call("told_by_cause", timeout=settings.timeout)]
    except WorkerFailure as failure:
        return [f"What errors come from is not known: {failure}."]


def _unsteady(step: Step, difference: float) -> str | None:
    """Why what a step gives when it is called again is wrong, or None."""
    if difference == math.inf:
        return "called again, it gave NaN"
    if difference and getattr(step, "deterministic", False):
        return f"not deterministic: the same call differed by {difference:.3g}"
    return None


def _time(
    worker: Worker,
    contenders: list[_Contender],
    settings: Settings,
    rounds: list[dict],
    sustained: list[dict],
    progress: Progress,
) -> list[str]:
    """Sample everybody in turn, round after round, into ``rounds``, and who lasts into ``sustained``; returns notes.

    Whoever fails leaves, and its round is repeated without it.
    """
    racing: dict[str, _Contender | None] = {c.step.name: c for c in contenders if c.runs}
    racing[timing.CEILING] = None
    prepared: set[str] = set()
    notes: list[str] = []
    order = random.Random(settings.seed)
    wanted = settings.rounds + settings.sustained
    while len(rounds) + len(sustained) < wanted and any(racing.values()):
        rested = len(rounds) < settings.rounds
        progress.doing(f"timing, round {len(rounds) + len(sustained) + 1} of {wanted}")
        sampled = {}
        names = list(racing) if rested else [name for name, c in racing.items() if _lasts(c, settings)]
        order.shuffle(names)
        for name in names:
            contender = racing[name]
            try:
                if name not in prepared:
                    worker.call("prepare", contender and contender.step, timeout=settings.timeout)
                    prepared.add(name)
                sampled[name] = worker.call("sample", name, not rested, timeout=settings.timeout)
            except WorkerFailure as failure:
                if contender is None:
                    notes.append(f"There is no ceiling: it failed: {failure}.")
                elif rested:
                    contender.fail(str(failure))
                else:  # its rounds are whole
                    contender.status, contender.reason = "measured", None
                    notes.append(f"{contender.step.label} did not last in the load that goes on: {failure}.")
                del racing[name]
                prepared.clear()  # the worker may be a new one
                break
        else:
            (rounds if rested else sustained).append(sampled)
            progress.timed()
    for contender in racing.values():
        if contender is not None and rounds:
            contender.status, contender.reason = "measured", None
    return notes


def _lasts(contender: _Contender | None, settings: Settings) -> bool:
    """Whether it takes part in the load that goes on; None is the ceiling."""
    if contender is None or settings.lasting is None:
        return True
    step = contender.step
    return step.backend == "peer" or step is _baseline_of(step) or step.name in settings.lasting


def _profile(problem: Problem, contenders: list[_Contender], settings: Settings, progress: Progress) -> list[str]:
    """Read the counters of all that was measured and has kernels to count; returns notes on what could not be read."""
    try:
        find_ncu()
    except CountersError as error:
        return [f"{error}."]
    measured = [c for c in contenders if c.status == "measured" and c.step.backend != "torch" and c.step.counted]
    if not measured:
        return []

    def read(group: list[_Contender]) -> None:
        names, direction = ",".join(c.step.name for c in group), pass_of(group[0].step).name
        command = [sys.executable, "-m", ONCE, names, json.dumps(problem.as_dict()), direction]
        like = "|".join(dict.fromkeys(c.step.counted for c in group))
        with gpu_turn("cuda"):  # ncu lets a kernel run many times over
            kernels = read_counters(command, like, len(group) * settings.timeout)
        numbers = [c.step.counted_kernels(problem) for c in group]
        if len(kernels) != sum(numbers):
            raise CountersError(f"{len(kernels)} kernels ran, of which ncu should have read {sum(numbers)}")
        rest = iter(kernels)
        for contender, number in zip(group, numbers):
            contender.counters = together(list(islice(rest, number)))

    notes = []
    progress.doing(f"profiling {len(measured)} steps")
    try:
        read(measured)  # in one process: to start one takes longer than to read
    except CountersError:  # whose fault it is shows when everybody runs alone
        for contender in measured:
            progress.doing(f"profiling {contender.step.label}")
            try:
                read([contender])
            except CountersError as error:
                notes.append(f"{contender.step.label}: {error}")
    return notes


def _summarise(
    problem: Problem,
    contenders: list[_Contender],
    settings: Settings,
    rounds: list[dict],
    sustained: list[dict],
    notes: list[str],
    baseline: Step | None = None,
) -> Run:
    machine = describe_machine(settings.device, settings.ranks)
    kind = pass_of(contenders[0].step)
    operations = kind.operations(problem)
    baseline = baseline or _baseline_of(contenders[0].step)
    bare = {c.step.name: _measurement(c, settings.ranks) for c in contenders}
    by_bytes = kind.by_bytes(problem)
    moved = kind.least_bytes(problem) if by_bytes else None
    before = {c.step.name: _compared_with(c.step, problem, machine, rounds) for c in contenders}
    measurements = {
        c.step.name: _timed(c, bare, operations, moved, rounds, sustained, baseline.name, before[c.step.name])
        for c in contenders
    }
    steps = [c.step for c in contenders]
    run = Run(
        direction=kind.name,
        date=now(),
        machine=machine,
        versions=describe_versions(),
        settings={
            "device": settings.device,
            "seed": settings.seed,
            "rounds": settings.rounds,
            "sustained_rounds": settings.sustained,
            "check": settings.check,
            "timeout_s": settings.timeout,
            "sample_ms": timing.SAMPLE_MS,
            "rest_ms": timing.REST_MS,
            **({"input_sets": _input_sets(kind, problem, settings, machine)} if "l2_bytes" in machine else {}),
        },
        problem=problem.as_dict(),
        ranks=settings.ranks,
        steps=[measurements[step.name] for step in steps if step.number is not None or _is_direction(step)],
        inside=[measurements[step.name] for step in steps if step.inside and not _is_direction(step)],
        peers=[measurements[step.name] for step in steps if step.number is None and not step.inside],
        ceiling=_ceiling(rounds, sustained, problem, by_bytes),
        rounds=[_round(sampled) for sampled in rounds],
        sustained=[_round(sampled) for sampled in sustained],
        notes=_notes([*rounds, *sustained], machine) + notes,
    )
    if shared := run.shared_rounds():
        told = (
            f"Another process must have used the GPU in {shared} of {len(run.rounds)} rounds: the matrix product took "
            "many times the clocks that it needs. End that process and measure again: these timings mean nothing."
        )
        run = run.model_copy(update={"notes": [told, *run.notes]})
    return run


def _input_sets(kind: Pass, problem: Problem, settings: Settings, machine: dict) -> int:
    """How many sets of inputs took turns: several ranks have one, as ``ParallelBench`` has."""
    return 1 if settings.ranks > 1 else input_sets(kind, problem, machine["l2_bytes"])


def _measurement(contender: _Contender, ranks: int) -> Measurement:
    """Everything about a contender but its times."""
    step, accuracy = contender.step, contender.accuracy
    listed = _place_of(step)
    return Measurement(
        number=step.number,
        name=step.name,
        title=step.title,
        gpus=ranks if step.several else 1,
        exchange=None if contender.sent_bytes is None else Exchange(sent_bytes=contender.sent_bytes),
        status=contender.status,
        reason=contender.reason,
        previous=step.previous.name if step.previous else None,
        previous_number=step.previous.number if step.previous else None,
        max_error=accuracy and accuracy.max_error,
        reference_error=accuracy and accuracy.reference_error,
        cosine=accuracy and accuracy.cosine,
        correct=accuracy and accuracy.correct,
        repeat_difference=contender.repeat_difference,
        change=step.change,
        key_changes=step.key_changes(),
        resources=contender.resources,
        counters=contender.counters,
        kernels=contender.kernels,
        fork=step.fork,
        inside=None if _is_direction(step) else step.inside,
        **listed,
    )


def _is_direction(step: Step) -> bool:
    """Whether it is the other direction of a step with a number."""
    return step.inside is not None and not is_variant(step)


def _place_of(step: Step) -> dict:
    """Where a step of the ladder stands; nothing for a peer, or for what a notebook made of a step."""
    try:
        if get_step(step.name) is not step:
            return {}
    except ValueError:
        return {}
    return {"file": module_file(step), "part": part_of(owner_of(step).number).name}


def _timed(
    contender: _Contender,
    records: dict[str, Measurement],
    operations: float,
    moved: int | None,
    rounds: list[dict],
    sustained: list[dict],
    baseline: str,
    before: Step | None,
) -> Measurement:
    """A contender's record with its times. records: those of all contenders, without times.

    moved: bytes that must cross device memory, where they decide how long it takes. before: see ``_compared_with``.
    """
    step, record = contender.step, records[contender.step.name]
    if contender.status != "measured":
        return record
    operations /= record.gpus
    moved = moved and moved / record.gpus

    def speedup(other: str) -> Speedup | None:
        if not _took_part(other, rounds):
            return None
        return speedup_of(timing.speedup(_latencies(rounds, other), mine), record, records.get(other))

    mine = _latencies(rounds, step.name)
    latency = Latency.of(mine)
    samples = [sampled[step.name] for sampled in rounds]
    return record.model_copy(
        update={
            "latency_ms": latency,
            "tflops": operations / latency.median / 1e9,
            "gigabytes_per_s": moved and moved / latency.median / 1e6,
            "clock_ghz": ghz_of(samples),
            "cycles": cycles_of(samples),
            "host_us": median_of(sample["host_us"] for sample in samples if sample["host_us"] is not None),
            "sustained": _sustained(step.name, operations, sustained),
            "percent_of_ceiling": _percent_of_ceiling(moved or operations, mine, rounds, moved is not None),
            "speedup_vs_baseline": speedup(baseline),
            "speedup_vs_previous": speedup(before.name) if before else None,
            "previous": before and before.name,
            "previous_number": before and before.number,
            "sm_clock_mhz": median_of(sample["gpu"]["sm_clock_mhz"] for sample in samples if sample["gpu"]),
            "exchange": _exchange(record.exchange, samples),
        }
    )


def _compared_with(step: Step, problem: Problem, machine: dict, rounds: list[dict]) -> Step | None:
    """The step before: where it took no part, as it has nothing new for the problem, the one that does the same."""
    if step.previous is None or _took_part(step.previous.name, rounds):
        return step.previous
    alike = stands_on(step, problem, machine.get("arch") or DEFAULT_ARCH)
    return alike if alike and _took_part(alike.name, rounds) else step.previous


def _exchange(sent: Exchange | None, samples: list[dict]) -> Exchange | None:
    """With how much of the sending costs time: what a call takes longer than one that sends nothing."""
    if sent is None or not all("sending_ms" in sample for sample in samples):
        return sent
    sending = [sample["sending_ms"] for sample in samples]
    longer = [max(0.0, sample["milliseconds"] - sample["computing_ms"]) for sample in samples]
    return sent.model_copy(
        update={
            "computing_ms": Latency.of([sample["computing_ms"] for sample in samples]),
            "sending_ms": Latency.of(sending),
            "hidden_ms": Latency.of([max(0.0, whole - seen) for whole, seen in zip(sending, longer)]),
            "open_ms": Latency.of(longer),
        }
    )


def _sustained(name: str, operations: float, sustained: list[dict]) -> Sustained | None:
    """What the load that went on showed of a contender."""
    return sustained_of([sampled[name] for sampled in sustained], operations) if _took_part(name, sustained) else None


def _took_part(name: str, rounds: list[dict]) -> bool:
    """Whether this contender was sampled in every round, and there was one."""
    return bool(rounds) and all(name in sampled for sampled in rounds)


def _latencies(rounds: list[dict], name: str) -> list[float]:
    return [sampled[name]["milliseconds"] for sampled in rounds]


def _percent_of_ceiling(work: float, mine: list[float], rounds: list[dict], by_bytes: bool) -> float | None:
    """The median over rounds, in percent, of this step's operations a second over the matrix product's.

    Where bytes decide, of its bytes a second over the copy's.
    """
    if not _took_part(timing.CEILING, rounds):
        return None
    per_round = [
        100 * (work / ms) / ((timing.COPY_BYTES if by_bytes else timing.CEILING_FLOPS) / ceiling)
        for ms, ceiling in zip(mine, _latencies(rounds, timing.CEILING), strict=True)
    ]
    return statistics.median(per_round)


def _ceiling(rounds: list[dict], sustained: list[dict], problem: Problem, by_bytes: bool) -> Ceiling | None:
    if not _took_part(timing.CEILING, rounds):
        return None
    clock_ghz = ghz_of(sampled[timing.CEILING] for sampled in rounds)
    if by_bytes:
        rate = timing.spread([timing.COPY_BYTES / ms / 1e6 for ms in _latencies(rounds, timing.CEILING)])
        what = f"copy in device memory, {timing.COPY_BYTES / 2**30:g} GiB read and written together"
        figures = {"gigabytes_per_s": rate.median, "low": rate.low, "high": rate.high}
        return Ceiling(what=what, tflops=None, clock_ghz=clock_ghz, **figures)
    rate = timing.spread([timing.CEILING_FLOPS / ms / 1e9 for ms in _latencies(rounds, timing.CEILING)])
    size, dtype = timing.CEILING_SIZE, FP8 if problem.fp8 else problem.dtype
    what = f"{dtype} matrix product, {size} x {size} x {size}"
    return Ceiling(
        what=what,
        tflops=rate.median,
        low=rate.low,
        high=rate.high,
        clock_ghz=clock_ghz,
        sustained=_sustained(timing.CEILING, timing.CEILING_FLOPS, sustained),
    )


def _round(sampled: dict) -> Round:
    states = [sample["gpu"] for sample in sampled.values() if sample["gpu"]]

    def known(field: str) -> dict[str, float]:
        return {name: sample[field] for name, sample in sampled.items() if sample.get(field) is not None}

    record = Round(
        latency_ms=known("milliseconds"),
        clock_ghz={name: sample["clock"]["ghz"] for name, sample in sampled.items() if sample["clock"]},
        host_us=known("host_us"),
        joules=known("joules"),
        computing_ms=known("computing_ms"),
        sending_ms=known("sending_ms"),
    )
    if not states:
        return record
    return record.model_copy(
        update={
            "sm_clock_mhz": statistics.median(state["sm_clock_mhz"] for state in states),
            "power_w": max(state["power_w"] for state in states),
            "temperature_c": max(state["temperature_c"] for state in states),
            "throttled_by": sorted({reason for state in states for reason in state["throttled_by"]}),
        }
    )


def _notes(rounds: list[dict], machine: dict) -> list[str]:
    """What a reader must know about the timings: what held the clock down, and which samples have none."""
    lost = Counter(sample["no_clock"] for sampled in rounds for sample in sampled.values() if sample["no_clock"])
    notes = [f"The clock of {n} samples is not known: {why}." for why, n in lost.items()]
    states = [sample["gpu"] for sampled in rounds for sample in sampled.values() if sample["gpu"]]
    reasons = sorted({reason for state in states for reason in state["throttled_by"]})
    if not reasons:
        return notes
    clocks = [state["sm_clock_mhz"] for state in states]
    share = sum(bool(state["throttled_by"]) for state in states) / len(states)
    return [
        *notes,
        f"In {share:.0%} of all samples the GPU reported that it was held back ({', '.join(reasons)}). NVML reported "
        f"clock rates of {min(clocks)} to {max(clocks)} MHz, of at most {machine.get('max_sm_clock_mhz', '?')} MHz.",
    ]
