"""What compute-sanitizer's racecheck takes for a race and is none: why ``steps.races`` sets some reads aside."""

import inspect
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from steps import races

ITERATIONS = 8
LAYOUT = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])


@gluon.jit
def places(layout: gl.constexpr):
    rows = gl.arange(0, 64, gl.SliceLayout(1, layout))
    return rows[:, None] * 64 + gl.arange(0, 64, gl.SliceLayout(0, layout))[None, :]


@gluon.jit
def give(X, slot, full, empty, layout: gl.constexpr, iterations):
    for iteration in range(iterations):
        x = gl.load(X + places(layout)) + iteration
        mbarrier.wait(empty, iteration & 1 ^ 1)
        slot.store(x)
        mbarrier.arrive(full, count=1)


@gluon.jit
def take(Y, slot, full, empty, layout: gl.constexpr, iterations):
    total = gl.zeros([64, 64], gl.float32, layout)
    for iteration in range(iterations):
        mbarrier.wait(full, iteration & 1)
        total += slot.load(layout)
        mbarrier.arrive(empty, count=1)
    gl.store(Y + places(layout), total)


@gluon.jit
def handover(X, Y, iterations, layout: gl.constexpr):
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    slot = gl.allocate_shared_memory(gl.float32, [64, 64], shared)
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    mbarrier.init(empty, count=1)
    gl.warp_specialize(
        [
            (give, (X, slot, full, empty, layout, iterations)),
            (take, (Y, slot, full, empty, layout, iterations)),
        ],
        [4],
        [128],
    )


def main() -> None:
    x, y = torch.randn(64, 64, device="cuda"), torch.zeros(64, 64, device="cuda")
    handover[(1,)](x, y, ITERATIONS, LAYOUT, num_warps=4)
    print("right" if torch.allclose(y, ITERATIONS * x + sum(range(ITERATIONS)), atol=1e-4) else "wrong")


@pytest.mark.gpu
@pytest.mark.skipif(not shutil.which("compute-sanitizer"), reason="compute-sanitizer is not installed")
def test_racecheck_does_not_follow_a_handover():
    """The least kernel in which one warpgroup hands something to another by an mbarrier, and it is right."""
    root = Path(__file__).resolve().parent.parent.parent
    command = [
        "compute-sanitizer",
        *races.OPTIONS,
        sys.executable,
        "-c",
        "from tests.gpu.test_races import main; main()",
    ]
    done = subprocess.run(command, cwd=root, capture_output=True, encoding="utf-8")
    lines, first = inspect.getsourcelines(take.fn)
    load = first + next(n for n, line in enumerate(lines) if "slot.load(" in line)
    reported = [match["second"] for match in races.HAZARD.finditer(done.stdout)]
    assert "right" in done.stdout and any(
        read.startswith("Read") and read.endswith(f"test_races.py:{load}") for read in reported
    ), done.stdout + done.stderr
