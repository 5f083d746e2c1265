"""Timing on a GPU, and what may be said of the numbers.

There are two regimes. *Rested*: a sample is enough launches in a row to keep the GPU busy for ``SAMPLE_MS``, between
two CUDA events, and before it the GPU rests for ``REST_MS``. A GPU at its power limit lowers its clock: without the
rest a sample would depend on which kernel ran before it. The clock of every sample is read from the SMs' own counters
(``tutorial_lib.clock``). *Sustained*: a contender runs for ``SETTLE_S`` seconds
and is then measured for ``SUSTAINED_S``, without rest: the clock has settled where the power limit allows it, and the
GPU's energy counter tells what a call costs.

A short spin on the GPU goes in front of a rested sample, so that the host has queued the launches before the first one
starts and its own time is not measured. Where the host was held up, and the spin over too early, the sample is taken
again. The host's time is taken beside it: how long it takes to make a call, while the GPU is busy with others.

Samples of all contenders are taken in turn, round after round, in an order shuffled anew for every round: what was
measured minutes apart, or always behind the same neighbour, cannot be compared. Ratios are taken inside a round.
Whoever else measures on this machine meanwhile waits for a turn (``hardware.gpu_turn``).
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tutorial_lib.clock import Clock, ClockError, Stopwatch
from tutorial_lib.hardware import GpuState, energy_joules, gpu_state
from tutorial_lib.problem import FP8, IN_8_BITS

SAMPLE_MS = 40.0
REST_MS = 150.0
SETTLE_S = 0.5
SUSTAINED_S = 1.0
ATTEMPTS = 3  # at a sample
MAX_LAUNCHES = 1000  # the driver's launch queue holds about this many
NOISE = 0.02  # medians of the very same instructions seldom differ by more: results/: exp2, load_order
CEILING_SIZE = 8192  # a square matrix product this large is what the tensor cores reach in practice


@dataclass(frozen=True)
class Spread:
    """A median with its 10th and 90th percentile."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Median, 10th and 90th percentile (interpolated) of at least one value."""
    ordered = sorted(values)

    def percentile(share: float) -> float:
        position = share * (len(ordered) - 1)
        below = int(position)
        above = min(below + 1, len(ordered) - 1)
        return ordered[below] + (ordered[above] - ordered[below]) * (position - below)

    return Spread(statistics.median(ordered), percentile(0.1), percentile(0.9))


def speedup(before: Sequence[float], now: Sequence[float]) -> Spread:
    """How many times faster ``now`` is than ``before``: latencies of the same rounds, divided round by round."""
    return spread([b / n for b, n in zip(before, now, strict=True)])


def verdict(ratio: Spread) -> str:
    """ "same" when the 10th to 90th percentile covers 1 or the median is within NOISE of it, else what it says."""
    if ratio.low <= 1 <= ratio.high or abs(ratio.median - 1) < NOISE:
        return "same"
    return "faster" if ratio.median > 1 else "slower"


@dataclass(frozen=True)
class Sample:
    """One contender's turn in one round."""

    milliseconds: float  # a launch, averaged over the sample
    gpu: GpuState | None  # read while it ran
    host_us: float | None = None  # that a call takes the host, the median over the sample
    clock: Clock | None = None
    no_clock: str | None = None  # why there is none
    joules: float | None = None  # a launch: sustained samples alone are long enough for the GPU's energy counter


@dataclass(frozen=True)
class Plan:
    """How a call is sampled: launches a sample, the spin in front of it, what a call takes roughly, and the rest."""

    launches: int
    spin_ms: float
    milliseconds: float = SAMPLE_MS
    rest_ms: float = REST_MS


def plan_sample(
    call: Callable[[int], object], most: int = MAX_LAUNCHES, sample_ms: float = SAMPLE_MS, queued_ms: float = math.inf
) -> Plan:
    """Warm ``call(i)`` up and find how many calls fill a sample. One that fills it alone is called three times.

    most: calls, at most; fewer than ``MAX_LAUNCHES`` for a call that launches several kernels. queued_ms: that the host
    takes for all of them, at most. The rest before a shorter sample is shorter by as much: the GPU works for as large a
    share of the time, and so draws as much power.
    """
    import torch

    call(0)
    torch.cuda.synchronize()
    gpu_ms, host_ms = min(_mean_ms(call, 1), _mean_ms(call, 1))  # what is done once may have come late
    if gpu_ms < sample_ms:
        gpu_ms, host_ms = _mean_ms(call, 5)
    launches = int(max(1, min(most, sample_ms / gpu_ms, queued_ms / host_ms)))
    rest_ms = min(REST_MS, REST_MS / SAMPLE_MS * max(sample_ms, launches * gpu_ms))
    return Plan(launches, 0.3 + 1.5 * launches * host_ms, gpu_ms, rest_ms)


def _mean_ms(call: Callable[[int], object], calls: int) -> tuple[float, float]:
    """(GPU, host): milliseconds of a call, over so many."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began = time.perf_counter()
    start.record()
    for i in range(calls):
        call(i)
    end.record()
    host_ms = (time.perf_counter() - began) * 1000
    end.synchronize()
    return start.elapsed_time(end) / calls, host_ms / calls


@dataclass(frozen=True)
class Together:
    """What processes do that sample a call together. begin: queued in front of the first launch, it lets no GPU begin
    before the others; agree: whether something is true in every one of them, asked in all of them at once.
    """

    begin: Callable[[], object]
    agree: Callable[[bool], bool]


ALONE = Together(begin=lambda: None, agree=bool)


def take_sample(
    call: Callable[[int], object], plan: Plan, stopwatch: Stopwatch | None = None, together: Together = ALONE
) -> Sample:
    """Time ``call(i)`` once as planned, on a rested GPU; the host polls NVML while it waits.

    Taken again, with a longer spin, where the GPU began before the last launch was queued and so may have waited for
    the host; after ``ATTEMPTS`` what was measured stands.
    """
    import torch

    for attempt in range(ATTEMPTS):
        torch.cuda.synchronize()
        time.sleep(plan.rest_ms / 1000)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(int(2**attempt * plan.spin_ms * 2e6))  # cycles: at 2 GHz, or a little longer at a lower clock
        together.begin()
        before = stopwatch.read() if stopwatch else None
        start.record()
        moments = [time.perf_counter()]
        for i in range(plan.launches):
            call(i)
            moments.append(time.perf_counter())
        end.record()
        after = stopwatch.read() if stopwatch else None
        queued_in_time = not start.query()  # the spin is still running
        state = None
        while not end.query():
            state = gpu_state()
            time.sleep(0.001)
        end.synchronize()  # raises what went wrong on the GPU
        if together.agree(queued_in_time):
            break
    clock, no_clock = _clock(stopwatch, before, after)
    host_us = 1e6 * statistics.median(later - earlier for earlier, later in pairwise(moments))
    return Sample(start.elapsed_time(end) / plan.launches, state or gpu_state(), host_us, clock, no_clock)


def take_waited_sample(call: Callable[[int], object], plan: Plan) -> float:
    """Milliseconds a call, as who makes them one behind the other waits for them: on a rested GPU, the host's included.

    The clock is the host's, and stops when the GPU has finished the last call.
    """
    import torch

    torch.cuda.synchronize()
    time.sleep(plan.rest_ms / 1000)
    began = time.perf_counter()
    for i in range(plan.launches):
        call(i)
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - began) / plan.launches


def take_sustained_sample(
    call: Callable[[int], object], milliseconds: float, stopwatch: Stopwatch | None = None
) -> Sample:
    """Time ``call(i)``, of about so many milliseconds, in a load that goes on: settled first, then measured.

    Launches are queued in pieces, so that the launch queue never runs dry and never fills up.
    """
    import torch

    piece = max(1, min(MAX_LAUNCHES // 4, int(50 / milliseconds)))  # about 50 ms
    torch.cuda.synchronize()
    queued, meter = deque(), EnergyMeter()

    def queue_for(seconds: float) -> int:
        launches, until = 0, time.perf_counter() + seconds
        while time.perf_counter() < until:
            for i in range(piece):
                call(i)
            launches += piece
            queued.append(_marked())
            if len(queued) > 2:
                meter.watch_until(queued.popleft())
        return launches

    queue_for(SETTLE_S)
    before = stopwatch.read() if stopwatch else None
    start = _marked()
    meter.readings.clear()
    launches = queue_for(SUSTAINED_S)
    end = _marked()
    after = stopwatch.read() if stopwatch else None
    state = gpu_state()
    meter.watch_until(end)
    end.synchronize()  # raises what went wrong on the GPU
    clock, no_clock = _clock(stopwatch, before, after)
    took, watts = start.elapsed_time(end) / launches, meter.watts
    return Sample(took, state, None, clock, no_clock, None if watts is None else watts * took / 1000)


class EnergyMeter:
    """Power from the GPU's energy counter, which NVML renews some times a second only: what counts is when it moved.

    readings: (seconds, joules) at each moment at which the counter was seen to have moved.
    """

    def __init__(self, read: Callable[[], float | None] = energy_joules):
        self.read = read
        self.readings: list[tuple[float, float]] = []
        self._last = read()

    def look(self, now: float) -> None:
        """Look at the counter once."""
        energy = self.read()
        if energy is not None and energy != self._last:
            self._last = energy
            self.readings.append((now, energy))

    def watch_until(self, event) -> None:
        """Look at the counter, once at least and a thousand times a second, until a CUDA event has come."""
        self.look(time.perf_counter())
        while not event.query():
            self.look(time.perf_counter())
            time.sleep(0.001)

    @property
    def watts(self) -> float | None:
        """Between the first move and the last; None where the counter did not move twice."""
        if len(self.readings) < 2:
            return None
        (began, before), (ended, after) = self.readings[0], self.readings[-1]
        return (after - before) / (ended - began)


def _marked():
    """A CUDA event in the current stream, behind all that is queued."""
    import torch

    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _clock(stopwatch: Stopwatch | None, before, after) -> tuple[Clock | None, str | None]:
    if stopwatch is None:
        return None, None
    try:
        return stopwatch.between(before, after), None
    except ClockError as error:
        return None, str(error)


def ceiling_call(dtype: str) -> Callable[[int], object]:
    """A large matrix product of this dtype: the most that the tensor cores give on this machine, today."""
    import torch

    if dtype in IN_8_BITS:
        return _fp8_product()
    a, b = (torch.randn(CEILING_SIZE, CEILING_SIZE, dtype=getattr(torch, dtype), device="cuda") for _ in range(2))
    out = torch.empty_like(a)
    return lambda i: torch.mm(a, b, out=out)


def _fp8_product() -> Callable[[int], object]:
    """As ``ceiling_call``, of e4m3: to bfloat16, with scales of 1, and the tensor cores' own sums."""
    import torch

    a, b = (torch.randn(CEILING_SIZE, CEILING_SIZE, device="cuda").to(getattr(torch, FP8)) for _ in range(2))
    one = torch.ones((), device="cuda")
    return lambda i: torch._scaled_mm(a, b.T, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)


def copy_call() -> Callable[[int], object]:
    """A copy from device memory to device memory: the most bytes that memory moves on this machine, today."""
    import torch

    a, b = (torch.empty(COPY_BYTES // 2, dtype=torch.uint8, device="cuda") for _ in range(2))
    a.random_()
    return lambda i: b.copy_(a)


CEILING = "ceiling"  # its name among the contenders
CEILING_FLOPS = 2 * CEILING_SIZE**3
COPY_BYTES = 2**30  # that a call of the copy moves: half of them are read, half are written
