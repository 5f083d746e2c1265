"""Runs steps once each on the GPU, in the order in which they are named, for a profiler or a sanitizer to watch.

``python -m steps.once gluon '{"batch": 1, "heads": 2, "seq_len_q": 100, "seq_len_kv": 150, "head_dim": 128}'``; steps
that do not take the problem are passed over. A version of a trial has the trial's name and its value: ``lazy_4``. A
third argument, ``backward``, says of which pass peers are meant; their forward pass runs before.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from tutorial_lib.command import BadRequest, as_command, parser_of


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


def run(steps: str, problem, direction: str) -> int:
    """Run each of the steps once and say so; raises BadRequest without a GPU, and ValueError for an unknown name."""
    import torch

    from steps.core.step import target_of
    from tutorial_lib.hardware import has_gpu
    from tutorial_lib.passes import pass_of

    if not has_gpu():
        raise BadRequest("this needs a GPU")
    for step in named(steps, problem, direction):
        if reason := step.unsupported(problem, target_of(torch.device("cuda", torch.cuda.current_device()))):
            print(f"{step.label}: skipped, {reason}")
            continue
        inputs = pass_of(step).inputs(problem, 0, "cuda")
        pass_of(step).call(step, problem, inputs)
        torch.cuda.synchronize()
        print(f"{step.label}: ran")
    return 0


def problem_of(text: str):
    """The Problem whose fields are written as JSON."""
    from dataclasses import MISSING, fields

    from tutorial_lib.problem import Problem

    try:
        given = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not a problem in JSON: {text}: {error}") from None
    if not isinstance(given, dict):
        raise argparse.ArgumentTypeError(f"must hold the fields of a Problem, got {text}")
    known = {field.name: field.default is MISSING for field in fields(Problem)}  # whether it must be given
    if others := [name for name in given if name not in known]:
        raise argparse.ArgumentTypeError(f"a Problem has no field {', '.join(others)}: {text}")
    if lacking := [name for name, must in known.items() if must and name not in given]:
        raise argparse.ArgumentTypeError(f"has no {', '.join(lacking)}, which a Problem must have: {text}")
    try:
        return Problem(**given)
    except (TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{error}: {text}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    from tutorial_lib.passes import PASSES

    parser = parser_of("steps.once", __doc__)
    parser.add_argument("steps", metavar="STEPS", help="such as exp2,hopper,lazy_4")
    parser.add_argument("problem", metavar="PROBLEM", type=problem_of, help="the fields of a Problem, as JSON")
    parser.add_argument("direction", nargs="?", choices=list(PASSES), default="forward", help="the pass of peers")

    def work() -> int:
        options = parser.parse_args(arguments)
        return run(options.steps, options.problem, options.direction)

    return as_command("steps.once", work, interrupted="Interrupted.", wrong=(ValueError,))


if __name__ == "__main__":
    sys.exit(main())
