"""The first small Gluon kernel: what it computes, that it is in order, and that it is code for a GPU."""

import importlib

import torch

from steps.gluon import names
from steps.primers import first_kernels, show
from tutorial_lib import holders
from tutorial_lib.simulator.run import launch

Q, K = torch.randn(2, 16, 16).half()
EXPECTED = ["LDGSTS", "LDGDEPBAR", "DEPBAR.LE SB0, 0x0", "BAR", "LDSM", "LDSM", "HMMA.16816", "HMMA.16816", "STG.E.128"]


def test_a_small_kernel_computes_what_its_docstring_says():
    for seed in (None, 1, 2):
        written = torch.full((16, 16), float("nan"))
        assert not launch(first_kernels.scores, (1,), (Q, K, written), warps=1, seed=seed).found
        torch.testing.assert_close(written, Q.float() @ K.float().T, atol=1e-6, rtol=1e-5)


def test_a_small_kernel_becomes_the_instructions_that_its_chapter_names():
    found = iter(show.matching(first_kernels.scores, (Q, K, torch.empty(16, 16)), 1, "."))
    for instruction in EXPECTED:
        assert any(instruction in line for line in found), f"no {instruction}, in this order"


def test_an_older_triton_gets_todays_names(monkeypatch):
    for place, name, older in names.NAMES:
        monkeypatch.setattr(place, older, object(), raising=False)
        monkeypatch.delattr(place, name)
    importlib.reload(names)
    assert all(getattr(place, name) is getattr(place, older) for place, name, older in names.NAMES)


def test_an_accumulator_is_the_left_factor_of_the_next_product():
    shape = (16, 16)
    assert holders.holders(first_kernels.MMA.value, shape) == holders.holders(first_kernels.LEFT.value, shape)


def test_a_box_is_what_a_lane_holds_one_after_the_other():
    held = holders.holders(first_kernels.COPY.value, (16, 16))
    assert list(holders._runs(held, 9, 16)) == [(0, 8, (0, 18, 0)), (8, 16, (0, 19, 0))]
