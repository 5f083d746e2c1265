"""The steps over several GPUs, over NCCL: against float64, with the kernels that are chosen on them, and measured."""

import os
import subprocess
import sys

import pytest
import torch

from steps import PARALLEL
from steps.core.recorded import read_run
from tests.parallel.processes import Processes
from tests.parallel.test_steps import checked
from tests.selection import ROOT
from tutorial_lib.problem import Problem
from tutorial_lib.worker import WorkerFailure

GPUS = 2
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < GPUS, reason=f"needs {GPUS} GPUs"),
]


def problem(**changes) -> Problem:
    fields = {"batch": 1, "heads": 8, "seq_len_q": 4096, "seq_len_kv": 4096, "head_dim": 128, "dtype": "bfloat16"}
    return Problem(**fields | {"causal": True} | changes)


PROBLEMS = [
    problem(),
    problem(causal=False),
    problem(dtype="float16", kv_heads=2),
    problem(head_dim=64, seq_len_q=2008, seq_len_kv=2008),
]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    with Processes(tmp_path_factory.mktemp("group") / "meeting", GPUS, "cuda") as processes:
        yield processes


@pytest.mark.parametrize("step", PARALLEL, ids=lambda s: s.name)
def test_right_against_float64(ranks, step):
    for said in ranks.run(checked, step.name, PROBLEMS, None, False):
        assert not isinstance(said, WorkerFailure), said
        assert not [line for line in said if not line[1]], said


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_all_of_it_is_measured(direction, tmp_path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(GPUS)]
    asked = ["-m", "steps.run", "--parallel", "--seq-len", "8192", "--heads", "8", "--iterations", "2"]
    command = [*launch, *asked, "--direction", direction, "--output-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", env=os.environ)
    assert done.returncode == 0, done.stderr
    [path] = tmp_path.glob("*/*/results.json")
    run = read_run(path)
    assert run.ranks == GPUS and run.measurement("one_gpu").status == "measured"
    for m in run.steps:
        assert m.status == "measured" and m.correct and m.percent_of_ideal > 0, m
        assert m.exchange.sent_bytes > 0 and m.exchange.sending_ms.median > 0
    assert [m.status for m in run.peers if m.name == "context_parallel_allgather"] == ["measured"]
