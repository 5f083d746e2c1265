"""A model of the limit: how long each unit of the GPU needs at least, and what therefore bounds a kernel.

Two questions, both answered from the rates in ``tutorial_lib.architectures``:

- ``floor``: how fast can anybody compute this problem? Operations over the tensor rate, exponentials over the MUFU
  rate, bytes over bandwidth; whoever overlaps them perfectly needs the largest of the three.
- ``limit``: how fast can this kernel be? Each unit's time comes from the instructions of the hot loop (on Hopper
  ``mma.sync`` has two thirds of the rate that wgmma has), and that of shared memory, at 128 bytes a clock, from the
  layouts and operands of the Gluon and Hopper steps (cuTile does not tell its own). A kernel with
  one block on an SM runs its matrix products and its softmax in turn (each needs the other's result), so their times
  add; with two blocks or more, or two groups of warps that do not wait for each other, one's softmax can hide behind
  the other's matrix products, and the longest unit decides.

Where an SM holds one block, nothing else runs while it begins and ends. That time is added, where a record says how
many blocks there were. Otherwise only throughput is counted, never one instruction waiting for another: a prediction is
the least time. What a kernel takes beyond it is not explained here; `python -m steps.trace` measures where it is.
Where the SMs' clock was read, prediction and measurement are at that clock, and their ratio is one of cycles. Where it
was not, the prediction is at NVML's clock: the SMs may have run slower, and that is then a part of what is not
explained.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tutorial_lib.architectures import ARCHITECTURES, ISSUE, REFERENCE_GPUS, Gpu
from tutorial_lib.compiled import compute_threads
from tutorial_lib.passes import FORWARD, PASSES, Pass
from tutorial_lib.problem import Problem
from tutorial_lib.results import Measurement, Run
from tutorial_lib.timing import NOISE

MMA_SYNC_OPERATIONS = 2 * 16 * 8 * 16  # of a warp, in the largest mma.sync for 16-bit numbers; wgmma does more
SOFTMAX = ("exponentials", "FP32 pipe", "issue slots")  # units that it keeps busy
TOLERANCE = 0.25  # a prediction further off than this needs an explanation


class UnknownRates(ValueError):
    """No source states the rates of this architecture; the message names it."""


@dataclass(frozen=True)
class Limit:
    """Seconds that each unit needs at least for the whole problem, and what follows.

    beginnings: seconds in which an SM begins and ends blocks while it holds no other.
    """

    units: dict[str, float]
    overlapped: bool
    beginnings: float = 0.0

    @property
    def bound(self) -> str:
        """The unit that needs longest."""
        return max(self.units, key=self.units.get)

    @property
    def terms(self) -> dict[str, float]:
        """What the least time is the sum of: the longest unit, or products and softmax where these take turns.

        Reading shared memory overlaps with either.
        """
        softmax = max((time for unit, time in self.units.items() if unit in SOFTMAX), default=0.0)
        in_turn = {"the products": self.units["tensor cores"], "the softmax": softmax}
        longest = self.units[self.bound]
        least = {self.bound: longest} if self.overlapped or sum(in_turn.values()) < longest else in_turn
        return least | ({"beginnings and ends of blocks": self.beginnings} if self.beginnings else {})

    @property
    def seconds(self) -> float:
        """The least time."""
        return sum(self.terms.values())

    @property
    def advice(self) -> str:
        """What the next optimization should attack."""
        if not self.overlapped:
            return "matrix products and softmax take turns: overlap them"
        if self.bound == "tensor cores":
            return "the tensor cores bound it: keep them fed"
        if self.bound == "shared memory":
            return "shared memory bounds it: read less of it, or without bank conflicts"
        return f"the {self.bound} bound it: need fewer of those"


def _rates(gpu: Gpu):
    architecture = ARCHITECTURES.get(gpu.arch)
    if architecture is None or architecture.tensor_flops is None:
        raise UnknownRates(f"no source states the tensor rate of {gpu.arch}; see tutorial_lib/architectures.py")
    return architecture


def _tensor_flops(rates, problem: Problem) -> float:
    """Twice as many operations in 8 bits as in 16 [H100]; steps that multiply in 16 bits, too, cannot have so many."""
    return 2 * rates.tensor_flops if problem.fp8 else rates.tensor_flops


def floor(problem: Problem, gpu: Gpu, kind: Pass = FORWARD) -> Limit:
    """What any kernel needs at least for ``problem`` on ``gpu``, whatever its code."""
    rates = _rates(gpu)
    clocks = gpu.multiprocessors * gpu.clock  # SM clocks a second
    units = {"tensor cores": kind.operations(problem) / (_tensor_flops(rates, problem) * clocks)}
    if rates.mufu:  # no source states it for AMD's
        units["exponentials"] = problem.batch * problem.heads * problem.visible_pairs / (rates.mufu * clocks)
    units["memory"] = kind.least_bytes(problem) / gpu.bandwidth
    return Limit(units, overlapped=True)


def limit(problem: Problem, resources: dict, gpu: Gpu, kind: Pass = FORWARD) -> Limit | None:
    """What a kernel needs at least, from ``Compiled.as_dict()``.

    None where its hot loop or occupancy is not known, and for AMD's, whose rates no source states for all units.
    """
    hot, an_sm = resources.get("hot_loop"), resources.get("blocks_per_sm")
    tiles, scores_per_tile = resources.get("kv_tiles"), resources.get("scores_per_tile")
    if not (hot and an_sm and tiles and scores_per_tile) or "tensor core" not in hot:  # AMD's are counted otherwise
        return None
    rates = _rates(gpu)
    threads = compute_threads(resources)
    operations = 2 * kind.products * scores_per_tile * problem.head_dim
    of_an_instruction = operations / max(1, hot["tensor core"] * threads / 32)
    slow = rates.mma_sync_flops and of_an_instruction <= MMA_SYNC_OPERATIONS
    clocks_per_tile = {
        "tensor cores": operations / (rates.mma_sync_flops if slow else _tensor_flops(rates, problem)),
        "exponentials": hot["MUFU"] * threads / rates.mufu,
        "FP32 pipe": (hot["FP32"] + 2 * hot["packed FP32"]) * threads / rates.fp32,
        "issue slots": resources["issued_per_tile"] / ISSUE,
    }
    if resources.get("shared_clocks_per_tile"):  # of kernels whose layouts are ours, and so known
        clocks_per_tile["shared memory"] = resources["shared_clocks_per_tile"]
    seconds_per_clock = tiles / (gpu.multiprocessors * gpu.clock)
    units = {unit: clocks * seconds_per_clock for unit, clocks in clocks_per_tile.items()}
    units["memory"] = kind.least_bytes(problem) / gpu.bandwidth
    groups = resources.get("compute_groups") or 1  # older records know of none
    if (resources.get("compiler") or "").startswith(
        "tileiras"
    ):  # each warpgroup of its blocks goes through its own rows
        groups = max(groups, threads // 128)
    launched = resources.get("blocks") if an_sm == 1 else None  # None in older records, too
    of_an_sm = math.ceil((launched or 0) / gpu.multiprocessors)
    beginnings = of_an_sm * (rates.block_clocks or 0) / gpu.clock
    return Limit(units, overlapped=an_sm * groups > 1, beginnings=beginnings)


def explain(measured: float, predicted: float, counters: dict | None, traced: bool = False) -> str:
    """Why a measurement is not the prediction, as far as that is known. traced: where its roles wait was measured."""
    off = predicted / measured - 1
    if off > NOISE:
        return "faster than the model allows: it is wrong here"
    if off >= -TOLERANCE:
        return f"the model explains {predicted / measured:.0%} of it"
    if not counters:
        return "slower than throughput explains, and no counters were recorded"
    return (
        f"throughput explains {predicted / measured:.0%} of it; ncu saw the schedulers issue in "
        f"{counters['issue_active_pct']:.0f}% of the cycles and the tensor cores busy in "
        f"{counters['tensor_pct']:.0f}%; "
        + ("where its roles wait is traced below" if traced else "the rest is waiting")
    )


def gpu_of(machine: dict, m: Measurement) -> Gpu | None:
    """The GPU that a run was measured on, at the clock of a measurement; None where its rates are not known here.

    The clock is the SMs' own, or NVML's in a record that has none. The memory bandwidth is taken to be that of the
    reference GPU of the architecture.
    """
    reference = REFERENCE_GPUS.get(machine.get("arch"))
    mhz = 1000 * m.clock_ghz if m.clock_ghz else m.sm_clock_mhz or machine.get("max_sm_clock_mhz")
    if reference is None or not mhz or not machine.get("multiprocessors"):
        return None
    return replace(reference, name=machine["name"], multiprocessors=machine["multiprocessors"], clock=mhz * 1e6)


@dataclass(frozen=True)
class Comparison:
    """One step's measured time beside what the model says it needs at least."""

    measurement: Measurement
    limit: Limit

    @property
    def measured(self) -> float:
        return self.measurement.latency_ms.median / 1000

    def explanation(self, traced: bool = False) -> str:
        return explain(self.measured, self.limit.seconds, self.measurement.counters, traced)


def compare(run: Run) -> list[Comparison]:
    """Prediction and measurement of every step of a run for which there are both."""
    compared, kind = [], PASSES[run.direction]
    for m in run.steps:
        gpu = gpu_of(run.machine, m)
        if m.latency_ms and m.resources and gpu and (found := limit(run.the_problem(), m.resources, gpu, kind)):
            compared.append(Comparison(m, found))
    return compared
