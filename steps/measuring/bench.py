"""The worker's side of a measurement: holds a problem's inputs and runs steps on them.

Lives in a process of its own (see ``tutorial_lib.worker``), because a kernel may crash, hang, or poison the GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial

from steps.core.launch import untold
from steps.core.step import Step, target_of
from steps.measuring.ahead import compile_quietly
from tutorial_lib import accuracy, timing
from tutorial_lib.clock import Stopwatch
from tutorial_lib.hardware import available_bytes, gpu_turn
from tutorial_lib.passes import PASSES, Pass
from tutorial_lib.problem import Problem

SETS = 8  # of inputs that take turns, at most
COLD_SETS = 64  # where bytes decide how long it takes
REPETITIONS = 20  # of a call whose results are compared bit by bit


def input_sets(kind: Pass, problem: Problem, cache: int) -> int:
    """How many sets of inputs take turns on a GPU whose L2 cache has so many bytes.

    So many that memory is read as it would be in a model, whose layers do not find their inputs cached: together they
    are twice as large as the cache. A cache need not forget the oldest first, so a part of a set might still be there:
    where bytes decide, it is four times.
    """
    times = 4 if kind.by_bytes(problem) else 2
    return min(most_sets(kind, problem), max(1, -(-times * cache // kind.tensor_bytes(problem))))


def most_sets(kind: Pass, problem: Problem) -> int:
    """How many sets of inputs take turns at most."""
    return COLD_SETS if kind.by_bytes(problem) else SETS


def is_missing(compile_it: Callable[[], object]) -> bool:
    """Whether a kernel is not on disk yet, by the call that compiles it; not where that fails: it is told then."""
    from tutorial_lib.compiler import NotOnDisk, from_disk_only

    with from_disk_only():
        try:
            compile_it()
        except NotOnDisk:
            return True
        except Exception:
            return False
    return False


class Bench:
    """One problem, in one direction ("forward"), on one device ("cuda" or "cpu").

    threads: that PyTorch uses on the CPU, where several work side by side; None: as many as it likes.
    """

    def __init__(
        self, problem: Problem, direction: str, device: str, seed: int, check: bool, threads: int | None = None
    ):
        import torch

        if threads is not None:
            torch.set_num_threads(threads)
        self.problem, self.device, self.seed = problem, torch.device(device), seed
        self.kind = PASSES[direction]
        self.plans: dict[str, timing.Plan] = {}
        self.stopwatch: Stopwatch | None = None
        self.calls: dict[str, object] = {}
        self.resources: dict[tuple[str, str], dict] = {}  # of kernels that were compiled or found, by step and GPU
        with self.turn():
            self.inputs = self.kind.inputs(problem, seed, device)
            if check:
                self.exact = self.kind.reference(problem, self.inputs)
                self.allowed = self.kind.yardstick(problem, self.inputs, self.exact)

    def turn(self):
        """What is done inside is not disturbed by others on this machine who ask for the same."""
        return gpu_turn(self.device.type)

    def ready(self) -> None:
        """Answers once the inputs, and the reference if asked for, are made."""

    def missing(self, step: Step) -> str | None:
        """Why ``step`` cannot run this problem here, or None when it can."""
        if reason := step.unsupported(self.problem, target_of(self.device)):
            return reason
        needs = step.scratch_bytes(self.problem)
        if needs and needs > (free := available_bytes(self.device.type)):
            return f"needs {needs / 1e9:.1f} GB of scratch memory, {free / 1e9:.1f} GB are free"
        return None

    def check(self, step: Step) -> accuracy.Accuracy:
        """Run the step once into a poisoned output and compare.

        What is compiled is compiled before the turn: else cuTile's steps would do so when they are launched, in it.
        """
        if self.device.type == "cuda":
            compile_quietly(step, self.problem, target_of(self.device))
        with self.turn():
            outputs = self.kind.poisoned(self.inputs)
        self.kind.make_ready(step, self.problem, self.inputs, outputs)
        with self.turn():
            return self.kind.check(step, self.problem, self.inputs, self.exact, self.allowed, outputs)

    def told_by_cause(self) -> str:
        """What errors come from, in a sentence (``Pass.told_by_cause``)."""
        with self.turn():
            errors = self.kind.errors_by_cause(self.problem, self.seed, self.exact, self.allowed)
            return self.kind.told_by_cause(self.problem, errors)

    def repeat(self, step: Step) -> float:
        """The largest difference between ``REPETITIONS`` calls on the same inputs."""
        with self.turn(), untold(step):
            return self.kind.repeat_difference(step, self.problem, self.inputs, REPETITIONS)

    def not_compiled(self, steps: list[Step], arch: str) -> list[str]:
        """Names of the steps whose kernels are not on disk yet."""
        return [step.name for step in steps if is_missing(partial(self.compile, step, arch))]

    def compile(self, step: Step, arch: str) -> dict:
        """What the compiler makes of the step's kernel, as results.json holds it; asked for once."""
        if (step.name, arch) not in self.resources:
            self.resources[step.name, arch] = step.compile(self.problem, arch).as_dict()
        return self.resources[step.name, arch]

    def kernels(self, step: Step) -> list[str]:
        """Names of the GPU kernels that one call launches, the longest-running first."""
        import torch
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA], acc_events=True):  # the first takes seconds to begin
            pass
        with self.turn():
            self.kind.call(step, self.problem, self.inputs)  # what the first call alone does is not the step
            with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as recorded:  # else it warns of one cycle
                self.kind.call(step, self.problem, self.inputs)
                torch.cuda.synchronize()
        events = sorted(recorded.key_averages(), key=lambda event: -event.device_time_total)
        return [event.key for event in events if event.device_time_total > 0]

    def prepare(self, step: Step | None) -> None:
        """Warm ``step`` (None: the ceiling) up and plan its samples."""
        import torch

        name = step.name if step else timing.CEILING
        with self.turn(), untold(step):  # a line a launch would be timed with it
            self.calls[name] = self._call(step) if step else self._ceiling()
            for i in range(most_sets(self.kind, self.problem)):  # who makes something ready for a set does so untimed
                self.calls[name](i)
            self.plans[name] = timing.plan_sample(self.calls[name])
            if not torch.version.hip:  # it reads NVIDIA's counters
                self.stopwatch = self.stopwatch or Stopwatch()

    def sample(self, name: str, sustained: bool = False) -> dict:
        """One contender's turn in a round, as ``timing.Sample`` has it."""
        call, plan = self.calls[name], self.plans[name]
        with self.turn():
            if sustained:
                return asdict(timing.take_sustained_sample(call, plan.milliseconds, self.stopwatch))
            return asdict(timing.take_sample(call, plan, self.stopwatch))

    def _ceiling(self):
        return timing.copy_call() if self.kind.by_bytes(self.problem) else timing.ceiling_call(self.problem.dtype)

    def _call(self, step: Step):
        import torch

        sets = input_sets(self.kind, self.problem, torch.cuda.get_device_properties(self.device).L2_cache_size)
        inputs = [self.inputs] + [self.kind.inputs(self.problem, self.seed + n, self.device) for n in range(1, sets)]
        return lambda i: self.kind.call(step, self.problem, inputs[i % sets])
