"""Trials: versions of a step's kernel outside the skeletons: right, compiled, recorded; the polynomial's numbers."""

import json
import re
import struct

import pytest
import torch

from steps import get_step, summary
from steps.once import named
from steps.trials import all_trials, get_trial, recorded_trial
from steps.trials import polynomial as exponential
from tests.selection import sampled
from tutorial_lib.files import RESULTS
from tutorial_lib.passes import PASSES

TRIALS = list(all_trials().values())


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


@sampled(core=lambda trial: trial.name in ("held_query", "late_wait"))  # and another base
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


def test_a_trial_that_nobody_recorded_says_how_to(monkeypatch):
    monkeypatch.setattr(summary, "recorded_trial", lambda trial, results: [])
    assert "python -m steps.trials lazy" in "".join(map(str, summary.trial("lazy").parts))


def test_files_of_others_are_passed_over(tmp_path):
    folder = tmp_path / "machine" / "trials" / "lazy"
    folder.mkdir(parents=True)
    (folder / "notes.json").write_text(json.dumps({"schema": 9}), encoding="utf-8")
    assert recorded_trial(get_trial("lazy"), tmp_path) == []
