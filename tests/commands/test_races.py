"""What racecheck reports of warps with roles: two kinds of reads are set aside, anything else is a race."""

import inspect
import stat
import sys
from pathlib import Path

import pytest

from steps import races
from steps.backward_hopper import apart, spare, together
from steps.backward_hopper.roles import consume_gradients
from steps.hopper.kernel import fmha


def defined(kernel) -> int:
    lines, first = inspect.getsourcelines(kernel.fn)
    return first + next(n for n, line in enumerate(lines) if line.startswith("def "))


KERNELS = fmha, together.fmha_backward, apart.fmha_backward, spare.fmha_backward
DEFINITION = defined(fmha)
REPORT = """========= COMPUTE-SANITIZER
========= Error: Potential RAW hazard detected at __shared__ 0x3056e in block (0,0,0) :
=========     Write Thread (63,0,0) at {kernel}+0x8d50 in {file}:{write}
=========     Read Thread (320,0,0) at {kernel}+0x110 in {file}:{read}
=========     Current Value : 1
=========
18 producer: ran
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


@pytest.mark.parametrize(
    "kernel",
    KERNELS,
    ids=lambda kernel: kernel.fn.__module__,
)
def test_reads_of_roles_are_set_aside_and_nothing_else_is(kernel):
    definition, name = defined(kernel), kernel.fn.__name__
    file = Path(inspect.getsourcefile(kernel.fn)).name
    assert races.hazards(REPORT.format(kernel=name, file=file, write=definition + 30, read=definition)) == ([], 1, 0)
    other = REPORT.format(
        kernel="another", file=file, write=definition + 30, read=definition
    )  # the same line of another file
    assert len(races.hazards(other)[0]) == 1
    found, *set_aside = races.hazards(REPORT.format(kernel=name, file=file, write=definition, read=definition + 30))
    assert set_aside == [0, 0] and len(found) == 1 and "0x3056e" in found[0] and "Read Thread (320,0,0)" in found[0]


def test_reads_of_a_handover_are_set_aside_and_no_others_of_its_function():
    lines, first = inspect.getsourcelines(consume_gradients.fn)
    load = first + next(n for n, line in enumerate(lines) if "= barriers.handover.weights.load(" in line)
    report = REPORT.replace("{file}:{read}", "roles.py:{read}").replace("{file}", "apart.py")
    assert races.hazards(report.format(kernel="fmha_backward", write=1, read=load)) == ([], 0, 1)
    for kernel, read in (("fmha_backward", load + 1), ("fmha", load)):
        found, *set_aside = races.hazards(report.format(kernel=kernel, write=1, read=read))
        assert len(found) == 1 and set_aside == [0, 0]


@pytest.fixture
def racecheck(tmp_path, monkeypatch):
    """``racecheck(report)``: the status of the command where compute-sanitizer says that."""

    def run(report: str) -> int:
        fake = tmp_path / "compute-sanitizer"
        fake.write_text(f"#!/bin/sh\ncat <<'END'\n{report}END\n", encoding="utf-8")
        fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        monkeypatch.setattr(sys, "argv", ["races", "18", "{}"])
        return races.main()

    return run


@pytest.mark.parametrize(("read", "status"), [(DEFINITION, 0), (DEFINITION + 9, 1)])
def test_the_exit_status_says_whether_there_is_a_race(racecheck, capsys, read, status):
    assert racecheck(REPORT.format(kernel="fmha", file="kernel.py", write=DEFINITION, read=read)) == status
    assert ("0 hazards, and 1 reads" in capsys.readouterr().out) == (status == 0)


def test_hazards_that_racecheck_counts_and_does_not_tell_of_are_not_passed_over(racecheck, capsys, monkeypatch):
    """Those that it keeps back at its limit, and those whose text this command cannot read."""
    report = REPORT.format(kernel="fmha", file="kernel.py", write=DEFINITION, read=DEFINITION)
    assert racecheck(report.replace("1 hazard displayed", "2 hazards displayed")) == 1
    assert "counts 2 hazards, but its output tells of 1" in capsys.readouterr().err
    monkeypatch.setattr(races, "LIMIT", 1)
    assert racecheck(report) == 1
    assert "no more than 1 hazards" in capsys.readouterr().err


def test_without_the_tool_one_line_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["races"])
    assert races.main() == 2
    assert "expected two arguments" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["races", "18", "{}"])
    assert races.main() == 2
    assert "compute-sanitizer, of the CUDA toolkit, cannot be run" in capsys.readouterr().err
