"""The backward steps for Hopper: no race under any schedule, and products that the compiler leaves under way."""

import re

import pytest

from steps import GRADIENTS, get_step
from steps.core.problems import standard
from steps.simulate import Examination
from tests.shapes import problem

HOPPER = [step for step in GRADIENTS if step.backend == "hopper"]
SHAPES = [
    problem(batch=1, heads=2, kv_heads=1, seq_len_q=330, seq_len_kv=200, head_dim=64),
    problem(batch=1, heads=1, seq_len_q=130, seq_len_kv=700, head_dim=128),
    problem(batch=1, heads=2, seq_len_q=400, seq_len_kv=300, head_dim=128, causal=False),
    problem(batch=1, heads=2, kv_heads=1, seq_len_q=200, seq_len_kv=150, head_dim=256),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda p: p.slug)
@pytest.mark.parametrize("step", HOPPER, ids=lambda s: s.name)
def test_no_schedule_brings_a_mistake_to_light(step, shape):
    if reason := step.unsupported(shape, "cpu"):
        pytest.skip(reason)
    examination = Examination(step, shape, 0)
    for seed in (None, *range(1, 12)):
        wrong, _, _ = examination.under(seed)
        assert not wrong, (seed, wrong)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("step", HOPPER, ids=lambda s: s.name)
def test_products_stay_under_way_in_the_machine_code(step, head_dim):
    """Where ptxas cannot prove an order it waits behind every instruction of a product."""
    shape = standard(head_dim=head_dim, causal=True)
    if reason := step.unsupported(shape, "sm_90"):
        pytest.skip(reason)
    sass = str(step.compile(shape).sass)
    assert len(re.findall(r"\bWARPGROUP.DEPBAR", sass)) < len(re.findall(r"\bHGMMA", sass)) / 2


def test_what_a_step_adds_is_as_it_says():
    """The instructions that add dQ: of pairs, of fours, by TMA."""
    for name, instruction in (("under_way", "F32x2"), ("fours", "F32x4"), ("reduction", "UTMAREDG")):
        sass = str(get_step(name).compile(standard(causal=True)).sass)
        found = {one for one in ("F32x2", "F32x4", "UTMAREDG") if one in sass}
        assert found == {instruction}
