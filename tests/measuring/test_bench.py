"""Whose turn it is on a GPU: what takes long without it is done outside."""

import sys
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from steps import lesson
from steps.measuring import bench, sweep
from steps.reference.peers import GradientPeer, PagedPeer, Peer, QuantizedPeer
from tests.shapes import problem
from tutorial_lib.accuracy import Accuracy
from tutorial_lib.passes import PASSES
from tutorial_lib.problem import FP8

PEERS = {"forward": Peer, "backward": GradientPeer, "paged": PagedPeer, "fp8": QuantizedPeer}


@pytest.mark.parametrize("direction", PEERS)
def test_what_a_peer_needs_is_imported_before_its_turn(direction, monkeypatch, tmp_path):
    name = f"somebody_elses_{direction}"
    (tmp_path / f"{name}.py").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    asked = problem(page_size=16 if direction == "paged" else None)
    asked, turns = replace(asked, dtype=FP8) if direction == "fp8" else asked, []

    @contextmanager
    def turn(device):
        turns.append(name in sys.modules)
        yield

    monkeypatch.setattr(bench, "gpu_turn", turn)

    def function(q, *rest):
        return torch.nn.functional.scaled_dot_product_attention(q, *rest[:2])

    peer = PEERS[direction](name="peer", title="", change="", function=function, requires=name)
    made = bench.Bench(asked, direction, "cpu", 0, check=False)
    made.exact, made.allowed = made.inputs, (1.0,) * 3
    kind = PASSES[direction]
    monkeypatch.setattr(type(kind), "check", lambda *rest: "checked")
    monkeypatch.setattr(type(peer), "unsupported", lambda *asked: None)  # here, without a GPU, it says so
    assert made.check(peer) == "checked"
    assert turns == [False, False, True]  # inputs, poisoned outputs, the check


@pytest.fixture
def events(monkeypatch):
    """What a check on a made-up GPU does, in its order: a turn begins and ends, and a step is compiled and compared."""

    class Told(list):
        step = SimpleNamespace(unsupported=lambda *_: None, compile=lambda *_: told.append("compiled"))

    told = Told()

    @contextmanager
    def turn(device):
        told.append("begins")
        yield
        told.append("ends")

    def compared(*_):
        told.append("compared")
        return Accuracy(0.0, 0.0, 1.0)

    kind = SimpleNamespace(
        causes=lambda _: (), poisoned=lambda inputs: (), make_ready=lambda *_: told.append("made ready")
    )
    kind.inputs = kind.reference = kind.yardstick = kind.errors_by_cause = lambda *_: ()
    kind.check = compared
    for module in (bench, lesson, sweep):
        monkeypatch.setattr(module, "gpu_turn", turn)
    monkeypatch.setattr(lesson, "pass_of", lambda step: kind)
    monkeypatch.setattr(lesson, "describe_machine", lambda device: {"arch": "sm_90"})
    monkeypatch.setattr(bench, "target_of", lambda device: "sm_90")
    monkeypatch.setitem(bench.PASSES, "made up", kind)
    return told


@pytest.mark.parametrize("who", ["measured", "in a chapter"])
def test_a_compiler_is_not_waited_for_in_a_turn(who, events):
    if who == "measured":
        made = bench.Bench(problem(), "made up", "cpu", 0, check=True)
        made.device = SimpleNamespace(type="cuda")
        events.clear()
        made.check(events.step)
        assert events == ["compiled", "begins", "ends", "made ready", "begins", "compared", "ends"]
    else:
        lesson._accuracy(events.step, problem(), True)
        assert events == ["compiled", "begins", "compared", "ends"]


def test_what_a_sweep_compiles_waits_for_nobody(events, monkeypatch):
    """Not for a turn, in which another's compiler is at work. What is left of a call's memory goes back."""
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: events.append("emptied"))
    monkeypatch.setattr(sweep.Called, "_call", lambda *_: events.append("called"))
    sweep.Called((events.step,), "forward").compile(problem(), "sm_90")
    assert events == ["compiled", "called", "emptied"]


def test_the_baselines_kernels_are_looked_at_in_its_turn(monkeypatch):
    held, seen = [], []

    @contextmanager
    def turn(device):
        held.append(True)
        yield
        held.pop()

    class Profile:
        """Finds no kernels, as there are none without a GPU."""

        def __init__(self, **how):
            pass

        def __enter__(self):
            seen.append(("profile", list(held)))
            return self

        def __exit__(self, *error):
            return None

        def key_averages(self):
            return []

    monkeypatch.setattr(bench, "gpu_turn", turn)
    monkeypatch.setattr("torch.profiler.profile", Profile)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    made = bench.Bench(problem(), "forward", "cpu", 0, check=False)
    monkeypatch.setattr(type(made.kind), "call", lambda *rest: seen.append(("call", list(held))))
    assert made.kernels(None) == []
    assert seen == [("profile", []), ("call", [True]), ("profile", [True]), ("call", [True])]
