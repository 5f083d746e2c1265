"""A step differs from its predecessor in one hole of the skeleton."""

import dataclasses

import pytest

from steps import INSIDE, STEPS, get_step
from steps.core.fused import FusedStep
from steps.core.problems import FULL
from steps.cutile.skeleton import CuTileStep

FUSED = [step for step in STEPS if isinstance(step, FusedStep)]
CUTILE = [step for step in FUSED if isinstance(step, CuTileStep)]

# Steps that change more than one hole, and why is said in their modules.
TOGETHER = {
    "eight_warps": {"tile", "warps", "occupancy", "latency"},
    "cluster": {"tile", "cluster"},
    "wide_block": {"tile", "defer_sum"},
    "at_maxima": {"roles.loop.wait", "roles.loop.lean_sum"},
    "late_wait": {"roles.loop.wait", "roles.loop.lean_sum"},
    "chains_in_pairs": {
        "roles.loop.stay.pairs",
        "roles.loop.stay.ends",
        "roles.loop.stay.even_end",
        "roles.loop.lean_sum",
    },
}


@pytest.mark.parametrize("step", [s for s in (*FUSED, *INSIDE) if not s.begins_a_skeleton], ids=lambda s: s.name)
def test_one_hole_changes(step):
    changed = set(step.changed_holes())
    assert changed == TOGETHER[step.name] if step.name in TOGETHER else len(changed) == 1
    assert len(step.key_changes()) == len(changed)
    descriptive = {"number", "name", "title", "change", "previous", "inside", "fork", "default_problem"}
    differing = {
        field.name
        for field in dataclasses.fields(step)
        if getattr(step, field.name) != getattr(step.previous, field.name)
    }
    assert differing - descriptive == {name.split(".")[0] for name in changed}  # a change outside the holes shows here


def test_a_choice_inside_a_choice_is_named_by_its_way():
    assert list(get_step("linked").changed_holes()) == ["roles.loop.stay.linked"]
    assert get_step("registers").changed_holes() == {"roles.registers": (168, 240)}


def test_even_shapes_pay_nothing_for_ragged_ones():
    """The mask of the last tile is compiled in only where a tile is not full."""
    step = get_step("approx_division")
    ragged = dataclasses.replace(FULL, seq_len_kv=4095)
    assert step.compile(ragged).instructions > step.compile(FULL).instructions
    assert not step.variant(FULL, "sm_90").ragged
