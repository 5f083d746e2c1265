"""The command that looks again at what is recorded of a GPU, with a bench that is made up."""

from functools import cache

import pytest

from steps import check_gpu
from steps.core.problems import DECODING, HEADLINE
from steps.core.recorded import recorded_runs
from steps.measuring import recheck
from steps.measuring.recheck import Checked, Examiner, Finding, Task
from tutorial_lib.accuracy import Accuracy
from tutorial_lib.files import RESULTS
from tutorial_lib.problem import DTYPES, Problem
from tutorial_lib.worker import Inline

recorded = cache(recorded_runs)
RIGHT, WRONG = Accuracy(1e-3, 1e-3, 2.5e-3), Accuracy(9e-3, 1e-3, 2.5e-3)


class MadeUp:
    """As ``Examiner``: every step is right, and as many times as fast as recorded, but for what ``said`` says.

    said: by the name of the problem an Accuracy, a factor on the recorded ratio, or an exception.
    """

    def __init__(self, recorded: dict[str, float], said: dict[str, object]):
        self.recorded, self.said, self.checked, self.rounds = recorded, said, None, {}

    def check(self, checked, name, seed):
        self.checked = checked.name
        said = self.said.get(checked.name)
        if isinstance(said, Exception):
            raise said
        return said if isinstance(said, Accuracy) else RIGHT

    def ratios(self, name, rounds):
        said = self.said.get(self.checked, 1.0)
        self.rounds[self.checked] = self.rounds.get(self.checked, 0) + rounds
        return [said * self.recorded[self.checked]] * rounds


@cache
def tasks() -> list[Task]:
    """What is asked for on the GPU of the records."""
    asked = check_gpu.problems()
    return [recheck.task_of(c, "sm_90", check_gpu.RECORDED_ON, recorded(RESULTS, c.direction)) for c in asked]


@pytest.fixture
def on_a_gpu(monkeypatch, capsys):
    """``on_a_gpu(said, slug)``: (status, lines, the bench) of the command there."""

    def run(said: dict[str, object] | None = None, slug: str = check_gpu.RECORDED_ON, **others):
        bench = MadeUp({task.checked.name: task.recorded for task in tasks()}, said or {})
        monkeypatch.setattr("steps.core.recorded.recorded_runs", recorded)
        monkeypatch.setattr("tutorial_lib.hardware.why_no_gpu", lambda: None)
        machine = {"name": "A GPU", "slug": slug, "arch": "sm_90"} | others
        monkeypatch.setattr("tutorial_lib.hardware.describe_machine", lambda device: machine)
        monkeypatch.setattr("steps.measuring.bench.is_missing", lambda *kernel: False)
        monkeypatch.setattr("steps.measuring.ahead.compile_ahead", lambda *what: None)
        monkeypatch.setattr("tutorial_lib.worker.Worker", lambda factory, device: Inline(lambda: bench))
        status = check_gpu.main([])
        return status, capsys.readouterr().out.splitlines(), bench

    return run


def test_every_problem_is_recorded_of_the_gpu_that_it_says():
    assert len(tasks()) == len({task.checked.name for task in tasks()}) == 12
    for task in tasks():
        assert task.recorded is not None, task.checked.name
        assert (RESULTS / check_gpu.RECORDED_ON / task.checked.name / "results.json").exists()


def test_the_problems_are_of_all_kinds():
    forward, backward = ([c.problem for c in check_gpu.problems() if c.direction == d] for d in ("forward", "backward"))
    assert {p.dtype for p in forward} == set(DTYPES)
    for kind in (forward, backward):
        assert {p.head_dim for p in kind} == {64, 128, 256} and {p.causal for p in kind} == {True, False}
        assert any(p.group_size > 1 for p in kind) and any(p.group_size == 1 for p in kind)
    assert any(p.window for p in forward) and DECODING in forward


def test_all_well_is_a_line_each_and_status_0(on_a_gpu):
    status, lines, bench = on_a_gpu()
    assert status == 0 and len(lines) == 14
    for each, line in zip(check_gpu.problems(), lines):
        assert line.startswith(each.name) and "right 1.00" in line and "same as " in line
        assert len(line) <= 110
    assert lines[12] == "A GPU: 12 of 12 right, 12 of 12 as far ahead of PyTorch as recorded."
    assert " s in all" in lines[13] and "--seed" in lines[13]
    assert set(bench.rounds.values()) == {7}


@pytest.mark.parametrize(
    ("said", "status", "told"),
    [
        (1.029, 0, "same as {:.2f}"),
        (0.971, 0, "same as {:.2f}"),
        (1.05, 1, "faster than {:.2f} by 5.0%"),
        (0.95, 1, "slower than {:.2f} by 5.0%"),
        (WRONG, 1, "wrong 9.00 wrong result: the largest error is 0.009, at most 0.0025 is allowed"),
        (Accuracy(float("nan"), 1e-3, 2.5e-3), 1, "wrong result: the output holds NaN"),
        (RuntimeError("an illegal address\nmore"), 1, "failed: RuntimeError: an illegal address"),
    ],
)
def test_what_is_not_as_it_was_is_told_and_no_other_line_is_lost(on_a_gpu, said, status, told):
    first = check_gpu.problems()[0].name
    found, lines, bench = on_a_gpu({first: said})
    told = told.format(tasks()[0].recorded)
    assert found == status and told in lines[0] and len(lines) == 14
    assert sum("same as " in line for line in lines[:12]) == 12 - status
    assert (f"{first}: " in lines[12]) == bool(status)
    if isinstance(said, float):  # a ratio that is another one is looked at for longer
        assert bench.rounds[first] == 7 + recheck.MORE * status


def test_a_fault_of_our_own_loses_no_other_line(on_a_gpu, monkeypatch):
    examine = recheck.examine

    def faulty(task, *more):
        if task.checked == Checked(DECODING):
            raise ZeroDivisionError("a fault")
        return examine(task, *more)

    monkeypatch.setattr(recheck, "examine", faulty)
    status, lines, _ = on_a_gpu()
    assert status == 1 and len(lines) == 14 and sum("same as " in line for line in lines[:12]) == 11
    assert sum("failed: ZeroDivisionError: a fault" in line for line in lines[:12]) == 1


def test_a_gpu_is_compared_with_no_other(on_a_gpu):
    status, lines, bench = on_a_gpu(slug="another-gpu")
    assert status == 0 and not bench.rounds
    assert all("right 1.00" in line and "not recorded on this GPU" in line for line in lines[:12])
    assert lines[12] == "A GPU: 12 of 12 right, 0 of 0 as far ahead of PyTorch as recorded."


def test_a_gpu_without_steps_fails_every_line(on_a_gpu):
    status, lines, _ = on_a_gpu(arch="gfx950")
    assert status == 1 and all("failed: no recorded step takes it" in line for line in lines[:12])


def test_the_examiner_checks_on_new_inputs_and_tells_a_wrong_step():
    from steps import get_step

    examiner, small = Examiner("cpu"), Problem(batch=1, heads=2, seq_len_q=64, seq_len_kv=64, head_dim=64)
    assert examiner.check(Checked(small), "mma", 1).correct
    before = examiner.bench.inputs[0]
    assert examiner.check(Checked(small), "mma", 2).correct
    assert not before.equal(examiner.bench.inputs[0])
    assert examiner.check(Checked(small, "backward"), "sdpa_gradients", 2).correct
    finding = Finding(Task(Checked(HEADLINE), get_step("mma"), None), WRONG)
    assert not finding.right and finding.as_recorded and finding.off == 0
