"""Timing on a GPU, and what may be said of the numbers.

How: a sample is enough launches in a row to keep the GPU busy for ``SAMPLE_MS``, between two CUDA events. Before it
the GPU rests for ``REST_MS``. A GPU at its power limit lowers its clock, and takes a while to raise it
again: without the rest a sample depends on which kernel ran before it; with it, everybody starts at the full clock.
A load that goes on for long may therefore run slower than what is measured here.

A short spin on the GPU goes in front, so that the host has queued the launches before the first one starts and its own
time is not measured. Where the host was held up, and the spin over too early, the sample is taken again. Samples of
all contenders are taken in turn, round after round, in an order shuffled anew for every round: what was measured
minutes apart, or always behind the same neighbour, cannot be compared. Ratios are taken inside a round. Whoever else
measures on this machine meanwhile waits for a turn (``hardware.gpu_turn``).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tutorial_lib.hardware import GpuState, gpu_state

SAMPLE_MS = 40.0
REST_MS = 150.0
ATTEMPTS = 3  # at a sample
MAX_LAUNCHES = 1000  # the driver's launch queue holds about this many
NOISE = 0.02  # medians of the very same instructions seldom differ by more: results/, steps 3 and 4, 23 and 24
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


@dataclass(frozen=True)
class Plan:
    """How a call is sampled: launches a sample, and the spin in front of it in milliseconds."""

    launches: int
    spin_ms: float


def plan_sample(call: Callable[[int], object]) -> Plan:
    """Warm ``call(i)`` up and find how many launches fill a sample."""
    import torch

    for i in range(3):
        call(i)
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began = time.perf_counter()
    start.record()
    for i in range(5):
        call(i)
    end.record()
    host_ms = (time.perf_counter() - began) * 1000 / 5
    end.synchronize()
    gpu_ms = start.elapsed_time(end) / 5
    launches = int(min(MAX_LAUNCHES, max(1, SAMPLE_MS / gpu_ms)))
    return Plan(launches, spin_ms=0.3 + 1.5 * launches * host_ms)


def take_sample(call: Callable[[int], object], plan: Plan) -> Sample:
    """Time ``call(i)`` once as planned, on a rested GPU; the host polls its clock and power while it waits.

    Taken again, with a longer spin, where the GPU began before the last launch was queued and so may have waited for
    the host; after ``ATTEMPTS`` what was measured stands.
    """
    import torch

    for attempt in range(ATTEMPTS):
        torch.cuda.synchronize()
        time.sleep(REST_MS / 1000)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(int(2**attempt * plan.spin_ms * 2e6))  # cycles: at 2 GHz, or a little longer at a lower clock
        start.record()
        for i in range(plan.launches):
            call(i)
        end.record()
        queued_in_time = not start.query()  # the spin is still running
        state = None
        while not end.query():
            state = gpu_state()
            time.sleep(0.001)
        end.synchronize()  # raises what went wrong on the GPU
        if queued_in_time:
            break
    return Sample(start.elapsed_time(end) / plan.launches, state or gpu_state())


def ceiling_call(dtype: str) -> Callable[[int], object]:
    """A large matrix product of this dtype: the most that the tensor cores give on this machine, today."""
    import torch

    a, b = (torch.randn(CEILING_SIZE, CEILING_SIZE, dtype=getattr(torch, dtype), device="cuda") for _ in range(2))
    out = torch.empty_like(a)
    return lambda i: torch.mm(a, b, out=out)


CEILING = "ceiling"  # its name among the contenders
CEILING_FLOPS = 2 * CEILING_SIZE**3
