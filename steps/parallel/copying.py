"""Ranks whose GPUs' copy engines send round the ring, and no kernel.

NCCL copies with blocks of a kernel, which hold some of the SMs as long as they send. A copy engine is a part of the GPU
that moves bytes beside the SMs [CUDA C++ Programming Guide, "Peer-to-Peer Memory Access"]. It can write where the next
rank reads, as the ranks of one host map each other's memory: PyTorch calls such tensors symmetric.

Who sends must know that the slot is empty, and who receives that it is full. For both there is a number in memory
that only grows. The front end of a GPU writes it and waits for it in the order of a stream [CUDA Driver API:
cuStreamWriteValue32, cuStreamWaitValue32].
"""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from steps.core.driver import check, cuda
from steps.parallel.ranks import Passing, Ranks, Tensors, size_of

if TYPE_CHECKING:
    import torch

ALIGNMENT = 256  # bytes: copies of whole lines
NUMBER_BYTES = 256  # of a number, which has a line of its own
AT_LEAST = 0  # CU_STREAM_WAIT_VALUE_GEQ
FLUSH = 1 << 30  # CU_STREAM_WAIT_VALUE_FLUSH: what was written before the number can be seen behind the wait
CAN_FLUSH = 98  # CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES: where this must be asked for, it can be


@dataclass(eq=False)
class Slot:
    """Where a rank receives tensors, and the same slot of the rank after it.

    used: how often it was filled. reader: the stream whose kernels read it last.
    """

    mine: Tensors
    theirs: Tensors
    filled: int  # address of this rank's number, which the rank before writes
    empty: int  # address of this rank's number, which the rank after writes
    their_filled: int
    their_empty: int  # of the rank before
    kept: object  # what all of this is in, the other ranks' too
    used: int = 0
    reader: torch.cuda.Stream | None = None


class CopyEngines(Ranks):
    """As ``Ranks``, but sends round the ring by copy engines. All ranks have NVIDIA's GPUs of one host, which reach
    each other's memory; RuntimeError says on all of them where that is not so.

    Two things are not as in ``Ranks``. A GPU that waits for a number of a rank that has ended waits on: nothing but the
    end of its process, which torchrun brings, ends that. And after a call that raised on some ranks only, the numbers
    of the ranks differ, and no further call makes sense.
    """

    def __init__(self, group=None):
        super().__init__(group)
        self._made: dict[tuple, list[Slot]] = {}
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def buffers(self, tensors, count, dtype=None):
        """The same buffers for every call with such tensors: whoever uses them again has read what was there.

        They are kept as long as this object: two for each kind of tensors that was ever sent.
        """
        import torch

        if self.count == 1 or not tensors[0].is_cuda:
            return super().buffers(tensors, count, dtype)
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("copy engines send nothing in a CUDA graph: their numbers grow from call to call")
        key = tensors[0].device, tuple((x.shape, dtype or x.dtype) for x in tensors)
        if not self._made:
            self._check_reach()
        made = self._made.setdefault(key, [])
        made += [self._slot(tensors, dtype) for _ in range(count - len(made))]
        return [slot.mine for slot in made[:count]]

    def _check_reach(self) -> None:
        """Raises RuntimeError on all ranks unless their GPUs are NVIDIA's, of one host, and reach each other."""
        import torch

        own = torch.cuda.current_device()
        others = [n for n in range(torch.cuda.device_count()) if n != own]
        reach = all(torch.cuda.can_device_access_peer(own, n) for n in others)
        said = self.everybody((socket.gethostname(), torch.version.hip is None, reach))
        if len({host for host, *_ in said}) > 1 or not all(nvidia and reach for _, nvidia, reach in said):
            raise RuntimeError("copy engines send among NVIDIA GPUs of one host that reach each other's memory alone")

    def _slot(self, tensors: Tensors, dtype) -> Slot:
        """A new slot; all ranks make it together."""
        lengths = [x.numel() * (dtype or x.dtype).itemsize for x in tensors]
        starts = [2 * NUMBER_BYTES]
        for length in lengths:
            starts.append(starts[-1] + -(-length // ALIGNMENT) * ALIGNMENT)
        after, before = (self.own + 1) % self.count, (self.own - 1) % self.count
        memory, kept = self._shared(starts[-1], tensors[0].device, (self.own, after, before))

        def views(rank: int) -> Tensors:
            cut = [memory[rank][start : start + length] for start, length in zip(starts, lengths)]
            return tuple(part.view(dtype or x.dtype).view(x.shape) for part, x in zip(cut, tensors))

        filled, empty = 0, NUMBER_BYTES
        return Slot(
            views(self.own),
            views(after),
            memory[self.own].data_ptr() + filled,
            memory[self.own].data_ptr() + empty,
            memory[after].data_ptr() + filled,
            memory[before].data_ptr() + empty,
            kept,
        )

    def _shared(self, size: int, device: torch.device, ranks: Sequence[int]) -> tuple[dict[int, torch.Tensor], object]:
        """Memory that every rank has made, of zeros, as these ranks' bytes; and what must be kept with them."""
        import torch
        from torch._C._distributed_c10d import _SymmetricMemory
        from torch.distributed import group

        # Not from PyTorch's pool: of a block that was used before, it would take the other ranks' word of then.
        memory = _SymmetricMemory.empty_strided_p2p((size,), (1,), torch.uint8, device)
        memory.zero_()
        torch.cuda.synchronize(device)
        with self.heard():
            handle = _SymmetricMemory.rendezvous(memory, (self.group or group.WORLD).group_name)
        self.everybody(None)  # nobody writes before all have zeros
        return {rank: handle.get_buffer(rank, memory.shape, torch.uint8) for rank in ranks}, (memory, handle)

    def pass_on(self, tensors, into):
        import torch

        if self.count == 1 or not tensors[0].is_cuda:
            return super().pass_on(tensors, into)
        slot = next((p for made in self._made.values() for p in made if p.mine is into), None)
        if slot is None:
            raise ValueError("copy engines send into what buffers() has returned")
        device = tensors[0].device
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        stream = self._streams[device]
        for earlier in (torch.cuda.current_stream(device), slot.reader or stream):
            stream.wait_stream(earlier)  # the tensors are written, and what was in this slot is read
        self.sent += sum(map(size_of, tensors))
        slot.used += 1
        with torch.cuda.stream(stream):
            write(stream, slot.their_empty, slot.used)
            await_number(stream, slot.empty, slot.used)
            for there, x in zip(slot.theirs, tensors):
                there.copy_(x, non_blocking=True)
                x.record_stream(stream)
            write(stream, slot.their_filled, slot.used)
        return Copying(self, slot, stream.record_event())

    def give_way(self, x) -> None:
        """Nothing to wait for: a copy engine begins whatever the SMs do."""


class Copying(Passing):
    """Tensors on their way to a slot of this rank, and this rank's own to the next."""

    def __init__(self, ranks: CopyEngines, slot: Slot, sent: torch.cuda.Event):
        super().__init__(ranks, (), slot.mine)
        self._slot, self._number, self._sent = slot, slot.used, sent

    def wait(self):
        import torch

        here = self._slot.reader = torch.cuda.current_stream(self._slot.mine[0].device)
        here.wait_event(self._sent)
        await_number(here, self._slot.filled, self._number)
        return super().wait()


def write(stream: torch.cuda.Stream, address: int, number: int) -> None:
    """Write a number of 32 bits when the stream has come so far, and all that it wrote before can be seen."""
    check(cuda().cuStreamWriteValue32_v2(*_as_pointers(stream, address), number, 0), "cuStreamWriteValue32")


def await_number(stream: torch.cuda.Stream, address: int, number: int) -> None:
    """Let the stream wait until the number there is as large as this, and all that was written before can be seen."""
    how = AT_LEAST | (FLUSH if _can_flush(stream.device.index) else 0)
    check(cuda().cuStreamWaitValue32_v2(*_as_pointers(stream, address), number, how), "cuStreamWaitValue32")


@cache
def _can_flush(device: int) -> bool:
    can = ctypes.c_int()
    check(cuda().cuDeviceGetAttribute(ctypes.byref(can), CAN_FLUSH, device), "cuDeviceGetAttribute")
    return bool(can.value)


def _as_pointers(stream: torch.cuda.Stream, address: int) -> tuple:
    return ctypes.c_void_p(stream.cuda_stream), ctypes.c_void_p(address)
