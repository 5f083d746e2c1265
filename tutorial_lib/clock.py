"""The SMs' own clock: how many cycles passed on every SM, over how many nanoseconds.

NVML tells what the clock was set to, and what the SMs run at may be less. So every SM writes down its cycle counter
(``%clock64``) and the GPU's time (``%globaltimer``, in nanoseconds) before a sample and after it [PTX ISA, Special
Registers].
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

BLOCKS_A_PROCESSOR = 4  # of the kernel that reads: enough that no SM is left out
Reading = dict[int, tuple[int, int]]  # SM -> its cycle counter, and nanoseconds


class ClockError(ValueError):
    """Counters that tell no clock; the message names the SM and what it counted."""


@dataclass(frozen=True)
class Clock:
    """GHz: the median over SMs, the slowest and the fastest SM."""

    ghz: float
    low: float
    high: float


def reading(rows: Iterable[tuple[int, int, int]]) -> Reading:
    """One entry an SM from rows of (SM, cycles, nanoseconds); of several blocks on an SM the last counts."""
    found: Reading = {}
    for processor, cycles, nanoseconds in rows:
        if processor not in found or nanoseconds >= found[processor][1]:
            found[processor] = cycles, nanoseconds
    return found


def clock_between(before: Reading, after: Reading, processors: int) -> Clock:
    """The clock between two readings of a GPU with so many SMs.

    Raises ClockError where an SM is missing, or where one counted backwards or not at all.
    """
    for when, found in (("before", before), ("after", after)):
        if len(found) != processors:
            raise ClockError(f"{len(found)} of {processors} SMs were read {when} the sample")
    if other := set(before) ^ set(after):
        raise ClockError(f"SM {min(other)} was read only once")
    rates = []
    for processor, (cycles, nanoseconds) in before.items():
        passed, took = after[processor][0] - cycles, after[processor][1] - nanoseconds
        if passed <= 0 or took <= 0:
            raise ClockError(f"SM {processor} counted {passed} cycles in {took} ns: its counters wrapped")
        rates.append(passed / took)  # cycles a nanosecond
    return Clock(statistics.median(rates), min(rates), max(rates))


class Stopwatch:
    """Reads the counters of all SMs of a CUDA device, in the order of the current stream.

    ``read()`` launches a kernel of a few microseconds and returns at once; ``Stopwatch.rows`` waits for what it read.
    """

    def __init__(self):
        import torch

        self.processors = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
        self.between(self.read(), self.read())  # compiled now, and not in front of the first sample

    def read(self):
        """A tensor that will hold (SM, cycles, nanoseconds) of every block of the kernel that reads."""
        import torch

        from tutorial_lib.clock_kernel import read_counters
        from tutorial_lib.compiler import compiled_how

        blocks = BLOCKS_A_PROCESSOR * self.processors
        counters = torch.empty((blocks, 3), dtype=torch.int64, device="cuda")
        read_counters[(blocks,)](counters, num_warps=1, **compiled_how())
        return counters

    def between(self, before, after) -> Clock:
        """The clock between two of ``read``'s tensors; waits for them. Raises ClockError."""
        return clock_between(reading(before.tolist()), reading(after.tolist()), self.processors)
