"""A block of threads in simulated time: its roles, and what is under way.

A *role* is a partition of ``gl.warp_specialize``, or all warps of a block that has none. It runs as a fiber, with a
clock of its own; whoever is earliest goes first. What is asynchronous is an event that happens later.
"""

from __future__ import annotations

import itertools
import linecache
import os
import sys
import traceback
from bdb import BdbQuit
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import greenlet

from tutorial_lib.simulator.machine import Machine
from tutorial_lib.simulator.order import Access, Buffer, Clock, join

if TYPE_CHECKING:
    from tutorial_lib.simulator.cluster import Cluster
    from tutorial_lib.simulator.processor import Processor

READY, WAITING, DONE = "ready", "waiting", "done"
GROUP_WARPS = 4
HELD_UP = 0.1  # of all waits under random latencies: so often a role goes on late, as warps may for many reasons


class KernelError(RuntimeError):
    """The kernel does what no GPU would take, or no compiler; the message ends with the kernel's line.

    found: races and missing fences of this launch before it: they may be the reason.
    """

    found: tuple[str, ...] = ()


class Deadlock(KernelError):
    """Every role waits, and nothing is under way that could end a wait."""


class Unknown(NotImplementedError):
    """An operation that the simulator does not have; the message names it."""


# --- where we are in the kernel ---

MARK = "__simulated__"  # among the globals of a kernel's function: how its frames are known


def frames() -> Iterator:
    """The kernel's frames, innermost first."""
    frame = sys._getframe(1)
    while frame:
        if MARK in frame.f_globals:
            yield frame
        frame = frame.f_back


Place = tuple[tuple[str, int, str], ...]  # file, line and function of the kernel's frames, innermost first


def place() -> Place:
    """Where the kernel is."""
    return tuple((f.f_code.co_filename, f.f_lineno, f.f_code.co_name) for f in itertools.islice(frames(), 3))


def line_of(where: Place) -> str:
    """The kernel's line: "pipeline.py:80"."""
    return f"{os.path.basename(where[0][0])}:{where[0][1]}" if where else "nowhere"


def told(where: Place) -> str:
    """The kernel's line with what it says, and who called it: "pipeline.py:80 fetch `...` < kernel.py:61 produce"."""
    if not where:
        return "nowhere"
    code = linecache.getline(*where[0][:2]).strip()
    lines = [f"{os.path.basename(file)}:{line} {function}" for file, line, function in where]
    return " < ".join([f"{lines[0]} `{code}`" if code else lines[0], *lines[1:]])


def at(message: str) -> str:
    return f"{message}, at {told(place())}"


class Pipe:
    """Asynchronous operations of one kind of one role, which end in the order in which they were begun."""

    def __init__(self, *agent):
        self.agent, self.begun, self.ended, self.last_end = agent, 0, 0, 0.0
        self.factors: list[tuple[int, set[Buffer]]] = []  # that products read which nobody has waited for, by number

    def of_group(self, number: int):
        """The agent that stands for a warpgroup's part in these operations."""
        return self.agent if number == 0 else (*self.agent, number)


class Role:
    """Some warps with a clock, with what they know of others, and with what they have under way."""

    def __init__(self, block: Block, name: str, function: Callable, warps: int, parent: Role | None = None):
        self.block, self.name, self.warps = block, name, warps
        self.time = parent.time if parent else 0.0
        self.state, self.why, self.stopped_at = READY, ("", str), ()
        self.variables: list[dict] = []
        self.known: Clock = dict(parent.known) if parent else {}
        self.fenced: Clock = dict(parent.fenced) if parent else {}  # what the async proxy may know of
        self.known[self] = 1
        self.initialised: Clock = {}  # what other CTAs may know of: that barriers were initialised, and nothing else
        # A product of several warpgroups is over when each of them is done, and each waits for its own part alone.
        # What a role knows is what its first group knows, which asks TMA, too; of the others' parts it learns when all
        # warps meet.
        self.apart = block.machine.waves_apart and warps > 1
        self.groups = 2 if self.apart else max(1, warps // GROUP_WARPS)
        self.of_other_groups: Clock = {}
        # Waves may be in two halves, of which the second is one barrier behind the first (``stages``, of AMD's). The
        # role is then the first half, and learns at a barrier what the second had done at the barrier before.
        self.staggered = False
        self.second_half: Clock = {}
        self.owes = False  # a barrier at the end of a stage; a wait for copies that stands there has the same one
        self.read: set[Buffer] = set()  # since then
        self.written: set[Buffer] = set()
        self.wgmma, self.copies, self.stores = Pipe("wgmma", self), Pipe("cp.async", self), Pipe("TMA store", self)
        self.writes = Pipe("TMA write", self)  # of those stores: global memory, behind reading shared memory
        self.tcgen05: dict[tuple, Pipe] = {}  # products that go into the same accumulator
        self.group: list = []  # of cp.async, not committed yet
        self.across = False  # in a pair: whether copies come to both CTAs, and arrivals to the other one
        self._fiber = greenlet.greenlet(lambda: self._run(function))

    def __repr__(self) -> str:
        return self.name

    def _run(self, function: Callable) -> None:
        try:
            function()
        except (KernelError, Unknown, BdbQuit):
            raise
        except Exception as error:  # a mistake in the kernel's Python, such as a name that is not there
            inside = [(f.f_code, line) for f, line in traceback.walk_tb(error.__traceback__) if MARK in f.f_globals]
            where = tuple((code.co_filename, line, code.co_name) for code, line in reversed(inside[-3:]))
            raise KernelError(f"{type(error).__name__}: {error}, at {told(where)}") from error
        if self.stores.ended < self.stores.begun:
            raise KernelError(f"{self} ends while TMA still reads its shared memory: a store_wait(0) is missing")
        self.block.check_end(self)
        if self.block.pair and self is self.block.roles[0]:  # the compiler's own, before tensor memory is given back
            self.block.cluster.arrive(self, self.release())
            self.block.cluster.wait(self)
        self.state = DONE
        self.release()
        for role in self.block.roles:
            if role.state is WAITING and role.why[0] == "the others":
                role.wake(self.time)

    # --- fibers ---

    def resume(self) -> None:
        """Go on until the role pauses or ends."""
        self._fiber.parent = greenlet.getcurrent()
        self._fiber.switch()

    def pause(self) -> None:
        self._fiber.parent.switch()

    def kill(self) -> None:
        if not self._fiber.dead:
            self._fiber.parent = greenlet.getcurrent()
            self._fiber.throw(greenlet.GreenletExit)

    # --- time ---

    def point(self) -> None:
        """Whoever is earlier goes first."""
        if self.owes:
            self.owes = False
            self.meet()
        if self.block.processor.anyone_before(self):
            self.pause()

    def wait(self, ready: Callable[[], bool], what: str, describe: Callable[[], str]) -> None:
        """Until ``ready()``. what: for a timeline; describe: for who reads of a deadlock."""
        self.point()
        while not ready():
            self.state, self.why, self.stopped_at = WAITING, (what, describe), place()
            self.variables = [dict(frame.f_locals) for frame in frames()]
            began = self.time
            self.pause()
            self.block.draw(self.name, "wait", what, began, self.time)
        self.state = READY
        if (chance := self.block.run.chance) and chance.random() < HELD_UP:
            self.time += chance.choice((300, 3000, 30000))

    def wake(self, time: float) -> None:
        if self.state is WAITING:
            self.state, self.time = READY, max(self.time, time)

    def asks(self, what: str, which: object) -> None:
        """For who judges the order of things."""
        if self.block.run.trace is not None:
            self.block.run.asked.append((self.block.key, self.name, what, which))

    def use(self, unit: str, clocks: float, label: str = "") -> None:
        """Keep a unit busy, and wait until it is done."""
        if clocks > 0:
            self.point()
            self.asks(unit, clocks)
            begin, self.time = self.block.units[unit].take(self.time, clocks)
            self.block.draw(self.name, unit, label, begin, self.time)

    # --- order ---

    def release(self) -> tuple[Clock, Clock]:
        """What others may learn from this role now."""
        known = dict(self.known), dict(self.fenced)
        self.known[self] += 1
        return known

    def acquire(self, known: tuple[Clock, Clock]) -> None:
        join(self.known, known[0])
        join(self.fenced, known[1])

    def meet(self) -> None:
        """All warps of the role wait for each other."""
        join(self.known, self.second_half if self.staggered else self.of_other_groups)
        self.second_half = dict(self.of_other_groups)
        self.read.clear()
        self.written.clear()

    def uses(self, reads: tuple[Buffer, ...] = (), writes: tuple[Buffer, ...] = ()) -> None:
        """An instruction on shared memory. In front of some, the compiler lets all warps meet.

        Namely where it writes what an instruction since they last met has read or written, or reads what one has
        written. To the compiler a product reads its factors where it is begun, and again where it is waited for.
        """
        if self.written.intersection(reads + writes) or self.read.intersection(writes):
            self.meet()
        self.read.update(reads)
        self.written.update(writes)

    def others_do(self, memory, write: bool, what: str, pipe: Pipe | None = None) -> None:
        """Note, where waves are apart, that the other ones do what this role has just done, or begun, at this place.

        It is known where all have met. Whether the others were allowed to is not asked: they know what this role knows.
        """
        if self.apart:
            agent, count = ("other waves", self), self.of_other_groups.get(("other waves", self), 0) + 1
            if pipe is None:
                self.of_other_groups[agent] = count
            else:
                agent, count = pipe.of_group(1), pipe.begun + 1
            access = Access(memory.buffer.mask(memory.data), write, agent, count, "generic", place(), what)
            memory.buffer.accesses.append(access)

    def learn(self, pipe: Pipe, number: int) -> None:
        """The first ``number`` operations of a pipe have ended, and were waited for."""
        if number > 0:
            join(self.known, {pipe.agent: number})
            join(self.of_other_groups, {pipe.of_group(n): number for n in range(1, self.groups)})


class Block:
    """One block of a launch, on an SM. ``run`` is the launch: see ``tutorial_lib.simulator.run``.

    cluster: of which it is a CTA, or None. index: its place in the grid, which is its cluster's; rank: in its cluster.
    """

    def __init__(
        self,
        run,
        processor: Processor,
        index: tuple,
        grid: tuple,
        kernel: Callable,
        warps: int,
        cluster: Cluster | None = None,
        rank: int = 0,
    ):
        self.run, self.processor, self.index, self.grid = run, processor, index, grid
        self.kernel, self.warps, self.cluster, self.rank = kernel, warps, cluster, rank
        self.key = index if cluster is None else (*index, rank)  # among all blocks of a launch
        self.none_left = False  # whether it was told, by cluster launch control, that all blocks have begun
        self.machine: Machine = run.machine
        self.units, self.later = processor.units[rank], processor.later
        self.roles: list[Role] = []
        self.over = False
        self.pair = False  # whether its products are those of two CTAs
        self.barriers: dict = {}
        self.uninitialised = False  # whether the CTAs have still to meet behind the initialisation of barriers
        self.buffers: list[Buffer] = []  # in the order of their allocation, which is that of the other CTA
        self.shared_bytes = self.tensor_columns = 0
        self.first_columns: dict = {}  # of each allocation of tensor memory
        self.began = self.ended = 0.0

    def __str__(self) -> str:
        return f"block {self.index}" + ("" if self.cluster is None else f", CTA {self.rank}")

    @property
    def other(self) -> Block:
        """The other CTA of the cluster."""
        return self.cluster.blocks[1 - self.rank]

    def same_buffer(self, other: Block, buffer: Buffer) -> Buffer:
        """This CTA's buffer in the place of another's. Raises KernelError where it is not there, or no more."""
        number = other.buffers.index(buffer)
        if self.over:
            raise KernelError(at(f"{self} has ended, and its shared memory with it"))
        if number >= len(self.buffers):
            raise KernelError(at(f"shared memory of {self}, which has not come so far: nobody has waited for it"))
        return self.buffers[number]

    def draw(self, lane: str, kind: str, label: str, begin: float, end: float) -> None:
        """Something for a timeline, from the block's begin on."""
        if self.run.trace is not None and end > begin:
            self.run.trace.append((self.key, lane, kind, label, begin - self.began, end - self.began))

    def start(self, name: str, function: Callable, warps: int, parent: Role | None = None) -> Role:
        role = Role(self, name, function, warps, parent)
        self.roles.append(role)
        self.processor.roles.append(role)
        return role

    def begin(self, time: float) -> None:
        """Start with one role, all warps."""
        self.began = time
        name = "all waves" if self.machine.amd else "all warps"
        if self.cluster is not None:
            name += f" of CTA {self.rank}"
        self.start(name, self.kernel, self.warps).time = time

    def check_end(self, role: Role) -> None:
        """Raises KernelError where the block's first role, which ends last, ends under a product: its columns go.

        And where waves end under a copy of their own, as their LDS goes to another block.
        """
        if role.apart and role.known.get(role.copies.agent, 0) < role.copies.begun:
            raise KernelError("the block ends while a copy into its LDS goes on: nobody has waited for it")
        if role is self.roles[0] and any(p.ended < p.begun for other in self.roles for p in other.tcgen05.values()):
            raise KernelError("the block ends while a product of tcgen05 goes on: nobody has waited for it")

    def end(self) -> bool:
        """Whether all roles have ended; then the SM forgets them."""
        if any(role.state is not DONE for role in self.roles):
            return False
        self.ended = max(role.time for role in self.roles)
        self.over = True
        if self.cluster is not None:
            self.cluster.check(self.ended)
        self.run.clocks[self.key] = self.ended - self.began
        self.processor.roles = [role for role in self.processor.roles if role.block is not self]
        return True

    # --- order ---

    def touch(self, memory, write: bool, agent, count: int, proxy: str, what: str, in_order: bool = False) -> None:
        """Note an access of the current role, or of what it has begun, and report what is not in order."""
        role, buffer = self.processor.current, memory.buffer
        access = Access(buffer.mask(memory.data), write, agent, count, proxy, place(), what)
        for kind, old in buffer.note(access, role.known, role.fenced, in_order):
            self.report(kind, buffer, old.what, old.where, what)

    def report(self, kind: str, buffer: Buffer, before: str, before_at: Place, what: str) -> None:
        """Tell of a race or a missing fence, once for each pair of lines."""
        here = place()
        key = (kind, line_of(before_at), line_of(here), before, what)
        if key not in self.run.found:
            self.processor.current.variables = [dict(frame.f_locals) for frame in frames()]
            tail = "" if kind == "race" else ", without fence_async_shared between them"
            own = self.processor.current.block  # another CTA's buffer is called what this one's own is
            named = own.name_of(buffer if own is self else own.buffers[self.buffers.index(buffer)])
            self.run.found[key] = (
                f"{kind} on {named} ({self}): {what}{tail}\n    at {told(here)}\n"
                f"  after: {before}\n    at {told(before_at)}"
            )

    def name_of(self, buffer: Buffer, index: int | None = None) -> str:
        """What the kernel calls a buffer: found among the variables of its roles."""
        found = None
        for role in self.roles:
            for variables in role.variables:
                for name, value in variables.items():
                    for text, part in _parts(name, value):
                        if getattr(part, "buffer", None) is buffer and part.data.storage_offset() == 0:
                            rank = part.data.ndim, text != name  # of a record, a field tells more than a parameter
                            if found is None or rank > found[1]:
                                found = (text, rank)
        text = found[0] if found else buffer.name
        return text if index is None else f"{text}[{index}]"


def _parts(name: str, value: object) -> Iterator[tuple[str, object]]:
    """(name, value) of a variable, or of each field of a record, also inside another."""
    if hasattr(value, "_asdict"):
        for field, part in value._asdict().items():
            yield from _parts(f"{name}.{field}", part)
    else:
        yield name, value
