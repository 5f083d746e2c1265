"""The producer that asks for the next keys first: right under many latencies, whatever the rest of the kernel does."""

import dataclasses
import secrets

import pytest
import torch

from steps import get_step
from tests.core.test_steps import accuracy_of
from tests.shapes import problem
from tutorial_lib.passes import FORWARD
from tutorial_lib.simulator.run import watched

SHAPES = [
    problem(batch=1, heads=2, seq_len_q=300, seq_len_kv=700, head_dim=128),
    problem(batch=1, heads=3, seq_len_q=1, seq_len_kv=1, head_dim=128),
    problem(batch=1, heads=2, seq_len_q=500, seq_len_kv=500, head_dim=64, causal=False),
    problem(batch=1, heads=2, kv_heads=1, seq_len_q=300, seq_len_kv=300, head_dim=256, dtype="bfloat16"),
]


def keys_first(name: str):
    step = get_step(name)
    return dataclasses.replace(step, roles=dataclasses.replace(step.roles, keys_first=True))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda p: p.slug)
@pytest.mark.parametrize("name", ["producer", "ping_pong", "overlap", "linked", "at_maxima", "diagonal_first"])
def test_it_computes_the_same_under_every_latency(name, shape):
    step, plain = keys_first(name), get_step(name)
    accuracy = accuracy_of(step, shape, "cpu")
    assert accuracy.correct, accuracy.explain()
    q, k, v = FORWARD.inputs(shape, secrets.randbits(32))
    expected = plain.attention(q, k, v, shape.causal)
    for seed in range(4):
        with watched(seed) as watch:
            assert torch.equal(step.attention(q, k, v, shape.causal), expected)
        assert not watch.runs[0].found


def test_consumers_wait_less_for_keys_on_the_simulator():
    """What the trial is for, and why it is worth a measurement: simulated, a block takes fewer clocks."""
    shape = problem(batch=1, heads=3, seq_len_q=1024, seq_len_kv=1024, head_dim=128)
    q, k, v = FORWARD.inputs(shape, 0)
    clocks = []
    for step in (get_step("at_maxima"), keys_first("at_maxima")):
        with watched() as watch:
            step.attention(q, k, v, True)
        clocks.append(sum(watch.runs[0].clocks.values()))
    assert clocks[1] < 0.95 * clocks[0]
