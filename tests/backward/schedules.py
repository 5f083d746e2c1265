"""What comes of a backward step under random latencies, on the simulator."""

import secrets
from dataclasses import replace

from steps import get_step
from tutorial_lib.passes import BACKWARD
from tutorial_lib.problem import Problem
from tutorial_lib.simulator.run import watched


def right(name: str, shape: Problem, seed: int | None = None) -> bool:
    """Whether a step's gradients are right and the simulator finds no mistake, eight blocks at once."""
    inputs = BACKWARD.inputs(shape, secrets.randbits(32))
    exact = BACKWARD.reference(shape, inputs)
    with watched(seed, at_once=8) as watch:
        accuracy = BACKWARD.check(
            replace(get_step(name)), shape, inputs, exact, BACKWARD.yardstick(shape, inputs, exact)
        )
    return accuracy.correct and not any(run.found for run in watch.runs)
