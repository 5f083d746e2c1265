"""Copy engines: whatever order the streams of all ranks run in, nobody reads what is not there yet or not any more.

There is no GPU. Each rank runs the real rings with the real ``CopyEngines``, and every stream writes down what it is
asked to do. Then the streams of all ranks run, in random orders.
"""

import random
from contextlib import contextmanager
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from steps.parallel import copying, ring
from steps.parallel.copying import CopyEngines, Slot
from steps.parallel.shares import IN_ORDER

CALLS = 4


class Tensor:
    """What lies in it is a word, and for sums also who has added to them. A view is the tensor itself."""

    shape, dtype, is_cuda, device = (1, 1, 8, 16), torch.float16, True, "a GPU"

    def __init__(self, holds=None, added=frozenset()):
        self.holds, self.added = holds, added

    def contiguous(self):
        return self

    def __getitem__(self, _):
        return self

    def __setitem__(self, _, x):
        assert x is self

    def __iadd__(self, x):
        def run():
            assert self.holds in (None, x.holds), "added to the sums of another part"
            self.holds, self.added = x.holds, self.added | x.added

        Stream.now[-1].ask(run=run)
        return self

    def numel(self):
        return 128

    def element_size(self):
        return 2

    def record_stream(self, stream):
        pass

    def copy_(self, source, non_blocking):
        def run():
            self.holds, self.added = source.holds, source.added

        Stream.now[-1].ask(run=run)


class Stream:
    """A queue of (whether it can go on, what it does then)."""

    now: ClassVar[list["Stream"]] = []

    def __init__(self, device=None):
        self.asked, self.done = [], 0
        STREAMS.append(self)

    def ask(self, ready=lambda: True, run=lambda: None):
        self.asked.append((ready, run))

    def record_event(self):
        number = len(self.asked)
        return lambda: self.done >= number

    def wait_event(self, event):
        self.ask(ready=event)

    def wait_stream(self, other):
        self.ask(ready=other.record_event())


STREAMS: list[Stream] = []


class FakeEngines(CopyEngines):
    """Of a rank that nobody has told of the others."""

    def __init__(self, own: int, count: int, pools: dict):
        self.own, self.count, self.group, self.sent = own, count, None, 0
        self._made, self._streams, self._pools = {}, {}, pools

    def _check_reach(self):
        pass


@contextmanager
def inside(stream):
    Stream.now.append(stream)
    try:
        yield
    finally:
        Stream.now.pop()


@pytest.fixture
def machine(monkeypatch):
    """Ranks on fake GPUs: a function that makes so many, each with two streams that its kernels are in."""
    numbers: dict[object, int] = {}

    def slot(self, tensors, dtype):
        """As the real one, of fake tensors, whose number is that of the slot; see the test of the real one."""
        which = sum(map(len, self._made.values()))
        while (self.own, which) in self._pools and self._pools[self.own, which][1]:
            which += 1
        for rank in range(self.count):
            self._pools.setdefault((rank, which), [tuple(Tensor() for _ in tensors), False])
        self._pools[self.own, which][1] = True  # made here
        after, before = (self.own + 1) % self.count, (self.own - 1) % self.count
        mine, theirs = self._pools[self.own, which][0], self._pools[after, which][0]
        words = [(self.own, which, "filled"), (self.own, which, "empty")]
        return Slot(mine, theirs, *words, (after, which, "filled"), (before, which, "empty"), None)

    monkeypatch.setattr(FakeEngines, "_slot", slot, raising=False)
    monkeypatch.setattr(copying, "write", lambda stream, at, n: stream.ask(run=lambda: numbers.__setitem__(at, n)))
    monkeypatch.setattr(
        copying, "await_number", lambda stream, at, n: stream.ask(ready=lambda: numbers.get(at, 0) >= n)
    )
    monkeypatch.setattr(ring, "merge", lambda *_: None)
    monkeypatch.setattr(ring, "accumulator", lambda o, parts: o)
    monkeypatch.setattr(torch, "zeros_like", lambda x, dtype: Tensor())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream.now[-1])
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", inside)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)

    def ranks(count):
        STREAMS.clear()
        numbers.clear()
        pools = {}
        return [(FakeEngines(own, count, pools), (Stream(), Stream())) for own in range(count)]

    return ranks


def forward(rank, stream, own: tuple, call: int, wrong: list) -> None:
    iteration = iter(range(rank.count))

    def attention(q, k, v, causal):
        look(stream, (k, v), (call, (rank.own - next(iteration)) % rank.count), wrong)
        return Tensor(), Tensor()

    ring.Ring(IN_ORDER, ahead=True)(Tensor(), *own, False, rank, SimpleNamespace(attention=attention))


def backward(rank, stream, own: tuple, call: int, wrong: list) -> None:
    iteration = iter(range(1, rank.count + 1))

    def gradients(q, k, v, *_):
        part = call, (rank.own - next(iteration)) % rank.count
        look(stream, (k, v), part, wrong)
        return Tensor(), *(Tensor(part, frozenset([rank.own])) for _ in range(2))

    parts = SimpleNamespace(gradients=gradients)
    found = ring.RingGradients(IN_ORDER, ahead=True)(Tensor(), *own, Tensor(), Tensor(), Tensor(), False, rank, parts)
    everybody = frozenset(range(rank.count))

    def run():
        if any((x.holds, x.added) != ((call, rank.own), everybody) for x in found[1:]):
            wrong.append((rank.own, call, "sums", [(x.holds, x.added) for x in found[1:]]))

    stream.ask(run=run)


def look(stream, tensors: tuple, wanted, wrong: list) -> None:
    """When the stream comes to this: are these the tensors that a kernel should find?"""

    def run():
        if any(x.holds != wanted for x in tensors):
            wrong.append((wanted, [x.holds for x in tensors]))

    stream.ask(run=run)


def record(rank, streams, way, wrong: list) -> None:
    """Some calls of a ring on a rank, in two streams that know nothing of each other, each with keys of its own."""
    for call in range(CALLS):
        stream, own = streams[call % 2], (Tensor((call, rank.own)), Tensor((call, rank.own)))
        with inside(stream):
            way(rank, stream, own, call, wrong)
            for x in own:  # the caller needs them no longer
                x.copy_(Tensor("something else"), non_blocking=True)


def run_all(order: random.Random) -> None:
    """Let the streams run, whichever can; fails where none can and some are not done."""
    while unfinished := [s for s in STREAMS if s.done < len(s.asked)]:
        able = [s for s in unfinished if s.asked[s.done][0]()]
        assert able, "no stream can go on"
        stream = order.choice(able)
        stream.asked[stream.done][1]()
        stream.done += 1


@pytest.mark.parametrize("way", [forward, backward])
@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("seed", range(20))
def test_every_kernel_finds_its_part(machine, way, count, seed):
    wrong = []
    for rank, streams in machine(count):
        record(rank, streams, way, wrong)
    run_all(random.Random(seed))
    assert not wrong
    assert all(stream.done for stream in STREAMS)


def leave_out(monkeypatch, what: str) -> None:
    """Of ``what``: a function of streams, or the number that is neither written nor waited for."""
    if what in ("wait_stream", "wait_event"):
        monkeypatch.setattr(Stream, what, lambda *_: None)
        return
    for name in ("write", "await_number"):
        real = getattr(copying, name)
        monkeypatch.setattr(copying, name, lambda s, at, n, real=real: None if at[2] == what else real(s, at, n))


# In the backward pass the sums come back only when all have read what was sent, so the other two say nothing new.
LEFT_OUT = [(forward, what) for what in ("empty", "filled", "wait_stream", "wait_event")]
LEFT_OUT += [(backward, what) for what in ("filled", "wait_stream")]


@pytest.mark.parametrize(("way", "left_out"), LEFT_OUT)
def test_it_would_be_seen_if_somebody_did_not_wait(machine, monkeypatch, way, left_out):
    """Without any one kind of waiting a kernel finds what is not its part, in some order."""
    leave_out(monkeypatch, left_out)
    for seed in range(200):
        wrong = []
        for rank, streams in machine(2 + seed % 2):
            record(rank, streams, way, wrong)
        try:
            run_all(random.Random(seed))
        except AssertionError as error:
            assert "another part" in str(error)
            return
        if wrong:
            return
    pytest.fail(f"without {left_out} all went well")


@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_slot_is_the_next_ranks_slot_and_its_numbers(monkeypatch, count):
    """Of the real slots, in memory of the CPU: who writes where."""
    memory = {}

    def shared(self, size, device, ranks):
        for rank in range(count):
            memory.setdefault((rank, size), torch.zeros(size, dtype=torch.uint8))
        return {rank: memory[rank, size] for rank in ranks}, None

    monkeypatch.setattr(FakeEngines, "_shared", shared, raising=False)
    tensors = torch.empty(1, 2, 3, 5, dtype=torch.float16), torch.empty(1, 2, 3, 7, dtype=torch.float16)
    slots = [FakeEngines(own, count, {})._slot(tensors, torch.float32) for own in range(count)]
    for own, slot in enumerate(slots):
        after, before = slots[(own + 1) % count], slots[own - 1]
        assert [x.data_ptr() for x in slot.theirs] == [x.data_ptr() for x in after.mine]
        assert slot.their_filled == after.filled and slot.their_empty == before.empty
        assert [x.shape for x in slot.mine] == [x.shape for x in tensors]
        assert {x.dtype for x in slot.mine} == {torch.float32}
        spans = [(at, at + 4) for at in (slot.filled, slot.empty)]
        spans += [(x.data_ptr(), x.data_ptr() + 4 * x.numel()) for x in slot.mine]
        assert all(one[1] <= two[0] for one, two in zip(sorted(spans), sorted(spans)[1:]))
    assert len({slot.filled for slot in slots}) == count
