"""The commands that measure a machine, and when a kernel's roles wait: without a GPU, and what they recorded."""

import itertools
import json
import re
from contextlib import nullcontext

import pytest

from steps import get_step, physics, summary, trace
from steps.core.problems import HEADLINE
from steps.core.recorded import recorded_runs
from tests.results.recorded import tracked
from tutorial_lib import rates, timing
from tutorial_lib.clock import Clock
from tutorial_lib.command import BadRequest
from tutorial_lib.files import RESULTS
from tutorial_lib.records import recorded_physics, recorded_traces
from tutorial_lib.results import of_one_machine

TRACED = [
    "producer",
    "ping_pong",
    "intra_warpgroup_overlap",
    "epilogue_overlap",
    "pv_wait_after_max",
    "kv_multicast",
    "next_softmax_first",
]


def test_what_is_recorded_of_the_machine_is_shown_without_a_gpu(capsys):
    assert physics.main([]) == 0
    out = capsys.readouterr().out
    assert "There is no GPU here. Recorded:" in out and "mma.sync" in out and "zeros" in out


def test_without_a_gpu_and_a_record_one_line_says_so(tmp_path, capsys):
    (tmp_path / "machine").mkdir()
    (tmp_path / "machine" / "physics.json").write_text("{}", encoding="utf-8")
    assert physics.main(["--output-dir", str(tmp_path)]) == 2


@pytest.mark.parametrize("name", TRACED)
def test_a_recorded_trace_is_shown_and_drawn_without_a_gpu(name, tmp_path, capsys):
    assert trace.main([name, "--figure", str(tmp_path / "trace.png")]) == 0
    out = capsys.readouterr().out
    assert "softmax" in out and "times as long" in out
    assert (tmp_path / "trace.png").read_bytes().startswith(b"\x89PNG")


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
    machines = recorded_physics(RESULTS)
    assert len({machine.machine["slug"] for machine in machines}) == len(machines)
    for machine in machines:
        loads = {(load.name, load.inputs): load for load in machine.loads}
        assert len(loads) == 6
        limited = [load for (_, inputs), load in loads.items() if inputs == "random"]  # zeros need not reach the limit
        assert all(load.sustained.clock_ghz < load.rested_ghz for load in limited)


def test_tables_of_clock_and_power_are_of_the_record_with_most_steps(monkeypatch):
    """A newer record of another GPU takes no place in them."""
    usual = of_one_machine(recorded_runs(RESULTS))[0].machine["name"]
    whole = next(run for run in recorded_runs(RESULTS) if run.the_problem() == HEADLINE)
    newer = whole.model_copy(
        update={"machine": {**whole.machine, "name": "another"}, "steps": whole.steps[:3], "date": "2099-01-01"}
    )
    monkeypatch.setattr(summary, "recorded_runs", lambda results: [newer, *recorded_runs(results)])
    assert summary.clocked().machine["name"] == usual
    page = summary.going_on()
    assert f"Recorded: {usual}" in str(page.parts[0])
    assert re.search(r"In \d+% of all samples the GPU reported that it was held back \(power limit\)", page.parts[-1])


@pytest.fixture
def fake_gpu(monkeypatch):
    """A machine whose loads run in 1 and 2 ms at 1.5 GHz; a list of who was sampled, in order."""
    sampled = []

    def sample(call, plan, stopwatch):
        sampled.append(plan.launches)
        ms = float(plan.launches)
        return timing.Sample(ms, None, 20.0, Clock(1.5, 1.5, 1.5), None)

    def sustained(call, milliseconds, stopwatch):
        sampled.append(-int(milliseconds))
        return timing.Sample(milliseconds, None, None, Clock(1.25, 1.25, 1.25), None, 0.7)

    monkeypatch.setattr("tutorial_lib.clock.Stopwatch", lambda: None)
    monkeypatch.setattr("tutorial_lib.hardware.gpu_turn", lambda device: nullcontext())
    machine = {"name": "A GPU", "slug": "a-gpu", "arch": "sm_90", "multiprocessors": 132}
    monkeypatch.setattr("tutorial_lib.hardware.describe_machine", lambda device: machine)
    monkeypatch.setattr(rates, "call_of", lambda rate: 4)
    monkeypatch.setattr(timing, "plan_sample", lambda call: timing.Plan(call, 0.0, float(call)))
    monkeypatch.setattr(timing, "take_sample", sample)
    monkeypatch.setattr(timing, "take_sustained_sample", sustained)
    loads = [("matrix product", "random", 1e12, 1), ("epilogue_overlap", "zeros", 2e12, 2)]
    monkeypatch.setattr(physics, "_loads", lambda problem, attention: loads)
    return sampled


def test_loads_are_sampled_in_turn_and_rates_are_in_clocks(fake_gpu):
    found = physics.measure(get_step("epilogue_overlap"), 3, lambda told: None)
    rate = next(r for r in found.rates if r.name == "mma_sync")
    assert rate.a_clock.median == pytest.approx(2 * 256 * 64 * 32 * rates.ITERATIONS / (4e6 * 1.5))
    product, linked = found.loads
    assert (product.rested_tflops, product.rested_ghz, product.sustained.clock_ghz) == (1000, 1.5, 1.25)
    assert linked.sustained.tflops == 1000 and linked.sustained.watts == pytest.approx(350)
    turns = fake_gpu[3 * len(found.rates) :]
    assert [sorted(map(abs, turns[i : i + 2])) for i in range(0, 12, 2)] == [[1, 2]] * 6  # everybody in every round
    assert all(n > 0 for n in turns[:6]) and all(n < 0 for n in turns[6:])


def test_a_step_that_does_not_run_there_and_a_clock_that_cannot_be_read_are_told(fake_gpu, monkeypatch):
    with pytest.raises(BadRequest, match="made of wgmma"):
        machine = {"name": "A GPU", "slug": "a-gpu", "arch": "sm_80", "multiprocessors": 108}
        with monkeypatch.context() as patch:
            patch.setattr("tutorial_lib.hardware.describe_machine", lambda device: machine)
            physics.measure(get_step("epilogue_overlap"), 1, lambda told: None)
    monkeypatch.setattr(timing, "take_sample", lambda *_: timing.Sample(1.0, None, None, None, "SM 3 counted nothing"))
    with pytest.raises(BadRequest, match="the SMs' clock cannot be read here: SM 3 counted nothing"):
        physics.measure(get_step("epilogue_overlap"), 2, lambda told: None)
    assert [r.name for r in rates.of_arch("sm_80")] == ["mma_sync", "ex2", "fma"]


def test_a_block_that_is_measured_fetches_its_tile_and_stores_it():
    """On the simulator: no race, and the tile arrives."""
    import torch
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from tutorial_lib.rates_kernels import block
    from tutorial_lib.simulator.run import launch

    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    given = torch.randn(3 * 128, 128).half()
    made = torch.full_like(given, float("nan"))
    descriptors = [TensorDescriptor.from_tensor(x, [128, 128], layout) for x in (given, made)]
    run = launch(block, (6,), (*descriptors, 3), 4)
    assert torch.equal(made, given) and not run.found
