"""The small kernels of chapter 19: what they compute, that they are in order, and that they are code for a GPU."""

import importlib

import pytest
import torch

from steps.gluon import names
from steps.primers import first_kernels, show
from tutorial_lib import holders, layouts
from tutorial_lib.simulator.run import launch


def random(*shape, dtype=torch.float16):
    return torch.randn(*shape).to(dtype)


X, TILE, TILES, Q, K = (
    random(1000, dtype=torch.float32),
    random(16, 32),
    random(2, 16, 32),
    random(16, 16),
    random(16, 16),
)
KERNELS = {  # name -> grid, what it reads, what else it is passed, and what it is to write
    "add_one": (4, [X], [1000], X + 1),
    "subtract_maxima": (1, [TILE], [], TILE - TILE.amax(1, keepdim=True)),
    "by_way_of_shared": (1, [TILE], [], TILE),
    "double": (1, [TILES], [], 2 * TILES),
    "scores": (1, [Q, K], [], Q.float() @ K.float().T),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_computes_what_its_docstring_says(name):
    blocks, read, passed, right = KERNELS[name]
    for seed in (None, 1, 2):
        written = torch.full_like(right, float("nan"))
        arguments = (*read, written, *passed)
        run = launch(getattr(first_kernels, name), (blocks,), arguments, first_kernels.WARPS[name], seed=seed)
        assert not run.found
        torch.testing.assert_close(written, right, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("add_one", ["LDG", "STG"]),
        ("subtract_maxima", ["LDG.E.128", "SHFL", "SHFL", "STG.E.128"]),
        ("by_way_of_shared", ["LDGSTS.E.BYPASS.128", "LDGDEPBAR", "DEPBAR.LE SB0, 0x0", "BAR", "LDS.128", "STG"]),
        ("double", ["LDGSTS", "LDGSTS", "DEPBAR.LE SB0, 0x1", "BAR", "LDS", "DEPBAR.LE SB0, 0x0", "BAR", "LDS"]),
        ("scores", ["LDGSTS", "LDGDEPBAR", "DEPBAR", "BAR", "LDSM", "LDSM", "HMMA.16816", "HMMA.16816", "STSM", "STG"]),
    ],
)
def test_a_kernel_becomes_the_instructions_that_the_chapter_names(name, expected):
    _, read, passed, right = KERNELS[name]
    found = iter(show.matching(getattr(first_kernels, name), (*read, right, *passed), first_kernels.WARPS[name], "."))
    for instruction in expected:
        assert any(instruction in line for line in found), f"no {instruction}, in this order"


def test_an_older_triton_gets_todays_names(monkeypatch):
    for place, name, older in names.NAMES:
        monkeypatch.setattr(place, older, object(), raising=False)
        monkeypatch.delattr(place, name)
    importlib.reload(names)
    assert all(getattr(place, name) is getattr(place, older) for place, name, older in names.NAMES)


def test_holders_agree_with_the_lanes_of_a_layout():
    layout = first_kernels.MMA.value
    held = holders.holders(layout, (16, 16))
    lanes = layouts.lanes_of(layout, (16, 16))
    assert len(held) == 256 and all(each[0][1] == lanes[place] for place, each in held.items())
    assert len({each[0] for each in held.values()}) == 256


def test_an_accumulator_is_the_left_factor_of_the_next_product():
    shape = (16, 16)
    assert holders.holders(first_kernels.MMA.value, shape) == holders.holders(first_kernels.LEFT.value, shape)


def test_a_box_is_what_a_lane_holds_one_after_the_other():
    held = holders.holders(first_kernels.TILE.value, (16, 32))
    assert [(first, end, who) for first, end, who in holders._runs(held, 9, 32)][:2] == [
        (0, 8, (1, 4, 0)),
        (8, 16, (1, 5, 0)),
    ]
