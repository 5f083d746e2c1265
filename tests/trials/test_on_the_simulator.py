"""Trials on Hopper's kernels are right under many latencies, before they are tried on a GPU."""

import secrets

import pytest
import torch

from steps import get_step
from steps.trials import get_trial, warp_vote
from tests.checking import assert_right, faults
from tests.selection import sampled
from tests.shapes import problem
from tutorial_lib import layouts
from tutorial_lib.passes import FORWARD
from tutorial_lib.simulator.run import watched

SHAPES = [
    problem(batch=1, heads=2, seq_len_q=300, seq_len_kv=700, head_dim=128),
    problem(batch=1, heads=3, seq_len_q=1, seq_len_kv=1, head_dim=128),
    problem(batch=1, heads=2, seq_len_q=500, seq_len_kv=500, head_dim=64, causal=False),
    problem(batch=1, heads=2, kv_heads=1, seq_len_q=300, seq_len_kv=300, head_dim=64, dtype="bfloat16"),
]


def grouped(shape):
    """The shape of which every trial is tried."""
    return shape is SHAPES[3]


@sampled(core=grouped)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda p: p.slug)
@pytest.mark.parametrize("name", ["keys_first", "held_query", "taken"])
def test_it_computes_the_same_under_every_latency(name, shape):
    plain, changed = get_trial(name).steps(shape)
    assert_right(changed, shape, "cpu")
    q, k, v = FORWARD.inputs(shape, secrets.randbits(32))
    expected = plain.attention(q, k, v, shape.causal)
    for seed in range(4):
        with watched(seed) as watch:
            assert torch.equal(changed.attention(q, k, v, shape.causal), expected)
        assert not watch.runs[0].found


@sampled(core=grouped)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda p: p.slug)
def test_what_rounds_otherwise_is_right_under_every_latency(shape):
    for changed in get_trial("warp_vote").steps(shape)[1:]:
        assert_right(changed, shape, "cpu")
    for seed in range(4):
        assert not faults(changed, shape, seed)


def test_a_warp_rescales_where_a_maximum_grew_by_more_than_the_threshold():
    """One query of 64 meets a key that suits it in the last tile: its warp rescales, and the other three do not."""
    shape = problem(batch=1, heads=1, seq_len_q=64, seq_len_kv=512, head_dim=128, causal=False)
    q, k, v = FORWARD.inputs(shape, 0)
    k[:, :, 400] = 20 * q[:, :, 20] / q[:, :, 20].norm()
    q[:, :, :16], q[:, :, 32:] = 0, 0  # of the other warps: all their scores are 0
    q[:, :, 16:20], q[:, :, 21:32] = 0, 0
    inputs = (q, k, v)
    exact = FORWARD.reference(shape, inputs)
    always, *lazy = get_trial("warp_vote").steps(shape)
    halves = shape.head_dim // 64  # a vote is for as many registers as hold 64 columns
    for step in lazy:
        with watched() as watch:
            assert FORWARD.check(step, shape, inputs, exact, FORWARD.yardstick(shape, inputs, exact)).correct
        counts = watch.runs[0].counts
        assert counts["rescaled"] == halves and counts["left as it was"] > 3 * halves
    assert always.attention(*inputs).isfinite().all()


def test_of_four_registers_that_a_lane_has_two_are_of_one_row_and_two_of_another():
    """What the vote's text asks: its factors are those of these two rows."""
    variant = get_step("pv_wait_after_max").variant(SHAPES[0])
    registers, lanes, _ = layouts._bases(variant.output, [variant.rows, variant.head_dim])
    assert registers[:2] == [[0, 1], [8, 0]] and not any(row for row, _ in registers[2:])
    assert sorted(row for row, _ in lanes if row) == [1, 2, 4]  # with the other row, 16 of a warp
    text = warp_vote.ptx()
    assert text.count("mul.f32") == warp_vote.REGISTERS == warp_vote.OPERANDS.count("=f")


@sampled(core=grouped)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda p: p.slug)
def test_blocks_that_run_at_once_take_every_tile_once(shape):
    """The counter is back where it began when the last block has ended, so that the next launch can count on it."""
    _, step = get_trial("taken").steps(shape)
    q, k, v = FORWARD.inputs(shape, secrets.randbits(32))
    expected = get_step("pv_wait_after_max").attention(q, k, v, shape.causal)
    for seed in range(2):
        launch = step.make_ready(shape, q, k, v, torch.empty_like(q))
        for _ in range(2):
            out = torch.full_like(q, float("nan"))
            with watched(seed, at_once=3) as watch:
                launch(q, k, v, out)
            assert torch.equal(out, expected)
            assert not watch.runs[0].found and len(watch.runs[0].clocks) <= 3
