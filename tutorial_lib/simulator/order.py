"""Who knows of what: vector clocks, and the accesses to shared memory that they are asked about.

Every role and every pipe of asynchronous operations is an *agent* that counts its steps. A role knows of so many steps
of every other, and learns more of them where it waits. Two accesses to the same bytes, one of them a write, are in
order when the later one's agent knew of the earlier one; else they are a race, whether or not it showed in this run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

GRANULE = 16  # bytes: the finest that accesses are told apart

Clock = dict  # agent -> how many of its steps are known


def join(into: Clock, other: Clock) -> None:
    """Add what another knows."""
    for agent, count in other.items():
        if into.get(agent, 0) < count:
            into[agent] = count


@dataclass(frozen=True, slots=True)
class Access:
    """mask: a bit for each granule. proxy: "generic" of ordinary instructions, "async" of TMA and wgmma."""

    mask: int
    write: bool
    agent: object
    count: int
    proxy: str
    where: tuple  # of the kernel: see ``block.Place``
    what: str


class Buffer:
    """An allocation of shared memory. It holds NaN until it is written."""

    def __init__(self, name: str, size: int, space: str = "shared"):
        self.name, self.space = name, space
        self.bytes = torch.full((size,), 0xFF, dtype=torch.uint8)
        self.accesses: list[Access] = []
        self._masks: dict[tuple, int] = {}

    def mask(self, data: torch.Tensor) -> int:
        """The granules that a view of the buffer covers."""
        key = (data.storage_offset(), tuple(data.shape), data.stride(), data.itemsize)
        if key not in self._masks:
            offsets = np.full((1,), data.storage_offset(), dtype=np.int64)
            for n, stride in zip(data.shape, data.stride(), strict=True):
                offsets = (offsets[:, None] + np.arange(n, dtype=np.int64)[None, :] * stride).reshape(-1)
            bits = np.zeros(-(-len(self.bytes) // GRANULE) + 1, dtype=bool)
            bits[offsets * data.itemsize // GRANULE] = True
            self._masks[key] = int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")
        return self._masks[key]

    def note(self, access: Access, known: Clock, fenced: Clock, in_order: bool):
        """Note an access of whom knows so much. Yields ("race" or "no fence", the access before) for what is wrong.

        in_order: operations of the same agent happen one after the other by themselves.
        """
        kept = []
        for old in self.accesses:
            if not old.mask & access.mask:
                kept.append(old)
                continue
            if access.write or old.write:
                if not (known.get(old.agent, 0) >= old.count or (in_order and old.agent == access.agent)):
                    yield "race", old
                elif (
                    access.proxy == "async"
                    and old.proxy == "generic"
                    and old.write
                    and self.space == "shared"
                    and fenced.get(old.agent, 0) < old.count
                ):
                    yield "no fence", old
            covered = access.write and not old.mask & ~access.mask
            again = not access.write and not old.write and old.agent == access.agent and old.mask == access.mask
            if not (covered or again):
                kept.append(old)
        self.accesses = [*kept, access]
