"""What ``steps.run`` does before several processes measure together: they meet, and agree on what is asked for.

torchrun starts the processes, and tells each of them by its environment how many there are and which it is.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from steps.core.ladder import PARALLEL, select
from steps.parallel.peers import peers_over_ranks
from steps.parallel.ranks import RankFailure, Ranks
from tutorial_lib.command import BadRequest
from tutorial_lib.worker import one_line

LOCAL_RANK = "LOCAL_RANK"  # torchrun's, in the environment: which of this host's processes this is


@contextmanager
def joined(device: str, timeout: float) -> Iterator[Ranks]:
    """Inside, the processes that torchrun has started form a group; calls between them end after so many seconds.

    Raises BadRequest where this process has no GPU of its own.
    """
    import torch
    import torch.distributed as dist

    if device == "cuda":
        local, there = int(os.environ[LOCAL_RANK]), torch.cuda.device_count()
        if local >= there:
            raise BadRequest(f"a process takes a GPU of its own, and {there} are here: --nproc-per-node {there}")
        torch.cuda.set_device(local)
        os.environ.setdefault("TORCH_NCCL_HIGH_PRIORITY", "1")  # its few blocks go before a kernel's many
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    except RuntimeError as error:
        raise RankFailure(f"the processes did not find each other within {timeout:g} s: {one_line(error)}") from error
    ranks = Ranks()

    def ended(*_):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise RankFailure(f"{ranks.name} stops, because torchrun ended it, as it does when another rank has failed")

    signal.signal(signal.SIGTERM, ended)
    lost = False
    try:
        yield ranks
    except RankFailure:
        lost = True  # nobody would answer
        raise
    finally:
        if not lost:
            dist.destroy_process_group()


def on_all(ranks: Ranks, prepare: Callable):
    """``prepare()``; raises BadRequest on every rank where it does so on one."""
    made = wrong = None
    try:
        made = prepare()
    except BadRequest as error:
        wrong = str(error)
    if said := next(filter(None, ranks.everybody(wrong)), None):
        raise BadRequest(said)
    return made


def steps_over_ranks(text: str, direction: str) -> list:
    """The steps over several ranks that a text such as ``ring,zigzag`` names; raises BadRequest.

    The name of a step of the forward pass stands for its gradients where those are asked for.
    """
    try:
        asked = select(text, None)
    except ValueError as error:
        raise BadRequest(f"argument --parallel: {error}") from None
    known = [step for step in PARALLEL if step.direction == direction]
    if others := [step.label for step in asked if not step.several]:
        names = ", ".join(step.asked_as for step in known)
        raise BadRequest(f"argument --parallel: step {others[0]} computes on one GPU; over several compute {names}")
    names = {step.asked_as for step in asked}
    return [step for step in known if step.asked_as in names]


def peers_for(device: str, direction: str) -> tuple:
    """Whom the steps are measured beside unless others are asked for: on a GPU PyTorch's own."""
    return peers_over_ranks(direction) if device == "cuda" else ()


def check_shared_out(problems: Sequence, steps: Sequence, ranks: int, options: argparse.Namespace) -> None:
    """Raises BadRequest for a sequence that a step cannot share out over so many ranks; names who set its length."""
    queries = "--seq-len-q" if options.seq_len_q else "--seq-len"
    keys = "--seq-len-kv" if options.seq_len_kv else "--seq-len"
    for problem, step in itertools.product(problems, steps):
        for option, tokens in ((queries, problem.seq_len_q), (keys, problem.seq_len_kv)):
            if uneven := step.share.uneven(tokens, ranks):
                raise BadRequest(f"argument {option}: step {step.label}: {uneven}")
