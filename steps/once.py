"""Runs steps once each on the GPU, for a profiler or a sanitizer to watch.

``python -m steps.once gluon '{"batch": 1, "heads": 2, "seq_len_q": 100, "seq_len_kv": 150, "head_dim": 128}'``; steps
that do not take the problem are passed over.
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    import torch

    from steps.core.ladder import select
    from steps.core.step import target_of
    from tutorial_lib.passes import pass_of
    from tutorial_lib.problem import Problem

    problem = Problem(**json.loads(sys.argv[2]))
    for step in select(sys.argv[1], direction=None):
        inputs = pass_of(step).inputs(problem, 0, "cuda")
        if reason := step.unsupported(problem, target_of(inputs[0].device)):
            print(f"{step.label}: skipped, {reason}")
            continue
        pass_of(step).call(step, problem, inputs)
        torch.cuda.synchronize()
        print(f"{step.label}: ran")


if __name__ == "__main__":
    main()
