"""A step differs from its predecessor in one hole of the skeleton, and the skeleton itself costs nothing."""

import dataclasses

import pytest

from steps import STEPS, get_step, hopper
from steps.cutile import CuTileStep
from steps.fused import FusedStep, branches
from steps.tiles import Tile
from tutorial_lib.problem import Problem

FUSED = [step for step in STEPS if isinstance(step, FusedStep)]
CUTILE = [step for step in FUSED if isinstance(step, CuTileStep)]
HOPPER = [step for step in FUSED if isinstance(step, hopper.HopperStep) and not step.begins_a_skeleton]

EVEN = Problem(batch=4, heads=32, seq_len_q=4096, seq_len_kv=4096, head_dim=128, causal=True)

# SASS instructions and registers of the same kernels written out flat, without a skeleton, for sm_90 with 64 x 64
# tiles, as cuda-tile 1.7.0 with tileiras 13.4.92 compiled them.
FLAT = {
    "mma": (6136, 255),
    "exp2": (3152, 255),
    "load_order": (3152, 255),
    "latency": (3112, 255),
    "occupancy": (2792, 128),
    "approx_division": (1792, 128),
}


@pytest.mark.parametrize("step", STEPS[1:], ids=lambda s: s.name)
def test_every_step_knows_its_predecessor(step):
    # Step 15 stands on step 11, not on the steps between that save shared memory; step 21 not on ping-pong. Steps 25
    # and 28 are two ways on from cuTile's step 7 and 25, step 31 goes on in Hopper's ladder; 37 and
    # 38 go on from cuTile's 27 and 30, 39 from Hopper's 36, and 42 from 27 again.
    elsewhere = {15: 11, 21: 19, 25: 7, 28: 25, 31: 24, 37: 27, 38: 30, 39: 36, 42: 27}
    assert step.previous is STEPS[elsewhere.get(step.number, step.number - 1)]


@pytest.mark.parametrize("step", [s for s in FUSED if not s.begins_a_skeleton], ids=lambda s: s.name)
def test_one_hole_changes(step):
    # Hints that were made for smaller blocks are taken back where the block grows; the step says so.
    changed = {"eight_warps": {"warps", "occupancy", "latency"}}.get(step.name)
    assert set(step.changed_holes()) == changed if changed else len(step.changed_holes()) == 1
    assert len(step.key_changes()) == len(step.changed_holes())
    descriptive = {"number", "name", "title", "change", "previous"}
    differing = {
        field.name
        for field in dataclasses.fields(step)
        if getattr(step, field.name) != getattr(step.previous, field.name)
    }
    assert differing - descriptive == set(step.changed_holes())  # a change outside the holes would show here


@pytest.mark.parametrize("step", [s for s in CUTILE if s.name in FLAT], ids=lambda s: s.name)
def test_the_skeleton_costs_nothing(step):
    instructions, registers = FLAT[step.name]
    compiled = dataclasses.replace(step, tile=Tile(64, 64)).compile(EVEN, "sm_90")
    assert compiled.instructions <= 1.02 * instructions
    assert compiled.registers <= registers
    assert compiled.spill_instructions == 0


def test_even_shapes_pay_nothing_for_ragged_ones():
    """The mask of the last tile is compiled in only where a tile is not full."""
    step = get_step("approx_division")
    even = dataclasses.replace(EVEN, causal=False)
    ragged = dataclasses.replace(even, seq_len_kv=4095)
    assert step.compile(ragged).instructions > step.compile(even).instructions
    assert not step.variant(even, "sm_90").ragged


@pytest.mark.parametrize("step", HOPPER, ids=lambda s: s.name)
def test_what_a_hole_switches_is_shown(step):
    """A hole that is one word to the skeleton shows the branches that ask for it, and only those."""
    for name in step.changed_holes():
        shown = step.switched(name)
        assert bool(shown) == (name not in ("registers", "third_group"))
        for function, text in shown.items():
            assert hasattr(hopper, function) and "variant." in text
    assert step.switched("registers") == {}


def test_branches_are_the_outermost_that_ask():
    source = (
        "def f(variant):\n    if variant.a:\n        if variant.a:\n            x = 1\n"
        "    for i in range(2):\n        if i and variant.ab:\n            x = 2\n"
        "def g(variant):\n    return 1 if variant.b else 2\n"
    )
    assert branches(source, ("a",)) == {"f": "if variant.a:\n    if variant.a:\n        x = 1"}
    assert branches(source, ("b", "ab")) == {
        "f": "if i and variant.ab:\n    x = 2",
        "g": "1 if variant.b else 2",
    }
