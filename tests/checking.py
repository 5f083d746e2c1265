"""Whether a step is right: what it writes over NaN, for inputs that nobody chose, against float64."""

import secrets
from dataclasses import replace
from functools import cached_property, lru_cache

import pytest
import torch

from tutorial_lib.accuracy import Accuracy
from tutorial_lib.passes import PASSES
from tutorial_lib.problem import Problem
from tutorial_lib.reference import attention_and_lse_float64
from tutorial_lib.simulator.block import Deadlock, KernelError
from tutorial_lib.simulator.run import watched


class Asked:
    """Inputs of a problem, what is right, and which error is allowed; nobody may write there."""

    def __init__(self, direction: str, problem: Problem, device: str):
        self.kind, self.problem = PASSES[direction], problem
        self.inputs = self.kind.inputs(problem, secrets.randbits(32), device)
        self.exact = self.kind.reference(problem, self.inputs)
        self.allowed = self.kind.yardstick(problem, self.inputs, self.exact)

    @cached_property
    def lse(self) -> torch.Tensor:
        """Of the forward pass without further features: the log-sum-exp of every query in float64."""
        return attention_and_lse_float64(*self.inputs, self.problem.causal, self.problem.scale)[1]

    def check(self, step) -> Accuracy:
        return self.kind.check(step, self.problem, self.inputs, self.exact, self.allowed)


@lru_cache(maxsize=64)
def asked(direction: str, problem: Problem, device: str = "cpu") -> Asked:
    """Once for all steps."""
    return Asked(direction, problem, device)


def assert_right(step, problem: Problem, device: str = "cpu") -> None:
    """A step is right; on a GPU a problem that it does not take there is skipped."""
    if device == "cuda":
        skip_unless_taken(step, problem)
    accuracy = asked(step.direction, problem, device).check(step)
    assert accuracy.correct, accuracy.explain()


def skip_unless_taken(step, problem: Problem) -> None:
    from tutorial_lib.hardware import describe_machine

    if reason := step.unsupported(problem, describe_machine("cuda")["arch"]):
        pytest.skip(reason)


def faults(step, problem: Problem, seed: int | None = None, **how) -> str:
    """What the simulator finds wrong under the latencies of a seed, in words; nothing where all is well.

    Nothing is ready for the step before, and memory holds nothing of these inputs. how: as for
    ``watched``, such as how many blocks run at once.
    """
    try:
        with watched(seed, **how) as watch:
            accuracy = Asked(step.direction, problem, "cpu").check(replace(step))
    except (Deadlock, KernelError) as error:
        return str(error)
    found = [text for run in watch.runs for text in run.found.values()]
    return "\n".join(found) or ("" if accuracy.correct else accuracy.explain())
