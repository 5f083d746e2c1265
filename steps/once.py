"""Runs one step once on the GPU, for a profiler to watch: ``python -m steps.once exp2 '{"batch": 4, ...}'``."""

from __future__ import annotations

import json
import sys


def command(step_name: str, problem) -> list[str]:
    """The command line that runs this step once."""
    return [sys.executable, "-m", "steps.once", step_name, json.dumps(problem.as_dict())]


def main() -> None:
    import torch

    from steps import get_step
    from tutorial_lib.problem import Problem

    problem = Problem(**json.loads(sys.argv[2]))
    inputs = problem.inputs(0, "cuda")
    get_step(sys.argv[1]).attention(*inputs, problem.causal, problem.scale)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
