"""On a GPU: programs that steps.export writes are right when they are started, and nearly as fast as their steps."""

import re
import subprocess
import sys
from dataclasses import replace

import pytest
from triton.testing import do_bench

from steps import Unsupported
from steps.core.fused import FusedStep
from steps.core.ladder import whole_ladder
from steps.exporting.standalone import standalone
from tutorial_lib.hardware import architecture_of
from tutorial_lib.passes import pass_of

pytestmark = pytest.mark.gpu

# Of the program's time to the step's. A step launches through the driver, has its PTX rewritten, and may have two
# blocks share what TMA brings; at short lengths the clock is not exact either. A lost hint, or a wrong number of warps
# or blocks, costs more.
MOST = 1.35
STEPS = [step for step in whole_ladder() if isinstance(step, FusedStep) and step.number is not None]


def problems(step):
    """The problem that a step is for, at length 1024, and with another head_dim."""
    usual = step.default_problem
    if usual.lengths is not None:  # which no program takes
        usual = replace(usual, batch=4, lengths=None, lengths_kv=None)
    few = usual.seq_len_q < 1024  # decoding: it is the keys that are many
    shape = {"seq_len_kv": 8192} if few else {"seq_len_q": 1024, "seq_len_kv": 1024}
    shape |= {"window": 256} if usual.window else {}
    first = replace(usual, **shape)
    return [first, replace(first, head_dim=128 if first.head_dim == 64 else 64)]


@pytest.mark.parametrize("which", [0, 1], ids=["own_head_dim", "other_head_dim"])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_a_program_is_right_and_as_fast_as_its_step(step, which, tmp_path):
    problem, arch = problems(step)[which], architecture_of(0)
    if arch != step.made_for and step.unsupported(problem, arch):
        pytest.skip(f"made for {step.made_for}")
    path = tmp_path / "fmha.py"
    try:
        path.write_text(standalone(step, problem, arch), encoding="utf-8")
    except Unsupported as error:
        pytest.skip(str(error))
    done = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    outputs = 3 if step.direction == "backward" else 1
    assert len(re.findall(r"^\w+: \w+ right, error ", done.stdout, re.MULTILINE)) == outputs
    theirs = float(re.search(r"^\w+: ([\d.]+) ms, ", done.stdout, re.MULTILINE)[1])
    ours = milliseconds(step, problem)
    print(f"{step.name}: the program takes {theirs:.4f} ms, the step {ours:.4f} ms: {theirs / ours:.3f}")
    assert theirs < MOST * ours, f"the program takes {theirs / ours:.2f} times as long as the step"


def milliseconds(step, problem) -> float:
    """Of a call of a step, timed as a program times itself."""
    way = pass_of(step)
    inputs = way.inputs(problem, 0, "cuda")
    return do_bench(lambda: way.call(step, problem, inputs), return_mode="median")
