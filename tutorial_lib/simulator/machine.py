"""What the model of time knows of an SM: rates a clock, and latencies in clocks.

It explains what waits for what. It does not predict how long a kernel takes: see README.md, *What it cannot see*.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """wgmma, mma: operations a clock; mma.sync at two thirds of wgmma's rate, as the counters in chapter 30 have it.

    mufu, fp32: results; smem, tma: bytes. The rest are clocks, or bytes a block.
    """

    name: str
    wgmma: float = 4096
    mma: float = 2731
    mufu: float = 16
    fp32: float = 128
    smem: float = 128
    tma: float = 32
    memory_latency: float = 650
    store_latency: float = 200
    wait: float = 25  # a barrier that is complete already
    issue: float = 20  # asking for something that then happens by itself
    shared_bytes: int = 232448


H100 = Machine("H100")


class Unit:
    """Something that serves one at a time, in the order in which it is asked: tensor cores, TMA, exponentials."""

    def __init__(self, name: str, chance: random.Random | None):
        self.name, self.free, self.busy, self.chance = name, 0.0, 0.0, chance

    def take(self, time: float, clocks: float) -> tuple[float, float]:
        """When it begins and ends what takes so many clocks, asked for at a time; by chance later, and longer."""
        if self.chance:
            clocks *= self.chance.choice((0.2, 1, 5))
            time += self.chance.choice((0, 0, 100, 3000))
        begin = max(time, self.free)
        self.free = begin + clocks
        self.busy += clocks
        return begin, self.free
