"""Hopper's operations: mbarriers, TMA, wgmma, and the fence between the proxies.

In a cluster each CTA has mbarriers of its own, and joint ones, which lie in the first CTA's shared memory. TMA tells of
its bytes there what it brings to either CTA. Each CTA arrives there, and announces its own bytes; only the first one
waits. A copy with multicast is asked for by the first CTA, and tells every CTA's own mbarrier of what came there.

Sources: PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier", "Async proxy",
"Asynchronous Warpgroup Level Matrix Instructions".
"""

from __future__ import annotations

import re

from triton.experimental.gluon import language as gl

from tutorial_lib.meetings import ASKED
from tutorial_lib.multicast import BEGIN, END, MEET
from tutorial_lib.simulator import state
from tutorial_lib.simulator.ampere import operations, product, rate
from tutorial_lib.simulator.block import Block, KernelError, Role, Unknown, at, line_of, place
from tutorial_lib.simulator.cluster import CTAS, alone, halved
from tutorial_lib.simulator.language import SEQUENCES, multiplied_by_vote
from tutorial_lib.simulator.memory import Memory
from tutorial_lib.simulator.order import Buffer, Clock, join
from tutorial_lib.simulator.translate import OPERATIONS, operation
from tutorial_lib.simulator.values import Descriptor, Pending, Tensor, plain
from tutorial_lib.tensor_cores import product as product_of_fp8

# --- mbarriers ---


class MBarrier:
    """A phase is complete when as many arrivals have come as it was made for, and all bytes that were announced."""

    def __init__(self, block, buffer: Buffer, index: int):
        self.block, self.buffer, self.index = block, buffer, index
        self.count: int | None = None

    def init(self, count: int, role: Role) -> None:
        self.count = self.pending = count
        self.phase = self.bytes = 0
        self.gathering, self.released = ({}, {}), ({}, {})  # what those who wait will know
        self.made = role, role.known[role]
        self.copies = 0  # that TMA was asked for, and that report here
        self.waiting: list[Role] = []

    def arrive(self, number: int, known: tuple[Clock, Clock], time: float) -> None:
        self._gather(known)
        self._there()
        self.pending -= number
        if self.pending < 0:
            name = self.block.name_of(self.buffer, self.index)
            raise KernelError(at(f"{name} got more arrivals than the {self.count} it was made for"))
        self._check(time)

    def fill(self, number: int, known: tuple[Clock, Clock], time: float) -> None:
        self._gather(known)
        self._there()
        self.bytes -= number
        self._check(time)

    def _there(self) -> None:
        """Raises KernelError for a barrier of a CTA that has ended while the other one goes on."""
        if self.block.over and self.block.cluster is not None:
            raise KernelError(at(f"something reports to a barrier of {self.block}, which has ended"))

    def _gather(self, known: tuple[Clock, Clock]) -> None:
        for mine, new in zip(self.gathering, known, strict=True):
            join(mine, new)

    def _check(self, time: float) -> None:
        if self.pending == 0 and self.bytes == 0:
            self.phase += 1
            self.pending = self.count
            self.released, self.gathering = self.gathering, ({}, {})
            waiting, self.waiting = self.waiting, []
            for role in waiting:
                role.wake(time)

    def passed(self, parity: int) -> bool:
        """Whether the phase of this parity is over: of a fresh barrier the one before its first, parity 1, is."""
        return (self.phase & 1) != parity

    def describe(self, parity: int) -> str:
        told = f"{self.phase} phase{'s' * (self.phase != 1)} complete, {self.pending} of {self.count} arrivals missing"
        told += f", {self.bytes} bytes missing" if self.bytes else ""
        return f"{self.block.name_of(self.buffer, self.index)} with parity {parity} ({told})"


def is_joint(view: Memory) -> bool:
    """Whether both CTAs of a cluster have this mbarrier together."""
    return state.run.ctas > 1 and view.halved is None


def barrier_at(view: Memory, made: bool = True, block: Block | None = None) -> MBarrier:
    """The mbarrier of a place in shared memory: this CTA's, or another one's; a joint one is the first CTA's.

    made: raise KernelError where it was not initialised.
    """
    own = state.block()
    if made and own.uninitialised:
        _initialised_for_both(own)
    block = own.cluster.blocks[0] if is_joint(view) else block or own
    if block is not own:
        view = view.of(block)
    key = view.buffer, view.data.storage_offset()
    if key not in block.barriers:
        block.barriers[key] = MBarrier(block, view.buffer, view.data.storage_offset() // max(1, view.data.numel()))
    if made and block.barriers[key].count is None:
        raise KernelError(at("a barrier that was not initialised"))
    return block.barriers[key]


def reported_to(barrier: MBarrier, what: str) -> None:
    """Report where the current role, or what it begins, may not know that a barrier was initialised."""
    me = state.role()
    if me.fenced.get(barrier.made[0], 0) < barrier.made[1]:
        barrier.block.report("no fence", barrier.buffer, "its initialisation", (), what)


@operation(("mbarrier", "init"))
def init(mbarrier, count):
    if not is_joint(mbarrier):
        barrier_at(mbarrier, made=False).init(count, state.role())
    elif state.block().rank == 0:
        barrier_at(mbarrier, made=False).init(CTAS * count, state.role())
    if state.run.ctas > 1:
        state.block().uninitialised = True


def _initialised_for_both(own: Block) -> None:
    """What the compiler sets behind a cluster's initialisations: a fence, and a relaxed meeting of the CTAs."""
    own.uninitialised = False
    fence_async_shared()
    me = state.role()
    me.initialised = dict(me.fenced)
    own.cluster.arrive(me, ({}, dict(me.initialised)))
    own.cluster.wait(me)


OPERATIONS[("mbarrier", "invalidate")] = lambda mbarrier: None


@operation(("mbarrier", "expect"))
def expect(mbarrier, bytes_per_cta=None, pred=True, *, from_cta=None):
    """An arrival that announces bytes, which TMA then brings; at a joint barrier each CTA announces its own."""
    _not_routed(from_cta)
    if pred:
        me = state.role()
        me.point()
        barrier = barrier_at(mbarrier)
        me.uses(writes=(barrier.buffer,))
        if barrier.block is not me.block:
            reported_to(barrier, "the other CTA announces bytes to a barrier")
        barrier.bytes += bytes_per_cta
        barrier.arrive(1, me.release(), me.time)
        me.time += me.block.machine.issue


@operation(("mbarrier", "arrive"))
def arrive(mbarrier, count=1, pred=True, *, from_cta=None):
    _not_routed(from_cta)
    if pred:
        me = state.role()
        me.point()
        if me.read or me.written:  # the compiler lets one thread arrive, once all warps have done what stands in front
            me.meet()
        target = me.block.other if me.across else me.block
        barrier = barrier_at(mbarrier, block=target)
        if barrier.block is not me.block:
            reported_to(barrier, "the other CTA arrives at a barrier")
        me.asks("arrive", me.block.name_of(barrier.buffer, barrier.index))
        barrier.arrive(count, me.release(), me.time)
        me.time += me.block.machine.issue


def _not_routed(from_cta) -> None:
    if from_cta is not None:
        raise Unknown(at("the simulator has no arrival that is routed to other CTAs"))


@operation(("mbarrier", "wait"))
def wait(mbarrier, phase, pred=True, deps=()):
    if not pred:
        return
    me, barrier, parity = state.role(), barrier_at(mbarrier), int(phase)
    if barrier.block is not me.block:  # a joint one is waited for by the first CTA alone
        return

    def ready() -> bool:
        if barrier.passed(parity):
            return True
        barrier.waiting.append(me)
        return False

    me.wait(ready, "mbarrier", lambda: barrier.describe(parity))
    me.acquire(barrier.released)
    me.time += me.block.machine.wait


@operation("fence_async_shared")
def fence_async_shared(cluster=False):
    """What this role knows of now, the async proxy may know of, too."""
    me = state.role()
    me.fenced = dict(me.known)
    me.known[me] += 1
    me.time += me.block.machine.issue


# --- what ``tutorial_lib.rewriting`` writes into the PTX ---


def _across(begins: bool) -> int:
    me = state.role()
    if me.block.cluster is None:
        raise KernelError(at("copies to both CTAs, or arrivals in the other, in a block that is alone"))
    me.across = begins
    return 0


def _meet() -> int:
    me = state.role()
    if me.block.cluster is None:
        raise KernelError(at("a meeting of CTAs in a block that is alone"))
    me.point()
    me.meet()
    me.fenced = {**me.fenced, **me.known}  # fence.mbarrier_init
    me.block.cluster.arrive(me, me.release())
    me.block.cluster.wait(me)
    return 0


SEQUENCES[f"{re.escape(BEGIN)}(?s:.*)"] = lambda found: _across(True)
SEQUENCES[f"{re.escape(END)}(?s:.*)"] = lambda found: _across(False)
SEQUENCES[f"{re.escape(MEET)}(?s:.*)"] = lambda found: _meet()
SEQUENCES[f"{re.escape(ASKED)}(?s:.*)"] = lambda found: 0  # a role runs as one here, and its warps never meet

# --- TMA ---


@operation(("tma", "async_load"), ("tma", "async_copy_global_to_shared"))  # the latter before Triton 3.9
def load(tensor_desc: Descriptor, coord, barrier, result: Memory, pred=True, multicast=False):
    if not pred:
        return
    me = state.role()
    block = me.block
    for_all = multicast and state.run.ctas > 1 and halved(tensor_desc.layout) is None
    if for_all and is_joint(barrier):
        raise Unknown(at("the simulator has no multicast that reports to a joint barrier"))
    if for_all and block.rank > 0:
        return
    for_all = for_all or me.across
    me.point()
    if result.shape != tensor_desc.block_shape:
        raise KernelError(at(f"TMA brings {tensor_desc.block_shape}, its place is {result.shape}"))
    begin, end = block.units["tma"].take(me.time, tensor_desc.nbytes_per_cta / block.machine.tma)
    end += block.machine.memory_latency
    block.draw("TMA", "load", line_of(place()), begin, end)
    me.asks("load", end)
    coord = tensor_desc.own(coord)
    for target in block.cluster.blocks if for_all else [block]:
        _bring(tensor_desc, coord, barrier_at(barrier, block=target), result.of(target), target, end)
    me.time += block.machine.issue


def _bring(tensor_desc: Descriptor, coord, full: MBarrier, result: Memory, target: Block, end: float) -> None:
    """A tile comes to a place of a block, which may be the other CTA; until then nobody may count on what is there."""
    me = state.role()
    full.copies += 1  # counted one by one: who waits for a phase that ends before its last copy knows nothing of that
    agent, count = ("TMA load", full), full.copies
    reported_to(full, "TMA reports to a barrier")
    me.uses(writes=(result.buffer, full.buffer))
    target.touch(result, True, agent, count, "async", f"TMA load asked for by {me}")
    result.poison()
    known = {**me.known, agent: count}, dict(me.fenced)
    me.known[me] += 1  # what this role does from now on, who waits for the tile does not know
    size, box = tensor_desc.nbytes_per_cta, result.data.shape

    def finish(time: float) -> None:
        result.data.copy_(tensor_desc.load(coord).view(box))
        full.fill(size, known, time)

    target.later(end, finish)


def _hand_over(tensor_desc: Descriptor, src: Memory, what: str, do) -> None:
    """Let TMA read a place in shared memory, and do something with the tile, ``do(tile)``, when it has got there."""
    me = state.role()
    me.point()
    block, pipe = me.block, me.stores
    if state.run.ctas > 1 and halved(tensor_desc.layout) is None:
        raise Unknown(at("the simulator has no store of a tile that both CTAs of a cluster have"))
    pipe.begun += 1
    me.uses(reads=(src.buffer,))
    block.touch(src, False, pipe.agent, pipe.begun, "async", f"TMA {what} asked for by {me}")
    begin, end = block.units["tma"].take(me.time, tensor_desc.nbytes_per_cta / block.machine.tma)
    end = pipe.last_end = max(pipe.last_end, end + block.machine.store_latency)
    block.draw("TMA", what, line_of(place()), begin, end)

    def read(time: float) -> None:
        tile = src.data.view(tensor_desc.box).clone()
        pipe.ended += 1
        me.wake(time)
        chance = block.run.chance
        latency = block.machine.memory_latency * (chance.choice((0.2, 1, 40)) if chance else 1)
        arrival = me.writes.last_end = max(me.writes.last_end, time + latency)
        block.later(arrival, lambda time: write(tile, time))

    def write(tile, time: float) -> None:
        do(tile)
        me.writes.ended += 1
        me.wake(time)

    block.later(end, read)
    me.time += block.machine.issue


@operation(("tma", "async_store"), ("tma", "async_copy_shared_to_global"))
def store(tensor_desc: Descriptor, coord, src: Memory):
    coord = tensor_desc.own(coord)
    _hand_over(tensor_desc, src, "store", lambda tile: tensor_desc.store(coord, tile))


@operation("async_reduce_shared_to_global", ("tma", "async_atomic_add"))
def reduce(tensor_desc: Descriptor, coord, src: Memory):
    """TMA adds the tile to what is there (``steps.backward_hopper.lib``)."""
    coord = tensor_desc.own(coord)
    _hand_over(tensor_desc, src, "reduction", lambda tile: tensor_desc.store(coord, tensor_desc.load(coord) + tile))


@operation(("tma", "store_wait"))
def store_wait(pendings, read_only=True):
    if not read_only:
        raise Unknown(at("the simulator has no tma.store_wait for what is written"))
    me = state.role()
    target = me.stores.begun - pendings
    me.wait(lambda: me.stores.ended >= target, "TMA store", lambda: f"its TMA stores up to number {target}")
    me.learn(me.stores, target)
    me.meet()


def store_written(found: re.Match) -> int:
    """As ``store_wait``, and waits until global memory has been written, too."""
    me = state.role()
    target = me.stores.begun - int(found[1])
    me.wait(lambda: me.writes.ended >= target, "TMA store", lambda: f"what its TMA stores up to number {target} write")
    me.learn(me.stores, target)
    return 0


SEQUENCES[r"cp\.async\.bulk\.wait_group (\d+); mov\.b32 \$0, 0;"] = store_written


# --- wgmma ---


def _voted(found: re.Match, x: Tensor, factor: Tensor) -> Tensor:
    """``multiplied_by_vote``; of a product a warp has 16 rows, and each of its 32 lanes as many numbers as it fills."""
    rows, columns = x.layout.instr_shape[0], 2 * len(re.findall("mul\\.f32", found[0]))
    if x.shape[1] % columns:
        raise KernelError(at(f"a vote on {columns} columns of an output that has {x.shape[1]}"))
    return multiplied_by_vote(x, factor, rows, columns)


# Two comparisons with 1, as a lane has two rows; a vote of the warp; a jump where no lane says yes; multiplications.
VOTE = (
    r"\{ \.reg \.pred (\w+); setp\.neu\.f32 \1, \$\d+, 0f3F800000; setp\.neu\.or\.f32 \1, \$\d+, 0f3F800000, \1;"
    r" vote\.sync\.any\.pred \1, \1, 0xffffffff; @!\1 bra (\w+); (?:mul\.f32 \$(\d+), \$\3, \$\d+; )+\2: \}"
)
SEQUENCES[VOTE] = _voted


@operation("warpgroup_mma_init")
def warpgroup_mma_init(value):
    return value


@operation("warpgroup_mma")
def warpgroup_mma(
    a, b: Memory, acc, use_acc=True, precision=None, max_num_imprecise_acc=None, is_async=False
) -> Tensor:
    """Begun now. The factors in shared memory are read, and the sum is there, when the product has ended."""
    alone("wgmma")
    me = state.role()
    me.point()
    block, pipe = me.block, me.wgmma
    pipe.begun += 1
    me.asks("wgmma" if is_async else "wgmma at once", pipe.begun)
    in_memory = [factor for factor in (a, b) if isinstance(factor, Memory)]
    me.uses(reads=tuple(factor.buffer for factor in in_memory))
    pipe.factors.append((pipe.begun, {factor.buffer for factor in in_memory}))
    for factor in in_memory:
        for group in range(me.groups):
            what = f"read by wgmma of {me}" + (f", warpgroup {group}" if me.groups > 1 else "")
            block.touch(factor, False, pipe.of_group(group), pipe.begun, "async", what, in_order=True)
    held = None
    if isinstance(a, Tensor):
        held = plain(a).clone()
        if not (isinstance(a.layout, gl.DotOperandLayout) and a.layout.operand_index == 0):
            raise KernelError(at(f"the first factor of a product has layout {a.layout}"))
    clocks = operations(a, b) / rate("wgmma") * b.data.itemsize / 2  # half as many in 8 bits as in 16
    begin, end = block.units["tensor cores"].take(max(me.time, pipe.last_end), clocks)
    pipe.last_end = end
    block.draw("tensor cores", "wgmma", str(me), begin, end)
    pending = Pending(acc.shape, acc.layout, pipe.begun)

    def finish(time: float) -> None:
        before = None
        if use_acc:
            before = acc.result if isinstance(acc, Pending) else acc.data
        multiply = product_of_fp8 if b.data.itemsize == 1 else product
        pending.result = multiply(held if held is not None else a.data, b.data, before)
        pipe.ended += 1
        me.wake(time)

    block.later(end, finish)
    me.time += block.machine.issue
    if held is not None and begin > me.time:  # the tensor cores read registers when they begin, which holds the warps
        block.draw(me.name, "wait", "tensor cores", me.time, begin)
        me.time = begin
    return pending if is_async else warpgroup_mma_wait(0, [pending])


@operation("warpgroup_mma_wait")
def warpgroup_mma_wait(num_outstanding=0, deps=None):
    me = state.role()
    pipe = me.wgmma
    target = pipe.begun - num_outstanding
    me.asks("wait", target)
    me.wait(lambda: pipe.ended >= target, "wgmma", lambda: f"its product {target}")
    me.learn(pipe, target)
    while pipe.factors and pipe.factors[0][0] <= target:  # to the compiler, the wait reads them
        me.read.update(pipe.factors.pop(0)[1])
    results = []
    for x in deps:
        if isinstance(x, Pending):
            if x.number > target:
                raise KernelError(at(f"wait({num_outstanding}) does not wait for this product"))
            x = Tensor(x.result, x.layout)
        results.append(x)
    return results[0] if len(results) == 1 else tuple(results)
