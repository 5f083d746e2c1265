"""Trials: versions of a step's kernel outside the skeletons: right, compiled, recorded; the polynomial's numbers."""

import json
import re
import struct

import pytest
import torch

from steps import get_step, summary
from steps.once import named
from steps.trials import __main__ as command
from steps.trials import ahead, all_trials, alternating, get_trial, recorded_trial
from steps.trials import polynomial as exponential
from steps.writing.functions import with_functions
from tests.core.test_steps import accuracy_of
from tests.selection import sampled
from tests.shapes import problem
from tutorial_lib.files import RESULTS
from tutorial_lib.passes import PASSES

TRIALS = list(all_trials().values())
TRIED = [  # whole tiles without a mask, as their functions are for; a block of the interpreter has several
    problem(causal=False, seq_len_q=300, seq_len_kv=384),
    problem(causal=False, seq_len_q=200, seq_len_kv=256, head_dim=128, dtype="bfloat16"),
    problem(causal=False, kv_heads=2, scale=-0.3),
]


def by_polynomial(x: torch.Tensor) -> torch.Tensor:
    """What the PTX computes, operation for operation, in float32."""
    x = torch.maximum(x, torch.tensor(exponential.LEAST))
    whole = torch.round(x)
    *lower, highest = exponential.coefficients()
    p = torch.full_like(x, float(highest))
    for c in reversed(lower):
        p = p * (x - whole) + float(c)
    return torch.ldexp(p, whole.int())


def test_it_errs_less_than_rounding_to_16_bits():
    x = torch.linspace(-100, 8, 1_000_001)
    relative = (by_polynomial(x).double() / torch.exp2(x.double()) - 1).abs().max()
    assert relative < 2.0**-12  # float16 rounds by up to 2^-11 of a number, bfloat16 by up to 2^-8


def test_what_a_mask_hides_weighs_next_to_nothing():
    assert 0 <= by_polynomial(torch.tensor(float("-inf"))) < 1e-37


@pytest.mark.parametrize("share", [0, 1, 3, exponential.PACK])
def test_the_ptx_holds_the_coefficients_and_the_share(share):
    text = exponential.ptx(share)
    assert text.count("ex2.approx") == exponential.PACK - share
    constants = [struct.unpack(">f", bytes.fromhex(h))[0] for h in re.findall(r"0f([0-9A-F]{8})", text)]
    for c in exponential.coefficients():
        assert constants.count(torch.tensor(float(c)).item()) == share
    assert exponential.CONSTRAINTS.count("=&f") == exponential.PACK


@sampled(core=lambda trial: trial.name in ("alternating", "held_query", "late_wait"))  # cuTile, Gluon, another base
@pytest.mark.parametrize("trial", TRIALS, ids=lambda t: t.name)
def test_a_version_that_changes_nothing_is_the_step_and_the_others_are_not(trial):
    shape = trial.problems[0]
    base, versions = get_step(trial.base).compile(shape).code, [s.compile(shape).code for s in trial.steps(shape)]
    unchanged = 0 if trial.name == "late_wait" else 1  # both of its versions leave the wait of the step out
    assert versions.count(base) == unchanged and len(set(versions)) == len(versions)


@pytest.mark.parametrize("trial", TRIALS, ids=lambda t: t.name)
def test_every_version_stands_among_the_steps_of_its_record(trial):
    """Also where the trial is of a variant, which has no number itself."""
    for step in trial.steps(trial.problems[0]):
        assert step.number is not None and step.inside is None, step.name


@sampled(core=lambda shape: shape is TRIED[0])
@pytest.mark.parametrize("shape", TRIED, ids=lambda p: p.slug)
@pytest.mark.parametrize("trial", [ahead, alternating], ids=lambda t: t.TRIAL.name)
def test_what_was_tried_in_cutile_is_right(trial, shape):
    functions = ahead.functions(shape) if trial is ahead else alternating.FUNCTIONS
    step = with_functions(get_step("persistent"), shape, functions, "cpu")
    accuracy = accuracy_of(step, shape)
    assert accuracy.correct, accuracy.explain()


@sampled(core=lambda shape: shape is TRIED[2])
@pytest.mark.parametrize("shape", TRIED, ids=lambda p: p.slug)
def test_the_polynomial_in_cutile_is_right(shape):
    for step in get_trial("published_cutile").steps(shape):
        accuracy = accuracy_of(step, shape)
        assert accuracy.correct, accuracy.explain()


def test_the_polynomial_takes_the_units_of_the_exponentials_less():
    """Neither for exponentials nor for conversions, which the same unit does."""
    trial = get_trial("published_cutile")
    loops = [step.compile(trial.problems[0]).hot_loop for step in trial.steps(trial.problems[0])]
    exponentials = loops[0]["MUFU"] - 2  # two are corrections
    assert [loop["MUFU"] for loop in loops] == [2 + exponentials * share for share in (1, 0.75, 0.5)]
    assert len({loop["conversion"] for loop in loops}) == 1


def test_a_version_of_a_trial_runs_by_its_name():
    """Where counters are read, in the order in which everybody is named."""
    trial = get_trial("polynomial")
    found = named("exp2,polynomial_12.5,2-3,held_query_on", trial.problems[0])
    assert [step.name for step in found] == ["exp2", "polynomial_12.5", "mma", "exp2", "held_query_on"]
    assert found[1].compile(trial.problems[0]).code == trial.steps(trial.problems[0])[1].compile(trial.problems[0]).code
    with pytest.raises(ValueError, match="polynomial_13"):
        named("polynomial_13", trial.problems[0])


RECORDED = [trial for trial in TRIALS if recorded_trial(trial, RESULTS)]


@pytest.mark.parametrize("trial", RECORDED, ids=lambda t: t.name)
def test_recorded_trials_hold_speed_and_error_of_every_value(trial):
    runs = recorded_trial(trial, RESULTS)
    assert {run.the_problem() for run in runs} == set(trial.problems)
    for run in runs:
        tried = [m for m in run.steps if m.name != PASSES[run.direction].baseline]
        assert [m.name for m in tried] == trial.names
        assert all(m.tflops for m in tried)
        assert not trial.right or all(m.correct and m.max_error and m.reference_error for m in tried)


def test_a_trial_that_is_not_there_gets_one_line(capsys, tmp_path):
    assert command.main(["polynomail", "--output-dir", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "did you mean polynomial?" in error and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["published", "published_cutile"])
def test_a_trial_over_shares_is_shown_with_counters(name):
    text = "".join(map(str, summary.shares(name).parts))
    assert text.count(" vs 0 %") == len(get_trial(name).values) - 1 and "MUFU busy" in text
    assert "| B=4 H=16 S=4096 D=256 bf16 causal |" in text


def test_a_trial_that_nobody_recorded_says_how_to(monkeypatch):
    monkeypatch.setattr(summary, "recorded_trial", lambda trial, results: [])
    assert "python -m steps.trials lazy" in "".join(map(str, summary.trial("lazy").parts))


def test_files_of_others_are_passed_over(tmp_path):
    folder = tmp_path / "machine" / "trials" / "lazy"
    folder.mkdir(parents=True)
    (folder / "notes.json").write_text(json.dumps({"schema": 9}), encoding="utf-8")
    assert recorded_trial(get_trial("lazy"), tmp_path) == []
