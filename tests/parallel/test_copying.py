"""Copy engines: whatever order the streams of all ranks run in, nobody reads what is not there yet or not any more.

There is no GPU. Each rank runs the real ring with the real ``CopyEngines``, and every stream writes down what it is
asked to do. Then the streams of all ranks run, in random orders.
"""

import random
from contextlib import contextmanager
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from steps.parallel import copying, ring
from steps.parallel.copying import CopyEngines, Place
from steps.parallel.shares import IN_ORDER

CALLS = 4


class Tensor:
    """What lies in it is a word. A view is the tensor itself."""

    shape, dtype, is_cuda, device = (1, 1, 8, 16), torch.float16, True, "a GPU"

    def __init__(self, holds=None):
        self.holds = holds

    def contiguous(self):
        return self

    def __getitem__(self, _):
        return self

    def numel(self):
        return 128

    def element_size(self):
        return 2

    def record_stream(self, stream):
        pass

    def copy_(self, source, non_blocking):
        def run():
            self.holds = source.holds

        Stream.now[-1].asked.append((lambda: True, run))


class Stream:
    """A queue of (whether it can go on, what it does then)."""

    now: ClassVar[list["Stream"]] = []

    def __init__(self, device=None):
        self.asked, self.done = [], 0
        STREAMS.append(self)

    def ask(self, ready=lambda: True, run=lambda: None):
        self.asked.append((ready, run))

    def record_event(self):
        place = len(self.asked)
        return lambda: self.done >= place

    def wait_event(self, event):
        self.ask(ready=event)

    def wait_stream(self, other):
        self.ask(ready=other.record_event())


STREAMS: list[Stream] = []


@pytest.fixture
def machine(monkeypatch):
    """Ranks on fake GPUs: a function that makes so many, each with a stream that its kernels are in."""
    numbers: dict[object, int] = {}
    pools: dict[tuple, list] = {}

    @contextmanager
    def inside(stream):
        Stream.now.append(stream)
        yield
        Stream.now.pop()

    def place(self, tensors, dtype):
        made = pools.setdefault(("made", self.own), [])
        which = len(made)
        made.append(None)
        mine, theirs = (
            pools.setdefault((rank, which), tuple(Tensor() for _ in tensors))
            for rank in (self.own, (self.own + 1) % self.count)
        )
        after, before = (self.own + 1) % self.count, (self.own - 1) % self.count
        words = [(self.own, which, "filled"), (self.own, which, "free")]
        return Place(mine, theirs, *words, (after, which, "filled"), (before, which, "free"), None)

    monkeypatch.setattr(CopyEngines, "_place", place)
    monkeypatch.setattr(CopyEngines, "__init__", lambda self, own, count: vars(self).update(own=own, count=count))
    monkeypatch.setattr(copying, "write", lambda stream, at, n: stream.ask(run=lambda: numbers.__setitem__(at, n)))
    monkeypatch.setattr(
        copying, "await_number", lambda stream, at, n: stream.ask(ready=lambda: numbers.get(at, 0) >= n)
    )
    monkeypatch.setattr(ring, "merge", lambda *_: None)
    monkeypatch.setattr(ring, "accumulator", lambda o, parts: o)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream.now[-1])
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", inside)

    def ranks(count):
        for what in (STREAMS, numbers, pools):
            what.clear()
        found = []
        for own in range(count):
            rank = CopyEngines(own, count)
            rank.sent, rank.group, rank._made, rank._stream = 0, None, {}, None
            found.append((rank, Stream(), inside))
        return found

    return ranks


def record(rank, stream, inside, wrong: list) -> None:
    """Some calls of the ring on a rank, each with keys of its own; what a kernel finds is compared when it runs."""
    for call in range(CALLS):
        own = Tensor((call, rank.own)), Tensor((call, rank.own))
        turn = iter(range(rank.count))

        def attention(q, k, v, causal, call=call, turn=turn):
            wanted = call, (rank.own - next(turn)) % rank.count

            def run():
                if (k.holds, v.holds) != (wanted, wanted):
                    wrong.append((rank.own, wanted, k.holds, v.holds))

            stream.ask(run=run)
            return Tensor(), Tensor()

        with inside(stream):
            ring.Ring(IN_ORDER, ahead=True)(Tensor(), *own, False, rank, SimpleNamespace(attention=attention))
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


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("seed", range(20))
def test_every_kernel_finds_its_part(machine, count, seed):
    wrong = []
    for rank in machine(count):
        record(*rank, wrong)
    run_all(random.Random(seed))
    assert not wrong
    assert all(stream.done for stream in STREAMS)


@pytest.mark.parametrize("left_out", ["write", "await_number", "wait_stream", "wait_event"])
def test_it_would_be_seen_if_somebody_did_not_wait(machine, monkeypatch, left_out):
    """Without any one kind of waiting a kernel finds what is not its part, or nobody can go on, in some order."""
    where = copying if left_out in ("write", "await_number") else Stream
    monkeypatch.setattr(where, left_out, lambda *_: None)
    for seed in range(50):
        wrong = []
        for rank in machine(2 + seed % 2):
            record(*rank, wrong)
        try:
            run_all(random.Random(seed))
        except AssertionError:
            return
        if wrong:
            return
    pytest.fail(f"without {left_out} all went well")
