"""Ranks whose GPUs' copy engines send round the ring, so that no SM takes part in it.

NCCL copies with blocks of a kernel, which hold some of the SMs as long as they send. A copy engine is a part of the GPU
that moves bytes beside the SMs [CUDA C++ Programming Guide, "Peer-to-Peer Memory Access"]. It can write where the next
rank reads, as the ranks of one host map each other's memory: PyTorch calls such tensors symmetric.

Who sends must know that the place is free, and who receives that it is filled. For both there is a number in memory
that only grows. The front end of a GPU writes it and waits for it in the order of a stream, which takes no SM either
[CUDA Driver API: cuStreamWriteValue32, cuStreamWaitValue32].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from steps.core.driver import check, cuda
from steps.parallel.ranks import Passing, Ranks, Tensors, size_of

if TYPE_CHECKING:
    import torch

ALIGNMENT = 256  # bytes: copies of whole lines
NUMBER_BYTES = 256  # of a number, which has a line of its own
AT_LEAST = 0  # CU_STREAM_WAIT_VALUE_GEQ


@dataclass(eq=False)
class Place:
    """Where a rank receives tensors, and the same place of the rank after it. used: how often it was filled."""

    mine: Tensors
    theirs: Tensors
    filled: int  # address of this rank's number, which the rank before writes
    free: int  # address of this rank's number, which the rank after writes
    their_filled: int
    their_free: int  # of the rank before
    memory: object  # what all of this is in, the other ranks' too
    used: int = 0


class CopyEngines(Ranks):
    """As ``Ranks``, but sends round the ring by copy engines. All ranks have GPUs of one host that reach each other."""

    def __init__(self, group=None):
        super().__init__(group)
        self._made: dict[tuple, list[Place]] = {}
        self._stream: torch.cuda.Stream | None = None

    def places(self, tensors, count, dtype=None):
        """The same places for every call with such tensors: whoever uses them again has read what was there."""
        if self.count == 1 or not tensors[0].is_cuda:
            return super().places(tensors, count, dtype)
        key = dtype, tuple((x.shape, x.dtype) for x in tensors)
        made = self._made.setdefault(key, [])
        made += [self._place(tensors, dtype) for _ in range(count - len(made))]
        return [place.mine for place in made[:count]]

    def _place(self, tensors: Tensors, dtype) -> Place:
        """A new place; all ranks make it together."""
        import torch
        import torch.distributed._symmetric_memory as symmetric
        from torch.distributed import group

        lengths = [x.numel() * (dtype or x.dtype).itemsize for x in tensors]
        starts = [2 * NUMBER_BYTES]
        for length in lengths:
            starts.append(starts[-1] + -(-length // ALIGNMENT) * ALIGNMENT)
        memory = symmetric.empty(starts[-1], dtype=torch.uint8, device=tensors[0].device)
        memory.zero_()
        torch.cuda.synchronize(tensors[0].device)  # before another rank writes there
        handle = symmetric.rendezvous(memory, self.group or group.WORLD)
        after, before = (self.own + 1) % self.count, (self.own - 1) % self.count
        everybodys = {rank: handle.get_buffer(rank, memory.shape, torch.uint8) for rank in (self.own, after, before)}

        def views(rank: int) -> Tensors:
            whole = everybodys[rank]
            cut = [whole[start : start + length] for start, length in zip(starts, lengths)]
            return tuple(part.view(dtype or x.dtype).view(x.shape) for part, x in zip(cut, tensors))

        filled, free = 0, NUMBER_BYTES
        return Place(
            views(self.own),
            views(after),
            everybodys[self.own].data_ptr() + filled,
            everybodys[self.own].data_ptr() + free,
            everybodys[after].data_ptr() + filled,
            everybodys[before].data_ptr() + free,
            (memory, handle, everybodys),
        )

    def pass_on(self, tensors, into):
        import torch

        place = next((p for made in self._made.values() for p in made if p.mine is into), None)
        if place is None:
            return super().pass_on(tensors, into)
        here = torch.cuda.current_stream(tensors[0].device)
        self._stream = self._stream or torch.cuda.Stream(tensors[0].device)
        self._stream.wait_stream(here)  # what was there is read, and the tensors are written
        self.sent += sum(map(size_of, tensors))
        place.used += 1
        with torch.cuda.stream(self._stream):
            write(self._stream, place.their_free, place.used)
            await_number(self._stream, place.free, place.used)
            for there, x in zip(place.theirs, tensors):
                there.copy_(x, non_blocking=True)
                x.record_stream(self._stream)
            write(self._stream, place.their_filled, place.used)
        return Copying(self, place, self._stream.record_event())

    def give_way(self, x) -> None:
        """Nothing to wait for: an exchange begins whatever the SMs do."""


class Copying(Passing):
    """Tensors on their way to a place of this rank, and this rank's own to the next."""

    def __init__(self, ranks: CopyEngines, place: Place, sent: torch.cuda.Event):
        super().__init__(ranks, (), place.mine)
        self._place, self._number, self._sent = place, place.used, sent

    def wait(self):
        import torch

        here = torch.cuda.current_stream(self._place.mine[0].device)
        here.wait_event(self._sent)
        await_number(here, self._place.filled, self._number)
        return super().wait()


def write(stream: torch.cuda.Stream, address: int, number: int) -> None:
    """Write a number of 32 bits when the stream has come so far, and all that it wrote before can be seen."""
    check(cuda().cuStreamWriteValue32_v2(*_as_pointers(stream, address), number, 0), "cuStreamWriteValue32")


def await_number(stream: torch.cuda.Stream, address: int, number: int) -> None:
    """Let the stream wait until the number there is as large as this."""
    check(cuda().cuStreamWaitValue32_v2(*_as_pointers(stream, address), number, AT_LEAST), "cuStreamWaitValue32")


def _as_pointers(stream: torch.cuda.Stream, address: int) -> tuple:
    import ctypes

    return ctypes.c_void_p(stream.cuda_stream), ctypes.c_void_p(address)
