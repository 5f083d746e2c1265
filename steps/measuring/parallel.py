"""Measuring on several ranks at once: every rank goes through the same measurement, and all get the same answers.

Each is a process that torchrun has started, with a GPU of its own, or without any. Every rank holds the whole problem:
its part of the inputs goes to the steps over several ranks, and all of it to the step on one GPU that they are compared
with. What a step sends is also timed alone, and so is the same call that sends nothing: the two tell how much of the
sending costs time.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import cache, partial
from threading import Thread

from steps.core.launch import untold
from steps.core.step import Step, target_of
from steps.measuring.bench import REPETITIONS, Bench
from steps.measuring.together import LOCAL_RANK
from steps.parallel.ranks import Failed, Passing, Ranks, buffers_like
from tutorial_lib import accuracy, timing
from tutorial_lib.clock import Stopwatch
from tutorial_lib.hardware import gpu_turn
from tutorial_lib.problem import Problem
from tutorial_lib.worker import Ended, one_line


def one_gpu(problem: Problem, device: str, direction: str) -> Step:
    """The step that computes the parts, on one GPU alone with the whole sequence: what speedups are over."""
    from steps.core.attention import training  # it loads torch.compile, which takes longer than PyTorch

    step = getattr(training(problem, device), direction)
    return dataclasses.replace(
        step, name="one_gpu", title=f"one GPU alone, by step {step.name}", number=None, previous=None, fork=False
    )


class Silent(Ranks):
    """Ranks that send nothing: everybody's tensors are this rank's own."""

    def start_passing(self, tensors, into):
        return Passing(self, (), tensors)

    def all_gather(self, x):
        return [x] * self.count

    def exchange(self, pieces):
        return pieces


class Remembering:
    """Added to ``Ranks``, these remember what they sent. calls: functions that send as much again, in the same order.

    Each waits for its own exchange, so that they go one after another, also where a step has two on their way at once.
    They do not give way to each other as a step does: nothing is computed meanwhile.
    """

    def __init__(self, group=None):
        super().__init__(group)
        self.calls: list[Callable] = []
        self._buffers: dict[tuple, tuple] = {}

    def start_passing(self, tensors, into):
        buffers = self._kept("passing", tensors), self._kept("coming", tensors, partial(self.buffers, count=1))
        self.calls.append(lambda: self.pass_on(*buffers).wait())
        return super().start_passing(tensors, into)

    def all_gather(self, x):
        [buffer] = self._kept("gathered", (x,))
        self.calls.append(lambda: super(Remembering, self).all_gather(buffer))
        return super().all_gather(x)

    def exchange(self, pieces):
        [buffer] = self._kept("exchanged", (pieces,))
        self.calls.append(lambda: super(Remembering, self).exchange(buffer))
        return super().exchange(pieces)

    def _kept(self, what: str, tensors, make: Callable = lambda tensors: [buffers_like(tensors)]) -> tuple:
        """Tensors of these shapes, the same for every call that sends such."""
        key = what, tuple((x.shape, x.dtype) for x in tensors)
        if key not in self._buffers:
            [self._buffers[key]] = make(tensors)
        return self._buffers[key]


@cache
def remembering(kind: type[Ranks]) -> type[Ranks]:
    """Ranks that send as ``kind`` does, and remember it."""
    return type(f"Remembering{kind.__name__}", (Remembering, kind), {})


class ParallelBench(Bench):
    """As ``Bench``, on every rank at once. Its methods give the same answers on all.

    Raises Failed on all ranks for what goes wrong on one of them: they can go on with another step. Raises RankFailure
    where another rank ended or did not answer in time.
    """

    def __init__(self, problem: Problem, direction: str, device: str, seed: int, check: bool):
        self.ranks = Ranks()
        self._together(super().__init__, problem, direction, device, seed, check)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """As ``Bench.turn``: a rank of every host waits for its GPUs, and the others for that rank.

        It may take longer than a call between ranks may: so all of them ask again and again whether it has its turn.
        """
        first = int(os.environ.get(LOCAL_RANK, self.ranks.own)) == 0  # of this host
        with ExitStack() as held:
            waiting = _begun(held.enter_context, gpu_turn(self.device.type)) if first else None
            there = False
            while not there:
                if waiting:
                    wait([waiting], timeout=ASK_AGAIN_S)
                there = all(self.ranks.everybody(waiting is None or waiting.done(), _failure(waiting)))
            yield

    def missing(self, step):
        return next((reason for reason in self._together(self._missing, step) if reason), None)

    def _missing(self, step) -> str | None:
        if not step.several:
            return super().missing(step)
        problem, count = self.problem, self.ranks.count
        for tokens in (problem.seq_len_q, problem.seq_len_kv):
            if uneven := step.share.uneven(tokens, count):
                return uneven
        part = dataclasses.replace(
            problem, seq_len_q=problem.seq_len_q // count, seq_len_kv=problem.seq_len_kv // count
        )
        return step.unsupported(part, target_of(self.device))

    def check(self, step):
        """Every rank compares its part of the outputs; of all, the one that is wrong or nearest to its limit."""
        with self.turn():
            return accuracy.worst(self._together(self._checked, step))

    def _checked(self, step) -> accuracy.Accuracy:
        inputs, exact = self._mine(step, self.inputs), self._mine(step, self.exact)
        return self.kind.check(step, self.problem, inputs, exact, self.allowed)

    def repeat(self, step):
        with self.turn(), untold(step):
            return max(self._together(self._repeated, step))

    def _repeated(self, step) -> float:
        return self.kind.repeat_difference(step, self.problem, self._mine(step, self.inputs), REPETITIONS)

    def compile(self, step, arch):
        return self._together(super().compile, step, arch)[0]

    def sent(self, step) -> int:
        """Bytes that a rank sends in a call, of the rank that sends most."""
        return max(self._together(self._sent, step))

    def _sent(self, step) -> int:
        return self._remembered(step).sent

    def _remembered(self, step) -> Remembering:
        """What a call of a step sends."""
        made = []

        def ranks(group) -> Ranks:
            made.append(remembering(step.ranks)(group))
            return made[-1]

        self.kind.call(
            step.on(step.group, kernel=step.kernel, ranks=ranks), self.problem, self._mine(step, self.inputs)
        )
        [found] = made
        return found

    def prepare(self, step):
        with self.turn(), untold(step):
            self._together(self._prepare, step)

    def _prepare(self, step: Step | None) -> None:
        import torch

        if not torch.version.hip:
            self.stopwatch = self.stopwatch or Stopwatch()
        if step is None:
            return self._plan(timing.CEILING, self._ceiling())
        inputs = self._mine(step, self.inputs)
        self._plan(step.name, lambda i: self.kind.call(step, self.problem, inputs))
        if hasattr(step, "ranks"):
            silent = step.on(step.group, kernel=step.kernel, ranks=Silent)
            self._plan((step.name, "computing"), lambda i: self.kind.call(silent, self.problem, inputs))
            again = self._remembered(step).calls
            self._plan((step.name, "sending"), lambda i: [call() for call in again])

    def _plan(self, name, call: Callable) -> None:
        self.calls[name] = call
        self.plans[name] = self.ranks.everybody(timing.plan_sample(call))[0]  # all take as many launches

    def sample(self, name, sustained=False):
        """The slowest rank's sample, and of the parts of a step the slowest of each."""
        with self.turn():
            found = self._together(self._sampled, name)
        slowest = max(found, key=lambda sample: sample["milliseconds"])
        return slowest | {part: max(sample[part] for sample in found) for part in slowest if part in PARTS}

    def _sampled(self, name) -> dict:
        import torch
        import torch.distributed as dist

        begin = partial(dist.all_reduce, torch.zeros(1, device=self.device))
        together = timing.Together(begin, agree=lambda true: all(self.ranks.everybody(true)))

        def take(name) -> timing.Sample:
            return timing.take_sample(self.calls[name], self.plans[name], self.stopwatch, together)

        sample = asdict(take(name))
        for part, key in PARTS.items():
            if (name, key) in self.calls:
                sample[part] = take((name, key)).milliseconds
        return sample

    def _mine(self, step, tensors: tuple) -> tuple:
        """What a step is given here, of tensors of the whole sequence."""
        if not step.several:
            return tensors
        return tuple(step.part(x, self.ranks.own, self.ranks.count) for x in tensors)

    def _together(self, work: Callable, *arguments) -> list:
        """What ``work`` gives on every rank; raises Failed on all where it raises on one.

        ``work`` may itself ask ``everybody``. Who fails meanwhile says so in the exchange that the others are in: they
        raise Failed there, and no rank has said a word more than another.
        """
        try:
            answer, failure = work(*arguments), None
        except (Ended, Failed):  # nobody would answer; or everybody has heard
            raise
        except Exception as error:
            answer, failure = None, f"{one_line(error)} (on {self.ranks.name})"
        return self.ranks.everybody(answer, failure)


def _begun(work: Callable, *arguments) -> Future:
    """What ``work`` will give, which goes on in a thread that no ending process waits for."""
    future = Future()

    def run() -> None:
        try:
            future.set_result(work(*arguments))
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future


def _failure(work: Future | None) -> str | None:
    """In one line what ended it; None where nothing did, or where it goes on."""
    error = work.exception() if work and work.done() else None
    return error and one_line(error)


ASK_AGAIN_S = 1.0  # far less than any --timeout
PARTS = {"computing_ms": "computing", "sending_ms": "sending"}
