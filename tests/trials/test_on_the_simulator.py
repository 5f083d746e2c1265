"""Trials on Hopper's kernels are right under many latencies, before they are tried on a GPU."""

import secrets

import pytest
import torch

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
@pytest.mark.parametrize("name", ["keys_first", "held_query"])
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
