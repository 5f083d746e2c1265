"""Training with the steps: it learns, as it does with PyTorch's attention; and what is recorded is shown."""

from dataclasses import replace

import pytest
import torch

from steps import get_step, summary, train
from steps.measuring import training
from tutorial_lib.files import write_whole
from tutorial_lib.records import SCHEMA, Training, TrainingTime, recorded_trainings
from tutorial_lib.results import as_json

SMALL = training.Size(layers=1, heads=2, kv_heads=1, head_dim=32, seq_len=48, batch=8, vocabulary=8, learning_rate=3e-3)


def test_most_tokens_follow_from_the_one_two_before():
    size = training.Size(batch=64)
    tokens = training.made_up(size, torch.Generator().manual_seed(0))
    assert tokens.shape == (64, size.seq_len + 1)
    expected = (5 * tokens[:, :-2] + 1) % size.vocabulary
    share = (tokens[:, 2:] == expected).double().mean().item()
    assert share == pytest.approx(1 - size.surprises * (1 - 1 / size.vocabulary), abs=0.01)


def test_the_floor_is_the_entropy_of_a_token():
    size = training.Size(vocabulary=4, surprises=0.5)
    chances = torch.tensor([0.625, 0.125, 0.125, 0.125], dtype=torch.float64)
    assert size.floor == pytest.approx(torch.distributions.Categorical(chances).entropy().item())


def test_a_model_learns_and_other_weights_give_another_curve():
    curve = training.losses(training.by_sdpa, SMALL, 60, 0, "cpu")
    assert len(curve) == 60 and curve[-1] < 0.8 * curve[0]
    assert curve[:3] == training.losses(training.by_sdpa, SMALL, 3, 0, "cpu")
    assert curve[:3] != training.losses(training.by_sdpa, SMALL, 3, 1, "cpu")


@pytest.mark.parametrize(
    ("forward", "backward"), [("pv_wait_after_max", "decoupled_warpgroups"), ("exp2", "mask_loops")]
)
def test_with_the_steps_the_loss_is_that_of_sdpa(forward, backward):
    """To what rounding changes; with gradients that are wrong it is not."""
    ours = training.by_steps(get_step(forward), get_step(backward))
    mine, right = (training.losses(attention, SMALL, 4, 0, "cpu") for attention in (ours, training.by_sdpa))
    assert mine == pytest.approx(right, abs=3e-3) and mine != right

    class Wrong:
        @staticmethod
        def gradients(q, k, v, o, lse, do, causal):
            dq, dk, dv = get_step(backward).gradients(q, k, v, o, lse, do, causal)
            return -dq, dk, dv.zero_()

    broken = training.losses(training.by_steps(get_step(forward), Wrong), SMALL, 4, 0, "cpu")
    assert max(abs(a - b) for a, b in zip(broken, right, strict=True)) > 3e-3


@pytest.fixture
def recorded(tmp_path):
    """A folder with a record."""
    curves = {"SDPA": [4.0, 2.0, 1.0], "steps": [4.0, 2.0, 1.5], train.OTHERS: [4.1, 2.2, 1.1]}
    shape = {"batch": 1, "heads": 2, "seq_len_q": 64, "seq_len_kv": 64, "head_dim": 64}
    record = Training(
        schema=SCHEMA,
        date="2026-11-23T10:00:00+00:00",
        machine={"name": "A GPU", "slug": "gpu"},
        versions={},
        forward="pv_wait_after_max",
        backward="decoupled_warpgroups",
        size={},
        floor=0.9,
        losses=curves,
        timed=[
            TrainingTime(
                problem=shape,
                steps=["a", "b"],
                front_door=False,
                milliseconds={"SDPA": [2.0, 2.0, 2.2], "steps": [1.0, 1.0, 1.1]},
            )
        ],
    )
    write_whole(tmp_path / "gpu" / "training.json", as_json(record))
    return tmp_path


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr("tutorial_lib.hardware.has_gpu", lambda: False)


def test_a_record_is_shown(no_gpu, recorded, capsys):
    assert [one.floor for one in recorded_trainings(recorded)] == [0.9]
    assert train.main(["--output-dir", str(recorded)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "There is no GPU here. Recorded:" in said and "steps 1.5000" in said and "2.00× (2.00–2.00)" in said
    assert "the steps themselves" in said
    page = summary.training(recorded)
    assert len(page.parts) == 4 and "decoupled_warpgroups" in page.parts[0]


def test_a_chapter_says_how_to_record_one(tmp_path):
    assert "python -m steps.train" in summary.training(tmp_path).parts[0]


def test_steps_that_do_not_fit_are_refused():
    from tutorial_lib.command import BadRequest
    from tutorial_lib.problem import Problem

    shape = Problem(batch=1, heads=2, seq_len_q=64, seq_len_kv=64, head_dim=64)
    assert train.asked("pv_wait_after_max", "forward", shape, "sm_90").name == "pv_wait_after_max"
    assert train.asked("best", "backward", shape, "sm_90").direction == "backward"
    for name, direction, told in (
        ("nothing", "forward", "argument --forward: no step nothing"),
        ("pv_wait_after_max", "backward", "must be a step of the backward pass, got 206 pv_wait_after_max"),
        ("decoupled_warpgroups", "backward", "made of wgmma"),
    ):
        with pytest.raises(BadRequest, match=told):
            train.asked(name, direction, shape, "sm_80")


def test_the_front_door_is_timed_only_where_it_takes_the_steps(monkeypatch):
    from steps.core import attention as front
    from steps.core.problems import HEADLINE

    pair = front.Training(get_step("pv_wait_after_max"), get_step("decoupled_warpgroups"))
    monkeypatch.setattr(front, "training", lambda problem, target: pair)
    monkeypatch.setattr(front, "_trains", lambda problem, target: True)
    assert front.with_gradients(HEADLINE, "sm_90") == pair
    assert front.with_gradients(replace(HEADLINE, softcap=50.0), "sm_90").backward.name == "deferred_reduce_add"
    assert front.with_gradients(replace(HEADLINE, head_dim=72), "sm_90") == pair
    assert front.with_gradients(replace(HEADLINE, head_dim=71), "sm_90") is None
    monkeypatch.setattr(front, "_trains", lambda problem, target: False)
    assert front.with_gradients(HEADLINE, "sm_90") is None
