"""results.json: what it holds, how it is read and written, and what may be said of two measurements."""

import json
import os
import re

import pytest

from steps.core import recorded as records
from steps.core.choice import best
from steps.core.ladder import today, whole_ladder
from steps.core.recorded import completed_run, in_the_ladder, read_run, recorded_runs
from tests.results.made_up import run_of
from tests.results.recorded import EVERYTHING, RECORDED, recorded
from tutorial_lib import tables, timing
from tutorial_lib.files import RESULTS, write_whole
from tutorial_lib.passes import PASSES
from tutorial_lib.records import recorded_searches
from tutorial_lib.results import (
    OF_THE_LADDER,
    Ceiling,
    ResultsError,
    Round,
    as_json,
    best_of,
    in_all,
    of_every_part,
    same_code,
    speedup_of,
    verdict_of,
    write_run,
)


def assert_the_same(found, run):
    """As far as a file tells numbers, and in all that the ladder says of the steps."""
    assert as_json(found) == as_json(run)
    said = {"number", "title", "part", "file", "change", "key_changes", "fork", "inside", "previous", "resources"}
    assert [m.model_dump(include=said) for m in found.everybody] == [m.model_dump(include=said) for m in run.everybody]


def test_written_and_read_it_is_the_same(tmp_path):
    run = recorded()
    assert_the_same(read_run(write_run(run, tmp_path)), run)
    text = (tmp_path / "results.json").read_text(encoding="utf-8")
    data = json.loads(text)
    assert data["schema"] == 3 and data["direction"] == "forward"
    step = data["steps"][3]
    assert set(step) >= {"name", "status", "latency_ms", "tflops", "percent_of_ceiling", "resources", "correct"}
    assert set(step) >= {"speedup_vs_baseline", "speedup_vs_previous", "previous", "max_error", "reference_error"}
    assert not set(step) & set(OF_THE_LADDER) and all(peer["title"] for peer in data["peers"])
    assert set(step["latency_ms"]) == {"median", "low", "high", "rounds"}
    told = {"median", "low", "high", "verdict"}
    assert all(set(each["speedup_vs_baseline"]) == told for each in data["steps"])  # what is false is left out
    assert all(m.speedup_vs_baseline.same_code is False for m in run.steps)
    alike = run.steps[3].speedup_vs_previous.model_copy(update={"same_code": True})
    changed = run.steps[3].model_copy(update={"speedup_vs_previous": alike})
    run = run.model_copy(update={"steps": [*run.steps[:3], changed, *run.steps[4:]]})
    again = json.loads(write_run(run, tmp_path).read_text(encoding="utf-8"))["steps"][3]["speedup_vs_previous"]
    assert set(step["speedup_vs_previous"]) == told and again == step["speedup_vs_previous"] | {"same_code": True}
    assert f'\n  {{"name": "{step["name"]}", ' in text  # a line for each


def test_long_names_of_kernels_are_cut():
    kernels = ["cudnn_kernel", "void at::native::" + "elementwise<" * 50]
    [short, cut] = (
        run_of({"sdpa": 1.0})
        .measurement("sdpa")
        .model_validate({"name": "sdpa", "status": "measured", "kernels": kernels})
        .kernels
    )
    assert short == kernels[0] and len(cut) == 120 and kernels[1].startswith(cut[:-1]) and cut.endswith("…")


def test_what_is_no_number_is_written_as_json(tmp_path):
    """A step that is wrong may have an error of NaN or infinity, and JSON knows neither."""
    run = run_of({"sdpa": 1.0, "exp2": 2.0}, max_error=float("nan"))
    path = write_run(run, tmp_path)
    assert "NaN" not in path.read_text(encoding="utf-8") and read_run(path).measurement("exp2").max_error is None


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda text: text[:200], "is not a results.json of schema 3"),
        (lambda text: text.replace('"schema": 3', '"schema": 4'), "schema: Input should be 3"),
        (lambda text: text.replace('"schema": 3', '"schema": 1'), "schema: Input should be 3"),
        (lambda text: text.replace('"tflops"', '"teraflops"', 1), "steps.0"),
        (lambda text: text.replace('"measured"', '"estimated"', 1), "steps.0.status"),
    ],
)
def test_a_file_of_another_schema_is_refused_in_one_line(tmp_path, spoil, message):
    path = write_run(recorded(), tmp_path / "a-gpu" / "one")
    assert len(recorded_runs(tmp_path)) == 1
    path.write_text(spoil(path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(ResultsError, match=re.escape(message)) as error:
        read_run(path)
    assert "\n" not in str(error.value)
    assert recorded_runs(tmp_path) == []


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    write_whole(path, "old")

    def fails(*arguments):
        raise OSError("disk full")

    for function in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, function, fails)
            with pytest.raises(OSError, match="disk full"):
                write_whole(path, "new")
        assert path.read_text(encoding="utf-8") == "old"
        assert list(tmp_path.iterdir()) == [path]


def test_what_is_inside_a_step_is_found_and_ranked_with_the_steps():
    run = run_of({"sdpa": 1.0, "larger_tile": 0.5, "larger_tile_four_warps": 0.4})
    *steps, part = run.steps
    part = part.model_copy(update={"number": None, "inside": "larger_tile"})
    run = run.model_copy(update={"steps": steps, "inside": [part]})
    assert run.measurement("larger_tile_four_warps") is part and run.everybody == [*steps, part]
    assert [m.name for m in run.by_speed()] == ["larger_tile_four_warps", "larger_tile"]
    assert best_of(run, run.by_speed()).name == "larger_tile_four_warps"  # by the verdict
    assert part.label == "larger_tile_four_warps" and part.verdict == "faster than larger_tile"


@pytest.mark.parametrize("ratio", [timing.Spread(1.2, 1.1, 1.3), timing.Spread(0.8, 0.7, 0.9)])
def test_the_same_code_is_never_faster_or_slower(ratio):
    names = ("sdpa", "one", "two", "other", "unknown")
    run = run_of(dict.fromkeys(names, 1.0), code={"one": "abc", "two": "abc", "other": "def"})
    _, one, two, other, unknown = run.steps
    assert same_code(one, two) and verdict_of(ratio, one, two) == "same"
    speedup = speedup_of(ratio, one, two)
    assert (speedup.verdict, speedup.same_code, speedup.median) == ("same", True, ratio.median)
    assert tables.ratio(speedup).endswith("same code") and f"{ratio.median:.2f}× (" in tables.ratio(speedup)
    for mine, before in ((one, other), (one, unknown), (unknown, unknown), (one, None)):
        assert not same_code(mine, before)
        assert verdict_of(ratio, mine, before) == timing.verdict(ratio) != "same"


def test_a_ratio_has_as_many_digits_as_its_verdict_needs():
    """Two digits of 0.981 and of 1.016 would say slower and faster."""

    def told(*ratio):
        return tables.ratio(speedup_of(timing.Spread(*ratio), None, None))

    assert told(0.981, 0.977, 0.985) == "0.981× (0.977–0.985) same"
    assert told(1.016, 1.011, 1.026) == "1.016× (1.011–1.026) same"
    assert told(1.023, 1.004, 1.03) == "1.023× (1.004–1.030) faster"
    assert told(1.0196, 1.015, 1.0204) == "1.0196× (1.0150–1.0204) same"  # 1.020 would say faster
    assert (told(0.976, 0.966, 0.984), told(1.02, 0.99, 1.04)) == ("0.98× (0.97–0.98) slower", "1.02× (0.99–1.04) same")


def test_a_verdict_names_the_predecessor_that_is_not_right_before():
    run = run_of({"sdpa": 1.0, "one": 0.5, "two": 0.5}, code={"one": "abc", "two": "abc"})
    _, one, two = run.steps
    assert one.verdict == "faster" and two.verdict == "same code"
    assert one.model_copy(update={"number": 9}).verdict == "faster than sdpa"
    moved = two.model_copy(update={"number": 9})
    assert moved.verdict == "same code as one"
    assert tables.vs_previous(moved) == "1.00× (1.00–1.00) same code as one"


def test_the_best_is_the_earliest_that_none_is_faster_than():
    run = run_of({"sdpa": 9.0, "slow": 1.03, "early": 1.015, "fast": 1.0, "late": 1.01})
    assert run.by_speed()[0].name == "fast"
    assert best_of(run, run.by_speed()).name == "early"
    assert best_of(run, [m for m in run.by_speed() if m.name in ("slow", "late")]).name == "slow"
    coded = run_of({"sdpa": 9.0, "slow": 1.5, "early": 1.01, "fast": 1.0}, code={"slow": "abc", "fast": "abc"})
    assert best_of(coded, coded.by_speed()).name == "early"  # which is faster than slow


def test_who_was_timed_in_no_common_rounds_is_compared_by_medians():
    run = run_of({"sdpa": 9.0, "one": 1.03, "two": 1.0})
    _, one, two = run.steps
    apart = run.model_copy(update={"rounds": []})
    assert run.is_faster(two, one) and apart.is_faster(two, one) and not apart.is_faster(one, two)
    assert not apart.is_faster(two, one.model_copy(update={"tflops": two.tflops / 1.01}))


ON_ONE_GPU = [r for r in EVERYTHING if r.ranks == 1]


def near(expected):
    """A file holds six digits of a number."""
    return pytest.approx(expected, rel=2e-5)


@pytest.mark.parametrize("r", ON_ONE_GPU, ids=lambda r: f"{r.the_problem().slug}-{r.direction}")
def test_recorded_figures_follow_from_the_recorded_rounds(r):
    """Nobody typed a number: latencies, TFLOPS, speedups and verdicts are recomputed from the raw rounds.

    What is of an earlier run was so when it was recorded; its rounds are no longer there.
    """
    for m in (m for m in r.everybody if m.status == "measured" and not m.earlier):
        mine = [x.latency_ms[m.name] for x in r.rounds]
        latency = timing.spread(mine)
        assert (latency.median, latency.low, latency.high) == near(
            (m.latency_ms.median, m.latency_ms.low, m.latency_ms.high)
        )
        assert m.tflops == near(PASSES[r.direction].operations(r.the_problem()) / latency.median / 1e9)
        if baseline := r.latencies(PASSES[r.direction].baseline):
            ratio = timing.speedup(baseline, mine)
            assert ratio.median == near(m.speedup_vs_baseline.median)
            assert timing.verdict(ratio) == m.speedup_vs_baseline.verdict
        else:  # PyTorch's own takes no soft cap and no sinks, and its gradients no window and no packed sequences
            asked = r.the_problem()
            backward = r.direction == "backward"
            assert asked.softcap or asked.sinks or (backward and (asked.window or asked.lengths))
            assert m.speedup_vs_baseline is None
        if m.speedup_vs_previous and not m.speedup_vs_previous.earlier:
            ratio = timing.speedup([x.latency_ms[m.previous] for x in r.rounds], mine)
            assert ratio.median == near(m.speedup_vs_previous.median)
            same = same_code(m, r.measurement(m.previous))
            assert m.speedup_vs_previous.same_code == same
            assert m.speedup_vs_previous.verdict == ("same" if same else timing.verdict(ratio))


@pytest.mark.parametrize("r", ON_ONE_GPU, ids=lambda r: f"{r.machine['slug']}-{r.the_problem().slug}-{r.direction}")
def test_nobody_else_used_the_gpu_while_it_was_timed(r):
    assert r.shared_rounds() == 0


@pytest.mark.parametrize(("clock", "shared"), [(1.5, 0), (1.9, 1), (None, 0)])
def test_who_else_used_the_gpu_is_known_by_the_clocks_of_the_matrix_product(clock, shared):
    """8192^3 products and additions take 132 SMs of an H100 2.03 million clocks; 2 ms at 1.9 GHz are 3.8 million."""
    run = run_of({"sdpa": 1.0})
    ceiling = Ceiling(what="a product", tflops=550, low=549, high=551)
    latency = {timing.CEILING: 2.0, "sdpa": 1.0}
    rounds = [Round(latency_ms=latency, clock_ghz={timing.CEILING: clock} if clock else {})]
    machine = {**run.machine, "multiprocessors": 132}
    run = run.model_copy(update={"ceiling": ceiling, "rounds": rounds, "machine": machine})
    assert run.shared_rounds() == shared
    assert run.model_copy(update={"ceiling": ceiling.model_copy(update={"tflops": None})}).shared_rounds() == 0
    assert run.model_copy(update={"machine": run.machine | {"multiprocessors": 0}}).shared_rounds() == 0


def test_a_record_that_is_completed_holds_steps_in_the_order_of_the_ladder():
    """The new run and its record each hold a step that the other lacks. Both steps stand behind the same one."""
    old = run_of({"sdpa": 2.0, "row_max_ilp_multicast": 1.0, "deferred_sum": 1.5, "gone": 3.0})
    new = run_of({"sdpa": 2.0, "row_max_ilp_multicast": 1.0, "no_redundant_barriers": 0.9})
    names = ["sdpa", "deferred_sum", "row_max_ilp_multicast", "no_redundant_barriers", "gone"]
    assert [m.name for m in completed_run(new, old).steps] == names


def test_a_record_keeps_what_a_new_run_leaves_out():
    """A step and a peer with their day, a ratio to a step that is no longer there; of another GPU nothing."""
    old = run_of({"sdpa": 2.0, "one": 1.5, "two": 1.0, "three": 0.9})
    ratio = speedup_of(timing.Spread(1.5, 1.4, 1.6), None, None)
    old = old.model_copy(
        update={
            "date": "2026-01-01T00:00:00+00:00",
            "steps": [m.model_copy(update={"speedup_vs_previous": ratio}) for m in old.steps],
        }
    )
    new = run_of({"sdpa": 2.1, "two": 1.1})
    new = new.model_copy(update={"steps": [m.model_copy(update={"speedup_vs_previous": None}) for m in new.steps]})
    both = new.with_earlier(old)
    assert [(m.name, m.earlier) for m in both.steps] == [
        ("sdpa", None),
        ("one", "2026-01-01"),
        ("two", None),
        ("three", "2026-01-01"),
    ]
    assert both.measurement("two").tflops == new.measurement("two").tflops
    assert both.measurement("two").speedup_vs_previous == ratio.model_copy(update={"earlier": "2026-01-01"})
    assert [m.name for m in both.by_speed()] == ["two"] and both.rounds == new.rounds
    assert any("2026-01-01" in note and "one" in note and "three" in note for note in both.told)
    again = run_of({"sdpa": 2.0, "three": 0.8}).with_earlier(both)
    assert again.measurement("one").earlier == "2026-01-01" and again.measurement("two").earlier == new.day
    elsewhere = old.model_copy(update={"machine": {**old.machine, "name": "another GPU"}})
    assert new.with_earlier(elsewhere) == new


def of_day(day: int, milliseconds: dict[str, float], codes: dict[str, str] | None = None, peers=(), versions="1"):
    """A run whose steps have codes, and whose clocks are known."""
    code = {name: name for name in milliseconds if name not in peers} | (codes or {})
    run = run_of(milliseconds, code=code, peers=peers)
    rounds = [r.model_copy(update={"clock_ghz": dict.fromkeys(r.latency_ms, 1.0 + day)}) for r in run.rounds]
    changed = {"date": f"2026-01-0{day}T00:00:00+00:00", "rounds": rounds, "versions": {"peer": versions}}
    return run.model_copy(update=changed)


def kept(run) -> dict[str, set[str]]:
    return {each.day[-1]: in_all(each.rounds) for each in run.earlier_rounds}


def test_a_record_keeps_rounds_of_those_who_met_in_none_since():
    """Their ratios have the day; those who have met again, or have changed, are left out of the old rounds."""
    first = of_day(1, {"sdpa": 2.0, "one": 1.5, "two": 1.0, "three": 0.5})
    second = of_day(2, {"sdpa": 2.0, "two": 0.9, "three": 0.4}, {"three": "another kernel"}).with_earlier(first)
    one, two, three = (second.measurement(name) for name in ("one", "two", "three"))
    assert kept(second) == {"1": {"sdpa", "one", "two"}}
    ratio = second.speedup(two, one)
    assert (ratio.median, ratio.earlier) == (pytest.approx(1.5, rel=0.05), "2026-01-01")
    assert second.split(two, one) == (pytest.approx(1.5, rel=0.05), 1) and second.split(three, one) is None
    assert second.speedup(three, one) is None and second.speedup(three, two).earlier is None
    third = of_day(3, {"sdpa": 2.0, "one": 1.2, "two": 0.9}).with_earlier(second)
    assert kept(third) == {"2": {"sdpa", "two", "three"}}
    assert third.speedup(two, one).median == pytest.approx(1.2 / 0.9, rel=0.05)
    assert third.speedup(three, two).median == pytest.approx(0.9 / 0.4, rel=0.05)


def test_old_rounds_outlive_several_runs_the_newest_first():
    run = of_day(1, {"sdpa": 2.0, "one": 1.5, "two": 1.0})
    for day, other in ((2, "two"), (3, "three"), (4, "two")):
        run = of_day(day, {"sdpa": 2.0, "one": 1.5, other: 1.0}).with_earlier(run)
    run = of_day(5, {"sdpa": 2.0, "four": 0.1}).with_earlier(run)
    assert list(kept(run).items()) == [("4", {"sdpa", "one", "two"}), ("3", {"sdpa", "one", "three"})]
    assert run.speedup(*map(run.measurement, ("two", "one"))).earlier == "2026-01-04"
    assert run.speedup(*map(run.measurement, ("two", "three"))) is None


def test_of_old_rounds_the_newest_alone_hold_a_pair():
    run = of_day(1, {"sdpa": 2.0, "one": 1.5, "two": 1.0, "three": 0.9})
    run = of_day(2, {"sdpa": 2.0, "one": 1.5, "two": 1.0, "four": 0.8}).with_earlier(run)
    run = of_day(3, {"sdpa": 2.0, "one": 1.5, "three": 0.9}).with_earlier(run)
    assert kept(run) == {"2": {"sdpa", "one", "two", "four"}, "1": {"two", "three"}}


def test_old_rounds_hold_a_peer_as_long_as_its_versions_are_theirs():
    """Even if runs without it came between; who is left out of a run stays."""
    first = of_day(1, {"sdpa": 2.0, "one": 1.5, "peer": 1.0}, peers=("peer",))
    second = of_day(2, {"sdpa": 2.0, "one": 1.5}, versions="2").with_earlier(first)
    assert kept(second) == {"1": {"sdpa", "one", "peer"}}
    assert second.speedup(second.measurement("one"), second.measurement("peer")).earlier == "2026-01-01"
    for versions, stay in (("1", {"one", "peer"}), ("2", set())):
        third = of_day(3, {"sdpa": 2.0, "two": 1.0, "peer": 0.5}, peers=("peer",), versions=versions)
        assert kept(third.with_earlier(second)).get("1", set()) >= stay
        one, peer = (third.with_earlier(second).measurement(name) for name in ("one", "peer"))
        assert (third.with_earlier(second).speedup(one, peer) is not None) == bool(stay)


def test_old_rounds_leave_out_who_failed_or_missed_one():
    first = of_day(1, {"sdpa": 2.0, "one": 1.5, "two": 1.0})
    second = of_day(2, {"sdpa": 2.0, "three": 1.5, "two": 1.0})
    [*others, two] = second.steps
    failed = second.model_copy(update={"steps": [*others, two.model_copy(update={"status": "failed"})]})
    assert kept(failed.with_earlier(first)) == {"1": {"sdpa", "one"}}
    missing = first.rounds[0].model_copy(update={"latency_ms": {"sdpa": 2.0, "one": 1.5}})
    assert "two" not in in_all([*first.rounds, missing]) and in_all([]) == set()


def test_what_must_be_known_of_old_rounds_is_told_with_their_day():
    first = of_day(1, {"sdpa": 2.0, "one": 1.5}).model_copy(update={"notes": ["the GPU was shared"]})
    second = of_day(2, {"sdpa": 2.0, "two": 1.5}).with_earlier(first)
    assert "Of the rounds of 2026-01-01: the GPU was shared" in second.told


def test_a_ratio_to_the_previous_step_is_not_kept_where_the_kernel_changed():
    """And it keeps its day, if another run came between."""
    ratio = speedup_of(timing.Spread(1.5, 1.4, 1.6), None, None)

    def with_ratio(run, ratio):
        [*others, last] = run.steps
        return run.model_copy(update={"steps": [*others, last.model_copy(update={"speedup_vs_previous": ratio})]})

    first = with_ratio(of_day(1, {"sdpa": 2.0, "one": 1.5, "two": 1.0}), ratio)
    between = of_day(2, {"sdpa": 2.0, "three": 1.0}).with_earlier(first)
    for code, day in (("two", "2026-01-01"), ("another kernel", None)):
        third = with_ratio(of_day(3, {"sdpa": 2.0, "two": 1.0}, {"two": code}), None).with_earlier(between)
        found = third.measurement("two").speedup_vs_previous
        assert (found and found.earlier) == day


@pytest.mark.parametrize(
    ("codes", "versions", "kept"),
    [
        ((None, None), "same", True),
        ((None, None), "others", False),
        (("a", "a"), "others", True),
        (("a", "b"), "same", False),
        (("a", None), "same", False),
    ],
)
def test_counters_are_kept_of_what_is_still_the_same(codes, versions, kept):
    """Of the same machine code; and where there is none, as of a peer, of the same versions."""
    old, new = (run_of({"sdpa": 2.0, "one": 1.0}) for _ in range(2))

    def counted(run, code, counters):
        changed = {"resources": {"code": code} if code else None, "counters": counters}
        return run.model_copy(update={"steps": [run.steps[0], run.steps[1].model_copy(update=changed)]})

    old = counted(old, codes[0], {"cycles": 7.0}).model_copy(update={"versions": {"flash-attn-4": "1"}})
    new = counted(new, codes[1], None)
    new = new.model_copy(update={"versions": {"flash-attn-4": "1" if versions == "same" else "2"}})
    assert (new.with_earlier(old).measurement("one").counters == {"cycles": 7.0}) is kept


def test_what_the_readme_speaks_of_is_recorded():
    """H100, B=4 H=32 D=128 fp16, five lengths, causal and full, every part and peer."""
    for causal in (True, False):
        runs = [r for r in RECORDED if r.the_problem().causal is causal and "H100" in r.machine["name"]]
        runs = of_every_part(
            [r for r in runs if r.the_problem().family.startswith("b4_h32_d128_fp16") and not r.the_problem().features]
        )
        assert {r.the_problem().seq_len_q for r in runs} >= {1024, 2048, 4096, 8192, 16384}
        for r in runs:
            assert {m.part for m in r.steps} >= {"cutile", "gluon", "hopper"}
            assert {"sdpa_cudnn", "sdpa_flash", "flex", "flash_attn_4"} <= {m.name for m in r.peers if m.tflops}
            assert all(m.correct for m in r.everybody if m.status == "measured")


def test_identical_machine_code_is_called_the_same():
    """Where two steps compile to the same instructions, a verdict other than "same" would be noise taken for news."""
    found = [(r.problem["head_dim"], m) for r in RECORDED for m in (*r.steps, *r.inside) if m.speedup_vs_previous]
    pairs = [m for d, m in found if m.name == "load_order" or (m.name == "three_warpgroups" and d == 128)]
    assert {m.name for m in pairs} == {"load_order", "three_warpgroups"}
    assert {m.speedup_vs_previous.verdict for m in pairs} == {"same"}


def test_approx_division_is_near_cudnn():
    """0.85 of SDPA's cuDNN backend, in the same rounds."""
    run = recorded()
    assert run.speedup(run.measurement("approx_division"), run.measurement("sdpa_cudnn")).median >= 0.85


def test_a_record_of_the_schema_before_says_nothing_of_the_ladder(tmp_path):
    """It held what the ladder said of steps then; today's counts, and old names lead to new ones."""
    run = recorded()
    path = write_run(run, tmp_path / "a-gpu" / "one")
    data = json.loads(path.read_text(encoding="utf-8"))
    for m in data["steps"]:
        m |= {
            "number": 99,
            "title": "?",
            "part": "hopper",
            "file": "?",
            "change": "?",
            "key_changes": ["?"],
            "fork": True,
        }
    text = json.dumps({**data, "schema": 2, "inside": []}).replace('"three_warpgroups"', '"turns"')
    path.write_text(text, encoding="utf-8")
    assert_the_same(read_run(path), run)


def test_a_file_rounds_what_was_timed_and_nothing_that_is_counted_or_called_by():
    run = run_of({"sdpa": 2.0})
    told = {"cosine": 0.99999996, "counters": {"shared_bank_conflicts": 2818572288.0}, "cycles": 1234567.89}
    exact = {"problem": run.problem | {"scale": 0.08838834764831845}}
    text = as_json(run.model_copy(update={**exact, "steps": [run.steps[0].model_copy(update=told)]}))
    assert all(number in text for number in ("0.99999996", "2818572288", "0.08838834764831845", "1234570.0"))


def test_a_step_that_is_no_more_is_a_peer_and_never_the_best():
    run = run_of({"sdpa": 2.0, "gone": 0.5, "exp2": 1.0})
    bare = {"title": "", "number": None, "part": None, "previous": None}
    found = in_the_ladder(run.model_copy(update={"steps": [m.model_copy(update=bare) for m in run.steps]}))
    assert [(m.label, m.title) for m in found.steps] == [("0 sdpa", "SDPA"), ("3 exp2", "exp2, flush to zero")]
    assert [(m.label, m.title) for m in found.peers] == [("gone", "gone")]
    assert best(run.the_problem(), "sm_90", [found]).step.name == "exp2"


def test_a_ratio_is_that_to_todays_predecessor():
    """What was compared with a step that no longer comes before is looked up in the rounds, or left out."""
    run = recorded()
    m = next(m for m in run.steps if m.speedup_vs_previous and not (m.earlier or m.speedup_vs_previous.earlier))
    bare = m.model_copy(update={"title": "", "previous": "relaxed_atomics"})  # of the backward pass
    steps = [bare if s is m else s for s in run.steps]
    found = in_the_ladder(run.model_copy(update={"steps": steps})).measurement(m.name)
    assert found.previous == m.previous and found.speedup_vs_previous.verdict == m.speedup_vs_previous.verdict
    assert found.speedup_vs_previous.median == near(m.speedup_vs_previous.median)
    alone = run.model_copy(update={"steps": steps, "rounds": [], "earlier_rounds": []})
    found = in_the_ladder(alone).measurement(m.name)
    assert (found.previous, found.speedup_vs_previous) == (m.previous, None)


def test_every_record_is_read_by_todays_names():
    """Searches, trainings and the survey were made when many steps had other names."""
    ladder = {step.name for step in whole_ladder()}
    searched = [
        s.step
        for d in ("forward", "backward")
        for r in recorded_searches(RESULTS, d, today)
        for s in r.searched
        if s.step
    ]
    trained = [
        name
        for r in records.recorded_trainings(RESULTS)
        for name in (r.forward, r.backward, *(name for t in r.timed for name in t.steps))
    ]
    swept = {name for r in records.recorded_sweeps(RESULTS) for row in r.rows for name in row.steps}
    assert swept <= ladder
    [survey] = RESULTS.glob("compiled/*/survey.json")
    surveyed = [label.split(" ")[-1] for label in records.read_survey(survey).steps]
    together = [
        p.title for d in ("forward", "backward") for r in recorded_runs(RESULTS, d, several=True) for p in r.peers
    ]
    assert "one GPU alone, by step 207 kv_multicast" in together
    for names in (searched, trained, surveyed):
        assert names and set(names) - {"flash_attn_4", "sdpa_cudnn"} <= ladder | {"one_loop"}


def test_a_file_behind_a_link_is_written_and_the_link_stays(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text(encoding="utf-8") == "new"
