"""Whose turn it is on a GPU: what takes long without it is done outside."""

import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from steps.measuring import bench
from steps.reference.peers import GradientPeer, PagedPeer, Peer, QuantizedPeer
from tests.shapes import problem
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
