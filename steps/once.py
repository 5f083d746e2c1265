"""Runs steps once each on the GPU, for a profiler or a sanitizer to watch.

``python -m steps.once 8-16 '{"batch": 1, "heads": 2, "seq_len_q": 100, "seq_len_kv": 150, "head_dim": 128}'``; steps
that do not take the problem are passed over.
"""

from __future__ import annotations

import json
import sys


def command(steps: str, problem) -> list[str]:
    """The command line that runs these steps, such as ``exp2,stay``, once each."""
    return [sys.executable, "-m", "steps.once", steps, json.dumps(problem.as_dict())]


def main() -> None:
    import torch

    from steps.run import select_steps
    from steps.step import target_of
    from tutorial_lib.problem import Problem

    problem = Problem(**json.loads(sys.argv[2]))
    inputs = problem.inputs(0, "cuda")
    for step in select_steps(sys.argv[1]):
        if reason := step.unsupported(problem, target_of(inputs[0].device)):
            print(f"{step.label}: skipped, {reason}")
            continue
        step.attention(*inputs, problem.causal, problem.scale)
        torch.cuda.synchronize()
        print(f"{step.label}: ran")


if __name__ == "__main__":
    main()
