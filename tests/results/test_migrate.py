"""``python -m steps.migrate``: old records under today's names, with nothing lost and nothing made up."""

import json
import os
from dataclasses import replace

import pytest

from steps import INSIDE, STEPS, get_step
from steps.core.ladder import OLD_NUMBERS, part_of
from steps.core.problems import FULL, HEADLINE
from steps.migrate import main, migrate_run, old_name
from tests.results.made_up import run_of
from tests.results.recorded import HEADLINE as SLUG
from tests.results.recorded import PATHS, ROOT, of_schema_1, recorded
from tutorial_lib.results import read_run

AT_256 = replace(HEADLINE, heads=16, kv_heads=16, head_dim=256)


def old_run(problem=HEADLINE) -> dict:
    """A run of schema 1 of every step there once was; each is slower than the one before by its number in percent."""
    times = {name: 1 + number / 100 for number, name in enumerate(OLD_NUMBERS)}
    old = json.loads(run_of(times, problem=problem).model_dump_json(by_alias=True))
    del old["inside"], old["direction"]
    for m in old["steps"]:
        for field in ("file", "part", "fork", "inside"):
            del m[field]
        for field in ("speedup_vs_baseline", "speedup_vs_previous"):
            if m[field]:
                del m[field]["same_code"]
        m["resources"] = {"registers": 100, "instructions": 1000 + m["number"], "shared_bytes": 5}
        m["sm_clock_mhz"] = m["number"]
    return {**old, "schema": 1, "notes": ["The counters of steps 27 and 42 to 44 were read later, in 2 runs."]}


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (HEADLINE, {"room": "half_output", "lean_sum": "lean_sum", "late_wait": "late_wait"}),
        (FULL, {"room": "half_output", "lean_sum": "lean_sum", "late_wait": None}),
        (AT_256, {"room": "early_query", "lean_sum": None, "half_output": "half_output", "half_query": "half_query"}),
        (AT_256, {"late_wait": None, "three_groups": "turns", "third_group": "third_group", "exp2": "exp2"}),
        (HEADLINE, {"half_output": None, "half_query": None, "three_groups": "turns", "large_tile": "large_tile"}),
    ],
)
def test_every_step_takes_the_record_of_its_own_code(problem, expected):
    run, warnings = migrate_run(old_run(problem))
    assert not warnings
    for name, old in expected.items():
        m = run.measurement(name)
        assert old_name(name, problem) == old and (m is None) == (old is None)
        if m:
            assert m.sm_clock_mhz == OLD_NUMBERS.index(old)  # what was measured is that record's
            assert run.latencies(name) == run.latencies(old)
    assert {name for r in run.rounds for name in r.latency_ms} >= set(OLD_NUMBERS)  # nothing measured is lost


def test_the_ladder_says_what_a_record_is_of():
    run, _ = migrate_run(old_run())
    recorded = {m.name for m in run.steps}
    assert [m.name for m in run.steps] == [step.name for step in STEPS if step.name in recorded]
    assert {m.name for m in run.inside} == {"large_tile", "third_group", "late_wait"}
    for m in (*run.steps, *run.inside):
        step = get_step(m.name)
        assert (m.title, m.change, m.key_changes) == (step.title, step.change, step.key_changes())
        assert (m.fork, m.inside) == (step.fork, step.inside)
        assert (ROOT / m.file).exists() and m.previous == (step.previous.name if step.previous else None)
    assert run.measurement("large_tile").part == "cutile" and run.measurement("lean_sum").part == "appendix"
    assert run.notes == ["The counters of steps stay and mask_loop to counted were read later, in 2 runs."]


def test_a_step_is_compared_anew_with_todays_predecessor():
    old = old_run()
    run, _ = migrate_run(old)
    for m in (*run.steps, *run.inside):
        if m.previous:
            ratio = m.speedup_vs_previous
            before, mine = run.latencies(m.previous)[0], run.latencies(m.name)[0]
            assert ratio.median == pytest.approx(before / mine, rel=0.005)
    assert run.measurement("mask_loop").previous == "stay" and run.measurement("own_end").previous == "three_groups"
    without = {**old, "steps": [m for m in old["steps"] if m["name"] != "stay"]}
    run, _ = migrate_run(without)
    assert run.measurement("stay") is None
    assert run.measurement("mask_loop").speedup_vs_previous is None  # its latencies are there, its record is not
    assert run.measurement("apart").speedup_vs_previous


def test_a_fingerprint_is_taken_only_where_the_figures_are_those_recorded():
    number = OLD_NUMBERS.index
    codes = {
        f"mask_loop|{SLUG}": ["abc", 1000 + number("mask_loop"), 100, 5],
        f"apart|{SLUG}": ["abc", 1000 + number("apart"), 100, 5],
        f"three_groups|{SLUG}": ["def", 1000 + number("turns"), 100, 5],
        f"linked|{SLUG}": ["def", 1000 + number("linked"), 100, 6],
        "exp2|of_another_problem": ["abc", 0, 0, 0],
    }
    codes = {key: tuple(value) for key, value in codes.items()}
    run, warnings = migrate_run(old_run(), codes)
    assert run.measurement("apart").code == run.measurement("mask_loop").code == "abc"
    assert run.measurement("three_groups").code == "def"
    assert run.measurement("linked").code is run.measurement("exp2").code is None
    assert len(warnings) == 1 and warnings[0].startswith(f"linked, {SLUG}: [") and "no fingerprint" in warnings[0]
    slower = migrate_run(old_run())[0].measurement("mask_loop").speedup_vs_previous
    assert slower.verdict == "slower"  # by 15 %
    told = run.measurement("apart")
    assert told.speedup_vs_previous.same_code and told.verdict == "same code"


def _of_its_rounds(speedup) -> bool:
    """Whether schema 1 can hold the ratio: not one of earlier rounds, and not one of the same code."""
    return speedup is None or not (speedup.same_code or speedup.earlier)


@pytest.mark.parametrize("slug", [SLUG, "b4_h16_s4096_d256_fp16_causal", "b1_h8_s8192_d512_fp16_full"])
def test_a_real_record_keeps_all_that_was_measured(slug):
    """Written as schema 1 would have held it and migrated again, it is what it was, but for fingerprints."""
    run = recorded(slug)
    again, _ = migrate_run(of_schema_1(run))
    for m in (m for m in run.everybody if not m.earlier):
        other = again.measurement(m.name)
        for field in type(m).model_fields:
            if field == "resources" and m.resources:
                assert {**other.resources, "code": m.code} == {**m.resources, "code": m.code}
            elif field != "speedup_vs_previous" or _of_its_rounds(m.speedup_vs_previous):
                assert getattr(other, field) == getattr(m, field), (m.name, field)
    assert [m.name for m in again.everybody] == [m.name for m in run.everybody]
    assert again.ceiling == run.ceiling and again.settings == run.settings and again.date == run.date


def folder_of_schema_1(folder):
    """Two runs, a trial, a survey and a search, all of schema 1, and a file of somebody else's."""
    survey = {
        "schema": 1,
        "date": "2026-01-02",
        "compiler": "one",
        "problem": HEADLINE.as_dict(),
        "architectures": ["sm_90"],
        "steps": [f"{n} {name}" for n, name in enumerate(OLD_NUMBERS)],
        "compiled": {f"{n} {name}": {"sm_90": {"registers": n}} for n, name in enumerate(OLD_NUMBERS)},
    }
    search = {"schema": 1, "date": "2026-01-02", "machine": {"name": "A GPU"}, "versions": {}, "searched": []}
    trial = {**old_run(), "steps": old_run()["steps"][:1]}
    trial["steps"].append({**trial["steps"][0], "name": "late_wait", "number": 1})
    files = {
        "a-gpu/one/results.json": of_schema_1(recorded()),
        "a-gpu/two/results.json": old_run(),
        "a-gpu/trials/late_wait/one.json": trial,
        "a-gpu/search.json": search,
        "compiled/one/survey.json": survey,
        "a-gpu/other.json": {"schema": 1},
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content), encoding="utf-8")
    return [folder / name for name in files]


def contents(paths):
    return [path.read_bytes() for path in paths]


def test_the_command_rewrites_every_record_and_nothing_else(tmp_path, capsys):
    paths = folder_of_schema_1(tmp_path)
    one, two, trial, search, survey, other = paths
    before = contents(paths)
    assert main([str(tmp_path)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 6 and told[-1].startswith("5 records")
    assert other.read_bytes() == before[-1]
    assert read_run(one).measurement("exp2").tflops == recorded().measurement("exp2").tflops
    assert read_run(two) == migrate_run(json.loads(before[1]))[0]
    assert [(m.number, m.name, m.file) for m in read_run(trial).steps] == [(0, "sdpa", None), (1, "late_wait", None)]
    assert json.loads(search.read_text(encoding="utf-8"))["schema"] == 2
    labels = json.loads(survey.read_text(encoding="utf-8"))
    there = [step for step in STEPS if part_of(step.number).timed and step.number < 100]  # the others came later
    known = [s.label for s in (*there, *INSIDE) if s.name not in ("half_output", "half_query")]
    assert labels["steps"] == list(labels["compiled"]) == known
    assert labels["compiled"]["36 three_groups"]["sm_90"]["registers"] == OLD_NUMBERS.index("turns")
    assert labels["compiled"]["large_tile"]["sm_90"]["registers"] == OLD_NUMBERS.index("large_tile")
    after = contents(paths)
    assert main([str(tmp_path)]) == 0 and contents(paths) == after  # once more changes nothing
    assert capsys.readouterr().out.startswith("0 records")


def test_all_or_nothing(tmp_path, capsys, monkeypatch):
    paths = folder_of_schema_1(tmp_path)
    broken = json.loads(paths[1].read_text(encoding="utf-8"))
    del broken["machine"]
    paths[1].write_text(json.dumps(broken), encoding="utf-8")
    before = contents(paths)
    assert main([str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "two/results.json is not of schema 1" in error
    assert contents(paths) == before

    def fails(*arguments):
        raise OSError("disk full")

    paths[1].unlink()
    monkeypatch.setattr(os, "replace", fails)
    assert main([str(tmp_path)]) == 1
    assert "disk full" in capsys.readouterr().err
    assert contents(paths[:1]) == before[:1]


def test_bad_requests_get_one_line(tmp_path, capsys):
    (tmp_path / "codes.json").write_text('{"exp2": ["abc", 1, 2, 3]}', encoding="utf-8")
    for arguments in ([], [str(tmp_path), "--code", "missing.json"], [str(tmp_path), "--code"]):
        assert main(arguments) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert main([str(tmp_path), "--code", str(tmp_path / "codes.json")]) == 2
    assert '"name|problem"' in capsys.readouterr().err


def test_a_warning_is_a_line_and_the_record_stays_without(tmp_path, capsys):
    path = folder_of_schema_1(tmp_path)[1]
    codes = tmp_path / "codes.txt"
    codes.write_text(json.dumps({f"exp2|{SLUG}": ["abc", 1, 2, 3]}), encoding="utf-8")
    assert main([str(tmp_path), "--code", str(codes)]) == 0
    assert f"{path}: exp2, {SLUG}: [1, 2, 3]" in capsys.readouterr().out
    assert read_run(path).measurement("exp2").code is None


def test_there_are_records_to_test_with():
    assert len(PATHS) > 50
