"""The commands that measure a machine, and when a kernel's roles wait: without a GPU, and what they recorded."""

import itertools
import json

import pytest

from steps import physics, trace
from tests.results.recorded import tracked
from tutorial_lib.files import RESULTS
from tutorial_lib.results import recorded_physics, recorded_traces

TRACED = ["producer", "ping_pong", "overlap", "linked", "at_maxima"]


def test_what_is_recorded_of_the_machine_is_shown_without_a_gpu(capsys):
    assert physics.main([]) == 0
    out = capsys.readouterr().out
    assert "There is no GPU here. Recorded:" in out and "mma.sync" in out and "zeros" in out


def test_without_a_gpu_and_a_record_one_line_says_so(tmp_path, capsys):
    assert physics.main(["--output-dir", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"steps.physics: this needs a GPU, and nothing is recorded under {tmp_path}\n"
    assert trace.main(["linked", "--output-dir", str(tmp_path)]) == 2
    assert "no trace of step 35 linked at B=4 H=32 S=4096 D=128 fp16 causal is recorded" in capsys.readouterr().err
    (tmp_path / "machine").mkdir()
    (tmp_path / "machine" / "physics.json").write_text("{}")
    assert physics.main(["--output-dir", str(tmp_path)]) == 2


@pytest.mark.parametrize("name", TRACED)
def test_a_recorded_trace_is_shown_and_drawn_without_a_gpu(name, tmp_path, capsys):
    assert trace.main([name, "--figure", str(tmp_path / "trace.png")]) == 0
    out = capsys.readouterr().out
    assert "softmax" in out and "times as long" in out
    assert (tmp_path / "trace.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["mma"], "step 2 mma: traced are Gluon's kernels, whose waits are their own"),
        (["nobody"], "nobody"),
        (["linked", "--head-dim", "-1"], "must be a whole number of at least 1"),
        (["linked", "--figure", "/nowhere/trace.png"], "argument --figure: cannot write to /nowhere"),
    ],
)
def test_a_bad_request_is_one_line(arguments, told, capsys, monkeypatch):
    if "/nowhere/trace.png" in arguments:
        monkeypatch.setattr(trace, "check_writable", refuse)
    assert trace.main(arguments) == 2
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1


def refuse(option, folder):
    from tutorial_lib.command import BadRequest

    raise BadRequest(f"argument {option}: cannot write to {folder}: Read-only file system")


def test_records_say_of_which_machine_and_hold_what_they_claim():
    assert {t.step for t in recorded_traces(RESULTS)} == set(TRACED)
    for path in tracked("results/*/*/trace_*.json"):
        data = json.loads(path.read_bytes())
        assert data["machine"]["slug"] == path.parent.parent.name and path.stem == f"trace_{data['step']}"
    for found in recorded_traces(RESULTS):
        assert found.slowed.median > 1 and found.blocks == found.machine["multiprocessors"]
        for role, its in found.shares.items():
            assert sum(its.values()) == pytest.approx(1), role
        for role in found.shares:
            events = [event for event in found.events if event[0] == role]
            assert all(begin <= end for *_, begin, end in events)
            assert all(before[4] <= after[3] for before, after in itertools.pairwise(events))
    [machine] = recorded_physics(RESULTS)
    loads = {(load.name, load.inputs): load for load in machine.loads}
    assert len(loads) == 6 and all(load.sustained.clock_ghz < load.rested_ghz for load in loads.values())
