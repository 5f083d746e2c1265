"""Searches and trials: what is recorded is what steps and chapters use, and bad requests get one line."""

import dataclasses
import json

import pytest

from steps import get_step, lesson, search, tiles, trials
from steps.run import RESULTS
from tests.shapes import problem
from tests.test_steps import accuracy_of
from tutorial_lib.display import Page
from tutorial_lib.problem import Problem
from tutorial_lib.results import recorded_searches

RECORDED = recorded_searches(RESULTS)
TRIED = [
    problem(),
    problem(causal=False, seq_len_q=300, seq_len_kv=384),  # whole tiles of 128 keys, of which a block has several
    problem(causal=False, seq_len_q=129, seq_len_kv=129, head_dim=128, dtype="bfloat16"),
    problem(kv_heads=2, seq_len_q=200, seq_len_kv=77),
    problem(scale=-0.3, causal=False, seq_len_q=90, seq_len_kv=90),
]
PROBLEM = Problem(batch=4, heads=32, seq_len_q=4096, seq_len_kv=4096, head_dim=64)


def text_of(page: Page) -> str:
    return "\n".join(part for part in page.parts if isinstance(part, str))


def test_the_space_holds_every_combination_once():
    found = search.space()
    assert len(set(found)) == len(found)
    assert {(c.query, c.key) for c in found} == set(search.TILES)
    assert {(c.warps, c.cluster) for c in found} == set(search.TOGETHER)


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda s: s.machine["slug"])
def test_a_recorded_search_is_of_the_whole_space_in_order(recorded):
    for searched in recorded.searched:
        times = [found.microseconds for found in searched.found]
        assert times == sorted(times)
        asked = {found.configuration.label for found in searched.found} | set(searched.failed)
        assert asked == {c.label for c in search.space()}
        for found in searched.found:
            assert found.tflops == pytest.approx(searched.the_problem().flops / found.microseconds / 1e6)


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda s: s.machine["slug"])
def test_the_tiles_of_steps_2_to_7_are_the_best_of_their_kind(recorded):
    """Four warps, no cluster, step 6's two blocks an SM: no other tile is more than 1 % faster."""
    for searched in recorded.searched:
        kind = [
            found
            for found in searched.found
            if (found.configuration.warps, found.configuration.cluster, found.configuration.occupancy)
            == (None, None, 2)
        ]
        used = tiles.tile_for(recorded.machine["arch"], searched.problem["head_dim"])
        [ours] = [f for f in kind if (f.configuration.query, f.configuration.key) == (used.query, used.key)]
        assert ours.microseconds <= 1.01 * kind[0].microseconds


def test_the_step_that_was_found_is_the_fastest_of_the_record():
    step = get_step("found")
    configured = step.configured(PROBLEM, "sm_90")
    [searched] = [
        s
        for s in tiles.recorded_search("sm_90").searched
        if (s.problem["head_dim"], s.problem["causal"]) == (PROBLEM.head_dim, PROBLEM.causal)
    ]
    best = min(searched.found, key=lambda found: found.microseconds).configuration
    assert (configured.tile.query, configured.tile.key) == (best.query, best.key)
    assert (configured.warps, configured.cluster, configured.occupancy) == (best.warps, best.cluster, best.occupancy)


def test_where_nothing_was_searched_the_step_is_the_one_before():
    step = get_step("found")
    assert step.configured(PROBLEM, "sm_80").holes() == step.previous.holes()
    assert tiles.recorded_search("sm_80") is None
    assert "No search is recorded" in text_of(lesson.searched(64, True, arch="sm_80"))


def test_a_chapter_shows_the_search():
    text = text_of(lesson.searched(128, True))
    assert RECORDED[0].day in text and "cluster of 2" in text


@pytest.mark.parametrize("trial", trials.TRIALS, ids=lambda t: t.name)
def test_a_trial_begins_with_the_step_as_it_is(trial):
    first, *others = trial.steps()
    assert first.holes() == get_step(trial.step).holes()
    for value, step in zip(list(trial.values.values())[1:], others, strict=True):
        assert step.changed_holes() == {trial.hole: (getattr(first, trial.hole), value)}


@pytest.mark.parametrize("shape", TRIED, ids=lambda p: p.slug)
@pytest.mark.parametrize(
    ("name", "hole"), [("stay", "ahead"), ("stay", "alternating"), ("stay", "apart"), ("one_loop", "apart")]
)
def test_what_was_tried_in_cutile_is_right(name, hole, shape):
    step = dataclasses.replace(get_step(name), **{hole: True})
    accuracy = accuracy_of(step, shape)
    assert accuracy.correct, accuracy.explain()


def test_alternating_walks_backwards_where_there_is_no_mask():
    step = dataclasses.replace(get_step("stay"), alternating=True)
    assert step.variant(problem(causal=False, seq_len_kv=256), "cpu").alternating
    assert not step.variant(problem(causal=True), "cpu").alternating
    assert not step.variant(problem(causal=False, seq_len_kv=100), "cpu").alternating


@pytest.mark.parametrize("trial", trials.TRIALS, ids=lambda t: t.name)
def test_recorded_trials_hold_speed_and_error_of_every_value(trial):
    runs = trials.recorded_trial(trial)
    assert {run.the_problem() for run in runs} == set(trial.problems)
    for run in runs:
        tried = [m for m in run.steps if m.number]
        assert [m.name for m in tried] == [step.name for step in trial.steps()]
        assert all(m.correct and m.tflops and m.max_error and m.reference_error for m in tried)


def test_requests_that_make_no_sense_get_one_line(capsys, tmp_path):
    assert trials.main(["polynomail", "--output-dir", str(tmp_path)]) == 2
    assert (
        "trial must be one of: polynomial, lazy, late_wait, ahead, alternating; got 'polynomail'"
        in capsys.readouterr().err
    )
    assert search.main(["--seq-len", "0"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_trial_that_nobody_recorded_says_how_to(monkeypatch):
    monkeypatch.setattr(lesson, "recorded_trial", lambda trial: [])
    assert "python -m steps.trials lazy" in text_of(lesson.trial("lazy"))


def test_files_of_others_are_passed_over(tmp_path):
    folder = tmp_path / "machine" / "trials" / "lazy"
    folder.mkdir(parents=True)
    (folder / "notes.json").write_text(json.dumps({"schema": 9}))
    assert trials.recorded_trial(trials.get_trial("lazy"), tmp_path) == []


def test_a_search_of_another_schema_is_passed_over(tmp_path):
    (tmp_path / "machine").mkdir()
    (tmp_path / "machine" / "search.json").write_text(json.dumps({"schema": 9}))
    assert recorded_searches(tmp_path) == []


def test_a_problem_that_nothing_runs_is_one_line(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("tutorial_lib.hardware.has_gpu", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device=None: (9, 0))
    reason = "OutOfMemoryError: far too long"
    monkeypatch.setattr(search, "compile_all", lambda asked: [dict.fromkeys(search.space(), reason) for _ in asked])
    monkeypatch.setattr("tutorial_lib.hardware.describe_machine", lambda device: {"slug": "machine"})
    assert search.main(["--output-dir", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and f"no configuration runs; the first says {reason}" in error
    assert list(tmp_path.iterdir()) == []
