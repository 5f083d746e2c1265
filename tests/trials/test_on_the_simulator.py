"""Trials on Hopper's kernels are right under many latencies, before they are tried on a GPU."""

import secrets

import pytest
import torch

from steps import get_step
from steps.trials import get_trial
from tests.core.test_steps import accuracy_of
from tests.shapes import problem
from tutorial_lib.passes import FORWARD
from tutorial_lib.simulator.run import watched

SHAPES = [
    problem(batch=1, heads=2, seq_len_q=300, seq_len_kv=700, head_dim=128),
    problem(batch=1, heads=3, seq_len_q=1, seq_len_kv=1, head_dim=128),
    problem(batch=1, heads=2, seq_len_q=500, seq_len_kv=500, head_dim=64, causal=False),
    problem(batch=1, heads=2, kv_heads=1, seq_len_q=300, seq_len_kv=300, head_dim=64, dtype="bfloat16"),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda p: p.slug)
@pytest.mark.parametrize("name", ["keys_first", "held_query", "taken"])
def test_it_computes_the_same_under_every_latency(name, shape):
    plain, changed = get_trial(name).steps(shape)
    accuracy = accuracy_of(changed, shape, "cpu")
    assert accuracy.correct, accuracy.explain()
    q, k, v = FORWARD.inputs(shape, secrets.randbits(32))
    expected = plain.attention(q, k, v, shape.causal)
    for seed in range(4):
        with watched(seed) as watch:
            assert torch.equal(changed.attention(q, k, v, shape.causal), expected)
        assert not watch.runs[0].found


@pytest.mark.parametrize("shape", SHAPES, ids=lambda p: p.slug)
def test_blocks_that_run_at_once_take_every_tile_once(shape):
    """The counter is back where it began when the last block has ended, so that the next launch can count on it."""
    _, step = get_trial("taken").steps(shape)
    q, k, v = FORWARD.inputs(shape, secrets.randbits(32))
    expected = get_step("at_maxima").attention(q, k, v, shape.causal)
    for seed in range(2):
        launch = step.make_ready(shape, q, k, v, None)
        for _ in range(2):
            out = torch.full_like(q, float("nan"))
            with watched(seed, at_once=3) as watch:
                launch(q, k, v, out)
            assert torch.equal(out, expected)
            assert not watch.runs[0].found and len(watch.runs[0].clocks) <= 3


def test_consumers_wait_less_for_keys_on_the_simulator():
    """Why the trial was worth a measurement: simulated, a block takes fewer clocks."""
    shape = problem(batch=1, heads=3, seq_len_q=1024, seq_len_kv=1024, head_dim=128)
    q, k, v = FORWARD.inputs(shape, 0)
    clocks = []
    for step in get_trial("keys_first").steps(shape):
        with watched() as watch:
            step.attention(q, k, v, True)
        clocks.append(sum(watch.runs[0].clocks.values()))
    assert clocks[1] < 0.95 * clocks[0]
