"""Blackwell's operations: tensor memory, and ``tcgen05``, the matrix products that accumulate in it.

Source: PTX ISA, "TensorCore 5th Generation Family Instructions". Tensor memory has 512 columns of 128 lanes of 32 bits,
and a warp reaches the 32 lanes of its place in its warpgroup. One thread begins a product, and all of them are
asynchronous. Two that one thread began are promised to run in this order only where accumulator, shape and kind are
the same ("tcgen05 Memory Consistency Model", pipelined instructions). ``tcgen05.commit`` arrives at an mbarrier when
all that its thread began before has ended.

In a cluster two CTAs may compute a product together (``.cta_group::2``). Each has its rows of the first factor and of
the sum, and half of the second factor's columns, which the tensor cores of both read. With 64 rows in each CTA the
first 64 lanes have the first half of a sum's columns, and the others the second half ("Data Path Layout B"): it takes
half as many columns of tensor memory. The first CTA begins a product, and its commits arrive in both. Products of one
CTA may arrive in both, too: then the second factor came to both by multicast.

Cluster launch control (PTX ISA, "clusterlaunchcontrol"): a block asks for one that has not begun, which then never
begins, and gets its place in the grid. The answer comes to shared memory some time later, and an mbarrier counts its
bytes. Triton sets the fence in front of the request (a test looks at its PTX).

mbarriers, TMA and the fence between the proxies are Hopper's: see ``hopper``.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from triton.experimental.gluon.language.nvidia.blackwell import TensorMemoryLayout, tensor_memory_descriptor_type

from tutorial_lib.simulator import state
from tutorial_lib.simulator.ampere import operations, product, rate
from tutorial_lib.simulator.block import GROUP_WARPS, KernelError, Pipe, Role, Unknown, at, line_of, place
from tutorial_lib.simulator.cluster import alone, halved, must_stay, own_part
from tutorial_lib.simulator.hopper import barrier_at, is_joint, reported_to
from tutorial_lib.simulator.integers import Int
from tutorial_lib.simulator.memory import Memory
from tutorial_lib.simulator.order import Buffer
from tutorial_lib.simulator.translate import operation
from tutorial_lib.simulator.values import Tensor, plain, torch_dtype

LANES, COLUMN_BYTES = 128, 4  # of tensor memory: a column has 32 bits in every lane
LEAST_DEPTH, MOST_COLUMNS = 16, 256  # of a product of 16-bit numbers: what it takes of K at a time, and its N at most
PAIR_COLUMNS = 32  # of what the N of a product of two CTAs is a multiple

# --- tensor memory ---


class TensorMemory(Memory):
    """A view of columns: data [..., lane, column]. Places that ``index`` chooses from lie side by side, in columns."""

    def slice(self, start, length, dim: int | None = None) -> TensorMemory:
        """Some of the columns."""
        if self.data.shape[-2] < LANES:
            raise Unknown(at(f"the simulator slices no tensor memory of {self.data.shape[-2]} rows"))
        self._inside(int(start), int(length), self.data.shape[-1])
        return self._view(self.data.narrow(-1, int(start), int(length)))

    def _view(self, data: torch.Tensor) -> TensorMemory:
        return TensorMemory(self.buffer, data, self.layout, self.halved)

    def _inside(self, start: int, length: int, there: int) -> None:
        if start < 0 or start + length > there:
            raise KernelError(at(f"columns {start} to {start + length - 1} of a place that has {there}"))

    def reinterpret(self, dtype=None, shape=None, layout=None) -> TensorMemory:
        """The same columns from the first one on, as numbers of another dtype: every lane keeps its own."""
        layout = layout or self.layout
        new, shape = torch_dtype(dtype or self.dtype), own_part(shape or self.shape, layout)
        lanes, elements = map(int, shape)
        _packed(layout)
        if lanes != self.data.shape[0]:
            raise KernelError(at(f"{lanes} lanes in place of {self.data.shape[0]}"))
        self._inside(0, elements * new.itemsize, self.data.shape[1] * self.data.itemsize)
        offset, stride = self.data.storage_offset(), self.data.stride(0)
        offset, stride = (n * self.data.itemsize // new.itemsize for n in (offset, stride))
        data = torch.as_strided(self.buffer.bytes.view(new), (lanes, elements), (stride, 1), offset)
        return TensorMemory(self.buffer, data, layout, halved(layout))

    def load(self, layout=None) -> Tensor:
        """Into registers; the warps wait for it, as the compiler sets ``tcgen05.wait::ld`` behind it."""
        me, layout = self._role(), layout or self.get_reg_layout()
        must_stay(layout, self.halved)
        me.block.touch(self, False, me, me.known[me], "generic", f"read by {me}")
        began = me.time
        state.spend("tmem", self.data.numel() * self.data.itemsize, "load")
        _note(me.block, "load", False, self, began, me.time)
        return Tensor(self.data.clone(memory_format=torch.contiguous_format), layout)

    def get_reg_layout(self):
        """The layout in registers that Triton takes for the role's warps where none is asked for."""
        return _in_registers(self.dtype, tuple(self.shape), self.layout, state.role().warps)

    def store(self, value: Tensor, pred=True) -> None:
        """From registers. All warps of the role meet behind it: the compiler sets the barrier by itself."""
        if not pred:
            return
        me, data = self._role(), plain(value)
        if value.shape != self.shape or data.dtype != self.data.dtype:
            theirs, ours = f"{value.shape} of {data.dtype}", f"{self.shape} of {self.data.dtype}"
            raise KernelError(at(f"a tile {theirs} for a place {ours}"))
        must_stay(value.layout, self.halved)
        me.block.touch(self, True, me, me.known[me], "generic", f"written by {me}")
        began = me.time
        state.spend("tmem", self.data.numel() * self.data.itemsize, "store")
        _note(me.block, f"store of {8 * self.data.itemsize} bits", True, self, began, me.time)
        self.data.copy_(data)
        me.meet()

    def load_min(self, *_, **__):
        raise Unknown(at("the simulator has no tensor memory.load_min"))

    def load_max(self, *_, **__):
        raise Unknown(at("the simulator has no tensor memory.load_max"))

    def _role(self) -> Role:
        """The role whose turn it is; raises KernelError where its warps do not reach all lanes."""
        me = state.role()
        if me.warps % GROUP_WARPS:
            raise KernelError(at(f"{me.warps} warps for all lanes of tensor memory, of which a warp reaches 32"))
        me.point()
        return me


@cache
def _in_registers(dtype, shape: tuple[int, ...], layout: TensorMemoryLayout, warps: int):
    return tensor_memory_descriptor_type(dtype, [*shape], layout, [*shape]).get_reg_layout(warps)


def _note(block, what: str, written: bool, place: TensorMemory, begin: float, end: float) -> None:
    """Note for who asks for a trace which columns were read or written."""
    if block.run.trace is not None:
        rows, row = place.data.shape[-2], place.data.stride(0) * place.data.itemsize  # bytes between rows
        part, within = divmod(place.data.storage_offset() * place.data.itemsize, rows * row)
        first = block.first_columns[place.buffer] + (part * row * rows // LANES + within) // COLUMN_BYTES
        count = _columns(place.data.shape, place.data.itemsize)
        block.run.columns.append((block.key, what, written, first, count, begin - block.began, end - block.began))


def _columns(shape, itemsize: int) -> int:
    """Columns that a place takes: of 64 rows all lanes are used, and the second half of them has the last columns."""
    return math.prod(shape) * itemsize // (LANES * COLUMN_BYTES)


def _packed(layout) -> None:
    rows = (LANES, LANES // 2) if layout.two_ctas else (LANES,)
    if layout.col_stride != 1 or layout.block[0] not in rows or halved(layout) == -1:
        raise Unknown(at(f"the simulator has no tensor memory laid out as {layout}"))


@operation("allocate_tensor_memory")
def allocate_tensor_memory(element_ty, shape, layout, value: Tensor | None = None) -> TensorMemory:
    block, kind, shape = state.block(), torch_dtype(element_ty), tuple(int(n) for n in own_part(shape, layout))
    _packed(layout)
    if layout.two_ctas and block.cluster is None:
        raise KernelError(at("tensor memory for products of two CTAs in a block that is alone"))
    if block.tensor_columns and layout.two_ctas != block.pair:
        raise KernelError(at("tensor memory for products of two CTAs, and for those of one: a kernel has either"))
    block.pair = layout.two_ctas
    if shape[-2] != layout.block[0]:
        raise KernelError(at(f"a place with {shape[-2]} rows in tensor memory, whose layout has {layout.block[0]}"))
    first = block.tensor_columns
    block.tensor_columns += _columns(shape, kind.itemsize)
    if block.tensor_columns > block.machine.tensor_columns:
        told = f"{block.tensor_columns} columns of tensor memory, of {block.machine.tensor_columns}"
        raise KernelError(at(told))
    buffer = Buffer(line_of(place()), math.prod(shape) * kind.itemsize, "tensor")
    block.first_columns[buffer] = first
    block.buffers.append(buffer)
    memory = TensorMemory(buffer, buffer.bytes.view(kind).view(shape), layout, halved(layout))
    if value is not None:
        memory.store(value)
    return memory


# --- products ---


@operation("tcgen05_mma")
def tcgen05_mma(
    a, b: Memory, acc: TensorMemory, use_acc=True, pred=True, multicast=False, mbarriers=None, mbarrier_preds=None
):
    """acc = a @ b, and what was there if ``use_acc``. Without mbarriers the role waits for it.

    multicast: in a cluster, whether it arrives at the mbarriers of all CTAs that have the same factor.
    """
    if not pred:
        return
    _fit(a, b, acc)
    me = state.role()
    if me.block.pair and mbarriers is None:
        raise Unknown(at("the simulator has no product of two CTAs without mbarriers"))
    if me.block.pair and me.block.rank > 0:
        return
    me.point()
    block, pipe = me.block, _pipe(me, a, b, acc)
    pipe.begun += 1
    me.uses(reads=tuple(factor.buffer for factor in (a, b) if not isinstance(factor, TensorMemory)))
    targets, factors, sums = block.cluster.blocks if block.pair else [block], [], []  # every CTA that takes part
    for target in targets:
        factors.append((a.of(target), b.of(target)))
        sums.append(acc.of(target))
        for factor in factors[-1]:
            target.touch(factor, False, pipe.agent, pipe.begun, "async", f"read by tcgen05.mma of {me}", in_order=True)
        target.touch(sums[-1], True, pipe.agent, pipe.begun, "async", f"written by tcgen05.mma of {me}", in_order=True)
    clocks = len(sums) * operations(a.data, b.data) / rate("tcgen05")
    begin, end = block.units["tensor cores"].take(me.time, clocks)
    if block.pair:
        begin_there, end_there = block.cluster.blocks[1].units["tensor cores"].take(me.time, clocks)
        begin, end = max(begin, begin_there), max(end, end_there)
    end = pipe.last_end = max(pipe.last_end, end)
    weighted = isinstance(a, TensorMemory)  # as a PV product has its first factor
    for target, (first, _), some in zip(targets, factors, sums, strict=True):
        target.draw("tensor cores", "tcgen05", str(me), begin, end)
        if weighted:
            _note(target, "factor", False, first, begin, end)
        _note(target, "product" if not weighted else "sum" if use_acc else "first sum", True, some, begin, end)

    def clear(time: float) -> None:
        for some in sums:
            some.poison()

    def finish(time: float) -> None:
        second = factors[0][1].data if len(factors) == 1 else torch.cat([b.data for _, b in factors], dim=-1)
        for (first, _), some in zip(factors, sums, strict=True):
            some.data.copy_(product(first.data, second, some.data.clone() if use_acc else None))
        pipe.ended += 1
        me.wake(time)

    if not use_acc:
        block.later(begin, clear)
    block.later(end, finish)
    me.time += block.machine.issue
    if mbarriers is None:
        number = pipe.begun
        me.wait(lambda: pipe.ended >= number, "tcgen05", lambda: f"its product {number}")
        me.learn(pipe, number)
    shared = [factor for factor in (a, b) if not isinstance(factor, TensorMemory)] if multicast else ()
    for n, barrier in enumerate(mbarriers or ()):
        tcgen05_commit(barrier, True if mbarrier_preds is None else mbarrier_preds[n], shared)


def _fit(a, b, acc) -> None:
    """Raises KernelError for factors that no product takes."""
    if not isinstance(acc, TensorMemory) or acc.data.dtype != torch.float32 or isinstance(b, TensorMemory):
        raise KernelError(at("a product goes into float32 in tensor memory, and its second factor is in shared memory"))
    if not isinstance(a, Memory) or a.data.dtype != b.data.dtype or a.data.itemsize != 2:
        raise KernelError(at(f"factors of {a.dtype} and {b.dtype}: both must be in memory, of the same 16-bit dtype"))
    if (pair := acc.layout.two_ctas) and (a.halved, b.halved, acc.halved) != (-2, -1, -2):
        raise KernelError(at("a product of two CTAs has rows of the first factor in each, and columns of the second"))
    if not pair and (b.halved is not None or a.halved != acc.halved):
        raise KernelError(at("a product of one CTA whose factors do not belong together"))
    (m, k), (depth, n), of_n = a.data.shape, (b.data.shape[0], b.shape[1]), PAIR_COLUMNS if pair else LEAST_DEPTH
    if m < LANES and isinstance(a, TensorMemory):
        raise Unknown(at(f"the simulator has no first factor of {m} rows in tensor memory"))
    if (
        k != depth
        or (m, n) != acc.data.shape
        or m != acc.layout.block[0]
        or k % LEAST_DEPTH
        or n % of_n
        or n > MOST_COLUMNS
    ):
        raise KernelError(at(f"a product {a.shape} times {b.shape} into {acc.shape}"))


def _pipe(me: Role, a, b, acc: TensorMemory) -> Pipe:
    """The products that run in the order in which they were begun: same accumulator, shape and kind."""
    key = acc.buffer, acc.data.storage_offset(), (*a.shape, b.shape[1]), a.data.dtype
    if key not in me.tcgen05:
        me.tcgen05[key] = Pipe("tcgen05", me, key)
    return me.tcgen05[key]


@operation("tcgen05_commit")
def tcgen05_commit(barrier, pred=True, descs=()):
    """An arrival when all products that the role has begun have ended.

    descs: factors; in a cluster it arrives in all CTAs that have the same. Of products of two CTAs it arrives in both.
    """
    me = state.role()
    block = me.block
    if not pred or (block.pair and block.rank > 0):
        return
    if is_joint(barrier):
        raise Unknown(at("the simulator has no commit to a joint barrier of a cluster"))
    in_all = block.cluster is not None and (block.pair or any(factor.halved is None for factor in descs))
    bars = [(target, barrier_at(barrier, block=target)) for target in (block.cluster.blocks if in_all else [block])]
    me.point()
    pipes = me.tcgen05.values()
    known = {**me.known, **{pipe.agent: pipe.begun for pipe in pipes}}, dict(me.fenced)
    me.known[me] += 1
    at_end = max([me.time, *(pipe.last_end for pipe in pipes)])
    for target, bar in bars:
        if target is not block:
            reported_to(bar, "tcgen05.commit reports to a barrier")
        block.later(at_end, lambda time, bar=bar: bar.arrive(1, known, time))
    me.time += block.machine.issue


# --- cluster launch control ---

ANSWER_BYTES = 16


@operation(("clc", "try_cancel"))
def try_cancel(result: Memory, barrier) -> None:
    """Ask for a block that has not begun. The barrier must expect the bytes of the answer."""
    alone("cluster launch control")
    me = state.role()
    me.point()
    block, full = me.block, barrier_at(barrier)
    if result.data.dtype != torch.int64 or tuple(result.shape) != (2,):
        raise KernelError(at(f"the answer takes two numbers of int64, not {result.shape} of {result.data.dtype}"))
    if block.none_left:
        raise KernelError(at("asked for a block again, after it was told that there is none"))
    taken = next(block.processor.to_begin, None)
    full.copies += 1
    agent, count = ("answer", full), full.copies
    me.uses(writes=(result.buffer, full.buffer))
    block.touch(result, True, agent, count, "async", f"answer to a request of {me}")
    result.data.fill_(UNKNOWN)
    known = {**me.known, agent: count}, dict(me.fenced)
    me.known[me] += 1
    x, y, z = taken[0].index if taken else (NONE, NONE, NONE)

    def finish(time: float) -> None:
        result.data.copy_(torch.tensor([x, NONE if taken is None else y << 16 | z]))
        full.fill(ANSWER_BYTES, known, time)

    block.later(me.time + block.machine.memory_latency, finish)
    me.time += block.machine.issue


UNKNOWN, NONE = -2, -1  # in the place of an answer: not come yet; and that all blocks have begun


@operation(("clc", "load_result"))
def load_result(src: Memory) -> Answer:
    """Read an answer. Who was told that there is no block must not ask again."""
    first, others = src.load().data.tolist()
    if first == NONE:
        state.block().none_left = True
    return Answer(first, others)


class Answer:
    """What was answered: whether a block was taken, and which."""

    def __init__(self, first: int, others: int):
        self.taken, self.index = first >= 0, (first, others >> 16, others & 0xFFFF)

    def is_canceled(self) -> bool:
        return self.taken

    def program_id(self, dim: int) -> Int:
        """Of a block that was taken; else nobody promises which number comes."""
        return Int(self.index[dim] if self.taken else -1)
