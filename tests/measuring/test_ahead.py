"""Kernels compiled side by side: all of them, kept on disk, whatever becomes of one."""

import dataclasses
from contextlib import contextmanager

import pytest

from steps import get_step
from steps.measuring.ahead import KERNELS_A_PROCESS, compile_ahead
from steps.measuring.bench import Bench
from steps.measuring.measure import Settings, measure
from tests import faulty
from tests.shapes import problem

NAMES = ["mma", "exp2", "load_order", "explicit", "swizzle", "split_q"]
SMALL = problem(head_dim=64, seq_len_q=64, seq_len_kv=64)


@pytest.fixture(autouse=True)
def nothing_on_disk(monkeypatch, tmp_path):
    monkeypatch.setenv("FMHA_TUTORIAL_CACHE", str(tmp_path / "kept"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setattr("os.cpu_count", lambda: 2)


def cold(steps) -> list[str]:
    return Bench(SMALL, "forward", "cpu", 0, check=False).not_compiled(steps, "sm_90")


def test_a_run_compiles_what_is_missing_before_the_first_step_has_its_turn(tmp_path):
    steps = [get_step(name) for name in NAMES]
    assert cold(steps) == NAMES
    told = []

    class Listener:
        def total(self, actions): ...
        def done(self, what): ...
        def doing(self, what):
            told.append(what)

    for expected in (["compiling 6 kernels, 2 at a time: 6 done"], []):  # the second time all is there
        run, _, _ = measure(SMALL, steps, [], Settings(device="cpu", seed=0, check=False), Listener())
        assert [m.status for m in run.steps] == ["compiled"] * 6
        first = told.index("checking 2 mma")
        assert told[:first][-1:] == expected
        told.clear()
    assert cold(steps) == []


def test_what_fails_or_dies_is_left_to_its_own_turn():
    """It comes to an end although one answer never does, and the others are compiled."""
    bad = [faulty.CompilesBadly(**vars(faulty.make(f, 90 + n))) for n, f in enumerate([faulty.raises, faulty.dies])]
    steps = [*bad, *map(get_step, NAMES[:4])]
    compile_ahead([(step, SMALL) for step in steps], "sm_90", 45.0, lambda what: None)
    assert cold(steps[2:]) == []


def test_a_few_kernels_are_not_worth_a_process():
    steps = [get_step(name) for name in NAMES[: 2 * KERNELS_A_PROCESS - 1]]
    compile_ahead([(step, SMALL) for step in steps], "sm_90", 45.0, pytest.fail)
    assert cold(steps) == [step.name for step in steps]


@pytest.mark.parametrize(
    ("direction", "name", "shape"),
    [
        ("forward", "explicit", SMALL),
        ("backward", "on_its_side", SMALL),
        ("paged", "paged", problem(heads=2, seq_len_q=1, seq_len_kv=64, page_size=16)),
    ],
)
def test_a_step_is_made_ready_before_it_takes_its_turn(direction, name, shape, monkeypatch):
    """So that others need not wait for a compiler; in the turn it only runs."""
    held, said = [], []

    @contextmanager
    def turn(device):
        held.append(device)
        yield
        held.pop()

    monkeypatch.setattr("steps.measuring.bench.gpu_turn", turn)
    step = dataclasses.replace(get_step(name))  # without launches that were made ready before
    kept = type(step).kept
    monkeypatch.setattr(type(step), "kept", lambda *given: said.append(bool(held)) or kept(*given))
    assert Bench(shape, direction, "cpu", 0, check=True).check(step).correct
    assert said == [False] and not held
