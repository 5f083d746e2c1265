"""What the model of time knows of an SM: rates a clock, and latencies in clocks.

It explains what waits for what. It does not predict how long a kernel takes: see README.md, *What it cannot see*.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Machine:
    """wgmma, mma, tcgen05: operations a clock of the tensor cores, by how they are asked; 0: not so, or not known.

    mma.sync has two thirds of wgmma's rate, as the counters in chapter 30 have it, and tcgen05 the rate that
    ``tutorial_lib.architectures`` gives with its source. mufu, fp32: results; smem, tmem, tma: bytes; tensor memory's
    are 4 for each of its 128 lanes, which no source states. tensor_columns: of tensor memory. The rest are clocks, or
    bytes a block. On AMD's, mfma is the rate of MFMA, from the same table, smem is LDS, tma what copies bring from
    memory; no source states mufu. waves_apart: every wave waits for its own copies alone, and learns of the others'
    where all meet; NVIDIA's warps of a role are ordered by what the compiler sets by itself.
    """

    name: str
    wgmma: float = 4096
    mma: float = 2731
    tcgen05: float = 0
    mufu: float = 16
    fp32: float = 128
    smem: float = 128
    tmem: float = 512
    tma: float = 32
    memory_latency: float = 650
    store_latency: float = 200
    wait: float = 25  # a barrier that is complete already
    issue: float = 20  # asking for something that then happens by itself
    shared_bytes: int = 232448
    tensor_columns: int = 0
    mfma: float = 0
    waves_apart: bool = False

    @property
    def amd(self) -> bool:
        """Whether it is AMD's, where a warp is called a wave, and shared memory LDS."""
        return self.mfma > 0


H100 = Machine("H100")
B200 = Machine("B200", wgmma=0, mma=0, tcgen05=8192, tensor_columns=512)
_CDNA = Machine("CDNA", wgmma=0, mma=0, tma=16, waves_apart=True)
MI300X = replace(_CDNA, name="MI300X", mfma=2048, shared_bytes=65536)
MI355X = replace(_CDNA, name="MI355X", mfma=4096, shared_bytes=163840)
MACHINES = {"sm_90": H100, "sm_100": B200, "gfx942": MI300X, "gfx950": MI355X}  # by the architecture of a step


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
