"""Gradients under a sliding window and a soft cap, in cuTile: right, and not computed where nobody sees a key."""

import secrets
from dataclasses import replace

import pytest
import torch

import steps
from steps import GRADIENTS, get_step
from steps.backward_cutile.skeleton import CuTileGradients
from steps.core import attention as front
from steps.core.gradients import tiles_visited
from steps.core.problems import standard
from steps.core.step import Unsupported
from steps.core.tiles import Tile
from tests.checking import assert_right
from tests.shapes import problem
from tutorial_lib.passes import BACKWARD, FORWARD

CUTILE = [step for step in GRADIENTS if isinstance(step, CuTileGradients)]
BEST = get_step("two_blocks")
SHAPES = [
    problem(head_dim=64, batch=1, heads=2, seq_len_q=200, seq_len_kv=200, window=70),
    problem(head_dim=64, batch=1, heads=4, kv_heads=2, seq_len_q=257, seq_len_kv=257, window=1, dtype="bfloat16"),
    problem(head_dim=64, batch=1, heads=2, kv_heads=1, seq_len_q=150, seq_len_kv=300, window=128, sinks=True),
    problem(head_dim=128, batch=1, heads=2, seq_len_q=130, seq_len_kv=70, window=65, scale=-0.2),
    problem(head_dim=64, batch=1, heads=2, seq_len_q=200, seq_len_kv=200, window=100, softcap=5.0),
    problem(head_dim=128, batch=1, heads=2, causal=False, seq_len_q=70, seq_len_kv=130, softcap=2.0, dtype="bfloat16"),
    problem(head_dim=256, batch=1, heads=2, kv_heads=1, seq_len_q=130, seq_len_kv=130, softcap=50.0),
    problem(head_dim=64, batch=1, heads=2, seq_len_q=1, seq_len_kv=1, window=1, softcap=1.0, sinks=True),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda p: p.slug)
def test_the_best_step_is_right(shape):
    assert_right(BEST, shape)


@pytest.mark.parametrize("step", [step for step in CUTILE if step is not BEST], ids=lambda step: step.name)
@pytest.mark.parametrize("shape", [SHAPES[2], SHAPES[4]], ids=lambda p: p.slug)
def test_every_step_in_cutile_is_right(step, shape):
    assert_right(step, shape)


def test_tiles_outside_the_window_are_not_counted():
    shape, tile = problem(head_dim=64, batch=1, heads=1, kv_heads=1, seq_len_q=1024, seq_len_kv=1024), Tile(64, 64)
    assert tiles_visited(shape, tile) == 16 * 17 // 2
    assert tiles_visited(replace(shape, window=64), tile) == 2 * 16 - 1
    assert tiles_visited(replace(shape, window=65), tile) == 2 * 16 - 1
    assert tiles_visited(replace(shape, window=66), tile) == 3 * 16 - 3


def test_steps_for_other_gpus_refuse_them_by_name():
    q, k, v, o, lse, do, *_ = BACKWARD.inputs(SHAPES[0], 1)
    for name in ("transposed_scores", "formulas", "sdpa_gradients"):
        with pytest.raises(Unsupported, match="takes no sliding window"):
            get_step(name).gradients(q, k, v, o, lse, do, True, window=70)
        with pytest.raises(Unsupported, match="takes no soft cap"):
            get_step(name).gradients(q, k, v, o, lse, do, True, softcap=5.0)
    with pytest.raises(ValueError, match="window must be"):
        BEST.gradients(q, k, v, o, lse, do, True, window=0)
    with pytest.raises(ValueError, match="softcap must be"):
        BEST.gradients(q, k, v, o, lse, do, True, softcap=-1.0)


@pytest.mark.parametrize("shape", [SHAPES[2], SHAPES[4]], ids=lambda p: p.slug)
def test_the_front_door_takes_its_gradients_from_the_step(shape, monkeypatch):
    """As it does on a GPU; on the CPU it is the interpreter that computes them here."""
    q, k, v, _, _, do, *sinks = BACKWARD.inputs(shape, secrets.randbits(32))
    more = FORWARD.asked(shape, sinks)
    asked = []
    monkeypatch.setattr(front, "_backward_of_more", lambda *given: asked.append(given) or BEST)
    leaves = [x.requires_grad_() for x in (q, k, v, *sinks)]
    o = steps.attention(q, k, v, True, **more)
    made = torch.autograd.grad(o, leaves, do)
    exact = BACKWARD.reference(shape, (*(x.detach() for x in (q, k, v)), None, None, do, *sinks))
    for mine, true in zip(made, exact, strict=True):
        assert (mine.double() - true).abs().max() < 0.02 * true.abs().max()
    assert asked == [(shape, "cpu", False)]


def test_which_gradients_are_a_steps():
    masked = replace(standard(causal=True, dtype="bfloat16"), window=128)
    for shape in (masked, replace(masked, window=None, softcap=50.0), replace(masked, sinks=True)):
        assert isinstance(front.with_gradients(shape, "sm_90").backward, CuTileGradients)
        assert front.with_gradients(shape, "sm_80") is None  # nothing is recorded there
    sinks = front.with_gradients(replace(masked, window=None, sinks=True), "sm_90")
    assert sinks.backward.backend == "hopper" and "sinks" in sinks.backward.takes
    assert front.with_gradients(replace(masked, head_dim=71), "sm_90") is None
