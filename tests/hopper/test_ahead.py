"""Step next_softmax_first: right for the problems that it is for, which asks for more queries than other tests have."""

import dataclasses
import secrets

import pytest

from steps import get_step
from steps.core.problems import standard
from steps.hopper import ahead, epilogue_overlap
from steps.hopper.products import QUARTER_HELD
from steps.hopper.softmax import UPWARDS
from tests.checking import asked, faults
from tests.core.test_steps import with_log_sum_exp
from tests.shapes import problem
from tutorial_lib.accuracy import compare

STEP = get_step("next_softmax_first")
SHAPES = [
    problem(batch=1, heads=1, seq_len_q=2048, seq_len_kv=500, head_dim=128),
    problem(batch=1, heads=2, kv_heads=1, seq_len_q=2050, seq_len_kv=130, head_dim=128, dtype="bfloat16", scale=-0.3),
    problem(batch=2, heads=1, seq_len_q=2177, seq_len_kv=1, head_dim=80),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda p: p.slug)
def test_output_and_log_sum_exp_are_right(shape):
    assert STEP.variant(shape).consume is ahead.consume
    assert not faults(STEP, shape, secrets.randbits(16))
    of = asked("forward", shape)
    accuracy = compare(with_log_sum_exp(STEP, of), *of.exact, *of.allowed)
    assert accuracy.correct, accuracy.explain()


def test_a_block_with_one_tile_of_queries_is_right(monkeypatch):
    monkeypatch.setattr("steps.core.order.processors", lambda device: 20)
    assert not faults(STEP, SHAPES[0], 4)


def told(step, shape) -> tuple[bool, bool]:
    """Whether the softmax runs ahead, and whether a quarter of Q stays in registers."""
    return step.variant(shape).consume is ahead.consume, step.variant(shape).queries is QUARTER_HELD


def test_where_it_runs_and_where_it_does_not():
    def runs(*args, **changes):
        return told(STEP, dataclasses.replace(standard(*args), **changes))

    assert runs(4096, 128, True) == runs(2048, 128, True) == (True, True)
    assert runs(4096, 128, False) == (False, True)  # in pairs
    assert runs(1024, 128, True) == runs(1024, 128, False) == runs(8192, 128, True) == (False, False)
    assert not any(any(runs(4096, head_dim, True)) for head_dim in (32, 64, 256))
    assert told(STEP.taking_tiles(), standard(4096, 128, True)) == (False, False)


def test_the_step_before_has_the_quarter_and_not_the_softmax():
    assert told(get_step("quarter_q_registers"), standard(4096, 128, True)) == (False, True)


@pytest.mark.parametrize("changes", [{"pairs": True}, {"in_pieces": True}])
def test_what_the_softmax_ahead_does_not_take(changes):
    step = dataclasses.replace(STEP, walk=UPWARDS, **changes)
    assert step.variant(standard(4096, 128, True)).consume is epilogue_overlap.consume


@pytest.mark.parametrize("feature", [{"window": 100}, {"softcap": 5.0}])
def test_it_sees_all_keys_as_they_are(feature):
    step = dataclasses.replace(STEP, takes=("window", "softcap"))
    assert step.variant(dataclasses.replace(standard(4096, 128, True), **feature)).consume is epilogue_overlap.consume
