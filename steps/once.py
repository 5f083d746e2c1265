"""Runs steps once each on the GPU, in the order in which they are named, for a profiler or a sanitizer to watch.

``python -m steps.once gluon '{"batch": 1, "heads": 2, "seq_len_q": 100, "seq_len_kv": 150, "head_dim": 128}'``; steps
that do not take the problem are passed over. A version of a trial has the trial's name and its value: ``lazy_4``. A
third argument, ``backward``, says of which pass peers are meant; their forward pass runs before.
"""

from __future__ import annotations

import json
import sys


def named(text: str, problem, direction: str = "forward") -> list:
    """What ``exp2,hopper,lazy_4`` names: steps and parts as elsewhere, versions of trials, peers; raises ValueError."""
    from steps.core.ladder import select
    from steps.reference.peers import peers_of
    from steps.trials import all_trials

    found, peers = [], {peer.name: peer for peer in peers_of(direction)}
    for word in text.split(","):
        if word in peers:
            found.append(peers[word])
            continue
        trial = all_trials().get(word.rpartition("_")[0])
        versions = [step for step in trial.steps(problem) if step.name == word] if trial else []
        found += versions or select(word, direction=None)
    return found


def main() -> None:
    import torch

    from steps.core.step import target_of
    from tutorial_lib.passes import pass_of
    from tutorial_lib.problem import Problem

    problem = Problem(**json.loads(sys.argv[2]))
    for step in named(sys.argv[1], problem, *sys.argv[3:]):
        if reason := step.unsupported(problem, target_of(torch.device("cuda", torch.cuda.current_device()))):
            print(f"{step.label}: skipped, {reason}")
            continue
        inputs = pass_of(step).inputs(problem, 0, "cuda")
        pass_of(step).call(step, problem, inputs)
        torch.cuda.synchronize()
        print(f"{step.label}: ran")


if __name__ == "__main__":
    main()
