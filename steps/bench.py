"""The worker's side of a measurement: holds a problem's inputs and runs steps on them.

Lives in a process of its own (see ``tutorial_lib.worker``), because a kernel may crash, hang, or poison the GPU.
"""

from __future__ import annotations

from dataclasses import asdict

from steps.step import Step, target_of
from tutorial_lib import accuracy, reference, timing
from tutorial_lib.hardware import available_bytes, gpu_turn
from tutorial_lib.problem import Problem


class Bench:
    """One problem on one device ("cuda" or "cpu")."""

    def __init__(self, problem: Problem, device: str, seed: int, check: bool):
        import torch

        self.problem, self.device, self.seed = problem, torch.device(device), seed
        self.plans: dict[str, timing.Plan] = {}
        self.calls: dict[str, object] = {}
        with gpu_turn(device):
            self.inputs = problem.inputs(seed, device)
            if check:
                exact = reference.attention_float64(*self.inputs, problem.causal, problem.scale)
                self.exact = exact
                self.sdpa_error = reference.sdpa_error(self.inputs, exact, problem.causal, problem.scale)

    @staticmethod
    def least_bytes(problem: Problem, check: bool) -> int:
        """Memory that the problem needs before any step runs: q, k, v, two outputs, and the float64 reference."""
        rows = problem.batch * problem.heads * problem.seq_len_q * problem.head_dim
        return problem.tensor_bytes + 2 * rows + (8 * rows + 2 * reference.SCORE_BYTES if check else 0)

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
        """Run the step once into a poisoned output and compare."""
        problem = self.problem
        with gpu_turn(self.device.type):
            return accuracy.measure_accuracy(
                step.attention, self.inputs, self.exact, self.sdpa_error, problem.causal, problem.scale
            )

    def not_compiled(self, steps: list[Step], arch: str) -> list[str]:
        """Names of the steps whose kernels are not on disk yet."""
        from tutorial_lib.compiler import NotOnDisk, from_disk_only

        names = []
        with from_disk_only():
            for step in steps:
                try:
                    step.compile(self.problem, arch)
                except NotOnDisk:
                    names.append(step.name)
                except Exception:  # told when it is compiled
                    continue
        return names

    def compile(self, step: Step, arch: str) -> dict:
        """What the compiler makes of the step's kernel, as results.json holds it."""
        return step.compile(self.problem, arch).as_dict()

    def kernels(self, step: Step) -> list[str]:
        """Names of the GPU kernels that one call launches, the longest-running first."""
        import torch
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as recorded:  # else it warns of one cycle
            step.attention(*self.inputs, self.problem.causal, self.problem.scale)
            torch.cuda.synchronize()
        events = sorted(recorded.key_averages(), key=lambda event: -event.device_time_total)
        return [event.key for event in events if event.device_time_total > 0]

    def prepare(self, step: Step | None) -> None:
        """Warm ``step`` (None: the ceiling) up and plan its samples."""
        name = step.name if step else timing.CEILING
        with gpu_turn(self.device.type):
            self.calls[name] = self._call(step) if step else timing.ceiling_call(self.problem.dtype)
            self.plans[name] = timing.plan_sample(self.calls[name])

    def sample(self, name: str) -> dict:
        """One contender's turn in a round: milliseconds, and the GPU's state."""
        with gpu_turn(self.device.type):
            return asdict(timing.take_sample(self.calls[name], self.plans[name]))

    def _call(self, step: Step):
        import torch

        # Where everything fits in the L2 cache, several sets of inputs take turns, so that memory is read as it
        # would be in a model, whose layers do not find their inputs cached.
        cache = torch.cuda.get_device_properties(self.device).L2_cache_size
        sets = min(8, max(1, -(-2 * cache // self.problem.tensor_bytes)))
        inputs = [self.inputs] + [self.problem.inputs(self.seed + n, self.device) for n in range(1, sets)]
        causal, scale = self.problem.causal, self.problem.scale
        return lambda i: step.attention(*inputs[i % sets], causal, scale)
