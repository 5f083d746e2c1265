"""Shared memory: views of allocations, read and written by the warps of a role."""

from __future__ import annotations

import math
from functools import cache

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd import AMDMFMALayout

from tutorial_lib import layouts
from tutorial_lib.simulator import state
from tutorial_lib.simulator.block import Block, KernelError, Unknown, at, line_of, place
from tutorial_lib.simulator.cluster import halved, must_stay, own_part, whole
from tutorial_lib.simulator.order import Buffer
from tutorial_lib.simulator.values import GLUON_DTYPES, Tensor, Type, plain, torch_dtype


class Memory:
    """A view of an allocation; in a cluster of this CTA's part, which is half of it along the axis ``halved``."""

    def __init__(self, buffer: Buffer, data: torch.Tensor, layout, halved: int | None = None):
        self.buffer, self.data, self.layout, self.halved = buffer, data, layout, halved

    shape = property(lambda self: whole(self.data.shape, self.halved))
    rank = property(lambda self: self.data.ndim)
    dtype = property(lambda self: GLUON_DTYPES[self.data.dtype])
    type = property(lambda self: Type(self.layout, self.dtype, self.shape))

    def _view(self, data: torch.Tensor) -> Memory:
        return Memory(self.buffer, data, self.layout, self.halved)

    def of(self, block: Block) -> Memory:
        """The same place of a CTA of this cluster."""
        if (own := state.block()) is block:
            return self
        buffer, data = block.same_buffer(own, self.buffer), self.data
        there = torch.as_strided(buffer.bytes.view(data.dtype), data.shape, data.stride(), data.storage_offset())
        return type(self)(buffer, there, self.layout, self.halved)

    def index(self, number) -> Memory:
        if not 0 <= int(number) < self.data.shape[0]:
            raise KernelError(at(f"place {int(number)} of {self.data.shape[0]}"))
        return self._view(self.data[int(number)])

    def slice(self, start, length, dim: int = 0) -> Memory:
        if state.run.ctas > 1:  # as Triton before 3.9
            raise Unknown(at("the simulator slices no shared memory of a cluster"))
        return self._view(self.data.narrow(dim, int(start), int(length)))

    def permute(self, order) -> Memory:
        view = self._view(self.data.permute(tuple(order)))
        if self.halved is not None:
            view.halved = list(order).index(self.halved + self.data.ndim) - self.data.ndim
        return view

    def reshape(self, shape) -> Memory:
        shape = list(shape)
        if self.halved is not None:
            if shape[self.halved :] != self.shape[self.halved :]:
                raise Unknown(at("the simulator reshapes no axis that the CTAs of a cluster halve"))
            shape[self.halved] = self.data.shape[self.halved]
        return self._view(self.data.view(tuple(shape)))

    def reinterpret(self, dtype=None, shape=None, layout=None) -> Memory:
        """The same bytes, in row order: where a swizzle puts them is not simulated.

        But a linear layout of a place that TMA reads says which element comes where TMA expects which.
        """
        layout = layout or self.layout
        new, shape = torch_dtype(dtype or self.dtype), own_part(shape or self.shape, layout)
        offset = self.data.storage_offset() * self.data.itemsize // new.itemsize
        strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        data = torch.as_strided(self.buffer.bytes.view(new), tuple(shape), strides, offset)
        if isinstance(layout, gl.SharedLinearLayout) and isinstance(self.layout, gl.NVMMASharedLayout):
            return Reordered(self.buffer, data, layout, _places(layout, self.layout, tuple(shape)))
        return Memory(self.buffer, data, layout, halved(layout))

    def load(self, layout=None) -> Tensor:
        me = state.role()
        me.point()
        must_stay(layout, self.halved)
        state.spend("smem", self._bytes_read(layout, me.warps), "load")
        me.uses(reads=(self.buffer,))
        me.block.touch(self, False, me, me.known[me], "generic", f"read by {me}")
        me.others_do(self, False, "read by other waves")
        return Tensor(self.data.clone(memory_format=torch.contiguous_format), layout)

    def _bytes_read(self, layout, warps: int) -> int:
        """By ldmatrix, every warp reads all that it needs, and what other warps read, too; conflicts make it more.

        AMD's waves read a second factor whole, each of them; their conflicts are not simulated.
        """
        if isinstance(layout, gl.DotOperandLayout) and isinstance(layout.parent, AMDMFMALayout):
            return (warps if layout.operand_index else 1) * self.data.numel() * self.data.itemsize
        if isinstance(layout, gl.DotOperandLayout) and isinstance(self.layout, gl.SwizzledSharedLayout):
            in_a_row = self.data.shape[self.data.stride().index(1)]
            return warps * _bytes_by_ldmatrix(layout, tuple(self.shape), self.layout, in_a_row)
        return self.data.numel() * self.data.itemsize

    def store(self, value: Tensor) -> None:
        me = state.role()
        me.point()
        data = plain(value)
        if value.shape != self.shape or data.dtype != self.data.dtype:
            theirs, ours = f"{value.shape} of {data.dtype}", f"{self.shape} of {self.data.dtype}"
            raise KernelError(at(f"a tile {theirs} for a place {ours}"))
        must_stay(value.layout, self.halved)
        me.uses(writes=(self.buffer,))
        me.block.touch(self, True, me, me.known[me], "generic", f"written by {me}")
        me.others_do(self, True, "written by other waves")
        state.spend("smem", self.data.numel() * self.data.itemsize, "store")
        self.data.copy_(data)

    def poison(self) -> None:
        """NaN, until what is under way has come."""
        if self.data.is_floating_point():
            self.data.fill_(float("nan"))

    def _keep_alive(self) -> None:
        pass


class Reordered(Memory):
    """A view that is written in another order than TMA reads it in. places: of its elements, in TMA's row order."""

    def __init__(self, buffer: Buffer, data: torch.Tensor, layout, places: torch.Tensor):
        super().__init__(buffer, data, layout)
        self.places = places

    def load(self, layout=None) -> Tensor:
        raise Unknown(at("the simulator loads nothing from a place that it has stored in an order of its own"))

    def store(self, value: Tensor) -> None:
        there = torch.empty_like(plain(value)).view(-1)
        there[self.places] = plain(value).reshape(-1)
        super().store(Tensor(there.view(tuple(value.shape)), value.layout))


@cache
def _places(layout, of_tma, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor(layouts.places_in(layout, of_tma, shape))


@cache
def _bytes_by_ldmatrix(layout, shape: tuple[int, ...], shared, in_a_row: int) -> int:
    """A warp's matrices of 8 x 8, times the wavefronts that shared memory takes for each."""
    return (
        layouts.matrices(layout, shape) * layouts.ldmatrix_wavefronts(shared, in_a_row) * layouts.BANKS * layouts.WORD
    )


def allocate_shared_memory(dtype, shape, layout, value: Tensor | None = None) -> Memory:
    block = state.block()
    of_barriers = type(layout).__name__ == "MBarrierLayout"
    kind = torch.int64 if of_barriers else torch_dtype(dtype)
    shape = own_part(shape, layout)
    size = math.prod(shape) * kind.itemsize
    block.shared_bytes += size
    if block.shared_bytes > block.machine.shared_bytes:
        raise KernelError(at(f"{block.shared_bytes} bytes of shared memory, of {block.machine.shared_bytes}"))
    buffer = Buffer(line_of(place()), size, "barriers" if of_barriers else "shared")
    block.buffers.append(buffer)
    memory = Memory(buffer, buffer.bytes.view(kind).view(tuple(shape)), layout, halved(layout))
    if value is not None:
        memory.store(value)
    return memory
