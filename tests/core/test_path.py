"""The path: what a person is shown first holds every step that does something new, and nothing that is skipped."""

from dataclasses import replace

import pytest

from steps import STEPS, get_step
from steps.core.ladder import kernels_of, part_of
from steps.core.path import path, runs_as_before, stands_on
from steps.core.problems import DECODING, FULL, HEADLINE, PAGED_DECODING, few_heads, standard
from tutorial_lib.problem import FP8

USUAL = [HEADLINE, FULL, standard(1024, 64), standard(4096, 256, True), standard(16384, 128, True, "bfloat16")]
ALWAYS = [*(step.name for step in STEPS if step.number in range(2, 8)), "swizzle", "split_q"]


def names(problem, arch="sm_90", direction="forward") -> list[str]:
    return [step.name for step in path(problem, arch, direction)]


@pytest.mark.parametrize("problem", [*USUAL, few_heads(), replace(HEADLINE, kv_heads=8)], ids=lambda p: p.slug)
@pytest.mark.parametrize("arch", ["sm_89", "sm_90", "sm_100"])
def test_the_first_steps_of_both_parts_are_always_on_it(problem, arch):
    found = path(problem, arch)
    assert found[0].name == "sdpa" and set(ALWAYS) <= {step.name for step in found}
    assert [step for step in STEPS if step in found] == found  # in the ladder's order
    for step in found:
        assert not step.fork and step.unsupported(problem, arch) is None


def test_what_does_nothing_new_on_a_problem_is_left_out():
    """mask_loop is for problems with a mask; without one room is for other head_dims alone."""
    assert "split_epilogue" not in names(FULL)
    assert "mask_loop" in names(HEADLINE) and "mask_loop" not in names(FULL)
    assert "split_epilogue" in names(standard(1024, 64)) and "split_epilogue" in names(standard(4096, 256, True))


@pytest.mark.parametrize("problem", USUAL, ids=lambda p: p.slug)
def test_what_is_left_out_is_the_same_code(problem):
    """Where the machine code is known: a step that does as its predecessor has no instruction of its own."""
    left = [step for step in kernels_of("forward") if not step.fork and runs_as_before(step, problem, "sm_90")]
    assert left
    for step in left[:2]:
        assert step.compile(problem, "sm_90").same_code(step.previous.compile(problem, "sm_90")), step.label


def test_a_step_is_compared_with_who_does_what_its_predecessor_does():
    warpgroup_causal_bound, pv_wait_after_max = get_step("warpgroup_causal_bound"), get_step("pv_wait_after_max")
    assert (
        stands_on(warpgroup_causal_bound, HEADLINE, "sm_90").name == "epilogue_overlap"
    )  # three_warpgroups does nothing new
    assert stands_on(pv_wait_after_max, FULL, "sm_90").name == "epilogue_overlap"  # nor does room
    assert (
        stands_on(get_step("exp2"), HEADLINE, "sm_90").name == "mma" and stands_on(STEPS[0], HEADLINE, "sm_90") is None
    )


def test_every_pass_and_kind_of_problem_has_a_path_of_its_own():
    assert names(DECODING)[-2:] == ["approx_division", "split_kv"] and "wgmma" not in names(DECODING)
    assert names(PAGED_DECODING, direction="paged") == ["gathered", "paged"]
    assert names(replace(PAGED_DECODING, kv_dtype=FP8), direction="paged") == ["gathered", "paged"]  # nobody's own
    backward = path(HEADLINE, "sm_90", "backward")
    assert backward[0].name == "sdpa_gradients" and {step.direction for step in backward} == {"backward"}
    assert not any(step.fork for step in backward) and len(backward) > 8
    windowed = path(replace(HEADLINE, window=1024), "sm_90")  # which only forks take
    assert [step.name for step in windowed] == ["sdpa", "window", "hopper_window"]
    assert {part_of(step.number).name for step in path(HEADLINE, "gfx950")} == {"cutile", "cdna"}
