"""A step differs from its predecessor in one hole of the skeleton."""

import dataclasses

import pytest

from steps import get_step
from steps.core.fused import FusedStep
from steps.core.ladder import kernels_of
from steps.core.problems import FULL
from steps.cutile.skeleton import CuTileStep

FUSED = [step for step in kernels_of("forward") if isinstance(step, FusedStep)]
CUTILE = [step for step in FUSED if isinstance(step, CuTileStep)]

# Steps that change more than one hole, and why is said in their modules.
TOGETHER = {
    "larger_tile": {"tile", "warps", "occupancy", "latency"},
    "cluster": {"tile", "cluster"},
    "gluon_larger_tile": {"tile", "sums"},
    "shared_kv_buffer": {"copies", "stages"},
    "head_dim_tiling": {"copies", "stages", "queries", "schedule"},
    "intra_warpgroup_overlap": {"generation", "registers"},
    "lpt_scheduler": {"order", "output_to", "free"},
    "three_warpgroups": {"groups", "turns"},
    "half_output": {"output_to", "free"},
    "split_epilogue": {"groups", "turns", "ends", "output_to", "queries", "free"},
    "balanced_tail": {"pairs", "order"},
    "narrow_values": {"pairs", "output_to", "softmax", "sums", "takes"},
    "next_softmax_first": {"highest", "pairs", "walk", "order", "sums", "hold", "queries", "generation"},
    "lazy_rescaling": {"generation", "rescaling"},
    "blackwell_persistent": {"exponential", "schedule"},
    "pv_wait_after_max": {"softmax", "sums"},
    "pv_wait_after_softmax": {"softmax", "sums"},
    "attention_sinks": {"takes", "warpgroup_per_query_head"},
    "row_max_ilp_multicast": {"pairs", "walk", "order", "sums"},
    "two_warpgroups": {"groups", "turns"},
}


@pytest.mark.parametrize("step", [s for s in FUSED if not s.begins_a_skeleton], ids=lambda s: s.name)
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
    assert differing - descriptive == changed  # a change outside the holes shows here


def test_a_hole_is_told_with_what_filled_it_and_what_does():
    assert get_step("registers").changed_holes() == {"registers": (168, 240)}


def test_even_shapes_pay_nothing_for_ragged_ones():
    """The mask of the last tile is compiled in only where a tile is not full."""
    step = get_step("approx_division")
    ragged = dataclasses.replace(FULL, seq_len_kv=4095)
    assert step.compile(ragged).instructions > step.compile(FULL).instructions
    assert not step.variant(FULL, "sm_90").ragged
