"""What the compiler makes of the Hopper steps, as chapters tell it: waits, masks, registers."""

import dataclasses
from collections import Counter

import pytest

from steps import get_step
from steps.core.problems import HEADLINE as EVEN
from steps.hopper.variant import GROUP_WARPS
from tests.core.test_steps import HOPPER
from tests.expected import same_compilers
from tests.selection import sampled
from tutorial_lib.sass import one_behind_another

pytestmark = same_compilers


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_where_the_second_wait_stands(head_dim):
    """As written the compiler moves it before most of the exponentials; with pv_wait_after_softmax it is the last."""
    shape = dataclasses.replace(EVEN, head_dim=head_dim, causal=False)
    early, late = (get_step(name).compile(shape).hot_order for name in ("hopper_deferred_sum", "pv_wait_after_softmax"))
    assert [what for what, _ in late] == ["HGMMA", "wait", "FMNMX", "EX2", "wait"]
    assert sum(count for what, count in early if what == "wait") == 2 and early[-1][0] == "EX2"
    exponentials = sum(count for what, count in early if what == "EX2")
    assert early[-1][1] > exponentials / (2 if head_dim < 256 else 5)  # with Triton 3.9 fewer there


@pytest.mark.parametrize(("head_dim", "causal"), [(64, False), (64, True), (128, False), (128, True), (256, True)])
def test_the_maxima_stand_in_front_of_the_second_wait(head_dim, causal):
    """Step pv_wait_after_max: between the two waits are all the maxima, and behind them most exponentials."""
    between, behind = around_the_second_wait("pv_wait_after_max", head_dim, causal)
    assert between["FMNMX"] and not behind["FMNMX"] and behind["EX2"] > 4 * between["EX2"]


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_a_mask_moves_the_second_wait_up(head_dim):
    """Left to the compiler, maxima stand in front of it, but hardly one under a mask."""
    (full, _), (masked, _) = (
        around_the_second_wait("hopper_deferred_sum", head_dim, causal) for causal in (False, True)
    )
    assert masked["FMNMX"] <= 1 < 10 < full["FMNMX"]


@sampled(core=lambda head_dim, causal: (head_dim, causal) == (128, True))
@pytest.mark.parametrize(("head_dim", "causal"), [(64, True), (64, False), (128, True), (128, False), (256, True)])
def test_four_chains_leave_few_comparisons_behind_one_another(head_dim, causal):
    """Step row_max_ilp: as many comparisons, and few that wait for the one right before.

    With Triton 3.7 most of those of pv_wait_after_max did at head_dim 64 and 256 under a mask. With 3.9 few do.
    """
    shape = dataclasses.replace(EVEN, head_dim=head_dim, causal=causal)
    one, four, in_pairs = (
        one_behind_another(get_step(name).compile(shape).hot_body, "FMNMX")
        for name in ("pv_wait_after_max", "row_max_ilp", "row_max_ilp_multicast")
    )
    assert one[0] == four[0] == in_pairs[0] and max(four[1], in_pairs[1]) <= four[0] / 4
    assert one[1] < one[0] * 0.8


def test_without_a_mask_at_head_dim_256_there_are_no_four_chains():
    shape = dataclasses.replace(EVEN, head_dim=256, causal=False)
    one, four = (get_step(name).compile(shape) for name in ("pv_wait_after_max", "row_max_ilp"))
    assert one.same_code(four)


@pytest.mark.parametrize("causal", [True, False])
def test_no_group_meets_in_the_loop_where_nothing_needs_it(causal):
    """Two meetings a tile of keys are gone (before Triton 3.9 four). The second wait is in place."""
    shape = dataclasses.replace(EVEN, head_dim=128, causal=causal)
    before, after = (get_step(name).compile(shape) for name in ("row_max_ilp_multicast", "no_redundant_barriers"))
    meetings = [sum(i.opcode == "BAR" for i in compiled.hot_body) for compiled in (before, after)]
    assert meetings == [2, 0]
    between, behind = around_the_second_wait("no_redundant_barriers", 128, causal)
    assert between["FMNMX"] and not behind["FMNMX"] and behind["EX2"] > 4 * between["EX2"]


@pytest.mark.parametrize(("head_dim", "causal"), [(64, True), (256, True), (256, False)])
def test_elsewhere_the_meetings_stay(head_dim, causal):
    shape = dataclasses.replace(EVEN, head_dim=head_dim, causal=causal)
    assert get_step("no_redundant_barriers").compile(shape).same_code(get_step("row_max_ilp_multicast").compile(shape))


def around_the_second_wait(name, head_dim, causal):
    """How many maxima and exponentials of an iteration stand between its two waits, and behind the second."""
    order = get_step(name).compile(dataclasses.replace(EVEN, head_dim=head_dim, causal=causal)).hot_order
    waits = [n for n, (what, count) in enumerate(order) for _ in range(count) if what == "wait"]
    assert len(waits) == 2
    return Counter(dict(order[waits[0] + 1 : waits[1]])), Counter(dict(order[waits[1] + 1 :]))


def test_the_diagonal_first_leaves_no_mask_in_the_loop():
    """Step reverse_kv_order: one branch less in an iteration, the one around the mask."""
    shape = dataclasses.replace(EVEN, head_dim=256, causal=True)
    before, now = (get_step(name).compile(shape).hot_loop for name in ("pv_wait_after_max", "reverse_kv_order"))
    assert now["control"] < before["control"]
    assert (now["tensor core"], now["MUFU"]) == (before["tensor core"], before["MUFU"])


@sampled(core=lambda step, head_dim: head_dim == 128)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("step", HOPPER, ids=lambda s: s.name)
def test_every_hopper_step_compiles_and_its_hot_loop_is_found(step, head_dim):
    problem = dataclasses.replace(EVEN, head_dim=head_dim, dtype="bfloat16")
    compiled, variant = step.compile(problem, "sm_90"), step.variant(problem)
    assert compiled.threads == 32 * (variant.warps * variant.warpgroups + (GROUP_WARPS if step.name != "wgmma" else 0))
    assert compiled.compute_threads == 128 * variant.groups and compiled.compute_groups == variant.warpgroups
    assert compiled.occupancy[0] >= 1
    # One exponential a score, and one a row for the correction; the mask, which whole tiles jump over, is not counted.
    exponentials = compiled.scores_per_tile / compiled.compute_threads
    assert exponentials < compiled.hot_loop["MUFU"] <= exponentials + 2
    # wgmma takes 16 of head_dim at a time for QK, 16 keys for PV, and at most 256 columns.
    assert compiled.hot_loop["tensor core"] == head_dim / 16 + variant.tile.key / 16
    assert compiled.kinds["bulk copy"] > 0


def test_products_and_copies_are_those_of_hopper():
    ptx = get_step("wgmma").compile(EVEN).ptx
    assert "wgmma.mma_async" in ptx and "cp.async.bulk.tensor" in ptx


@pytest.mark.parametrize("name", ["intra_warpgroup_overlap", "lpt_scheduler", "epilogue_overlap"])
def test_a_mask_that_whole_tiles_jump_over_is_not_counted(name):
    causal, full = (get_step(name).compile(dataclasses.replace(EVEN, causal=mask)).hot_loop for mask in (True, False))
    for kind in ("FP32", "MUFU", "conversion", "tensor core"):
        assert causal[kind] == full[kind]


def test_registers_end_the_spills_at_head_dim_256():
    wide = dataclasses.replace(EVEN, head_dim=256)
    assert get_step("producer").compile(wide).spill_instructions > 0
    assert get_step("register_reallocation").compile(wide).spill_instructions == 0
    assert get_step("producer").compile(EVEN).spill_instructions == 0
