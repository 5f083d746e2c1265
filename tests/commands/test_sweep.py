"""``python -m steps.sweep``: drawn problems are timed, recorded one by one, gone on with, and shown."""

import itertools
import json
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import pytest

from steps import get_step, sweep
from steps.core.choice import best
from steps.core.recorded import recorded_candidates, recorded_sweeps, recorded_timings
from steps.measuring import sweep as measuring
from steps.measuring.drawing import TIMED, Drawn, problems
from tests.shapes import problem
from tutorial_lib import plots, tables
from tutorial_lib.accuracy import Accuracy
from tutorial_lib.files import write_whole
from tutorial_lib.records import FRONT_DOOR, Sweep, Swept
from tutorial_lib.results import as_json
from tutorial_lib.worker import WorkerFailure

MACHINE = {"name": "A GPU", "slug": "gpu", "arch": "sm_90"}
MS = {FRONT_DOOR: 1.0, "sdpa": 2.0, "sdpa_cudnn": 1.5, "sdpa_flash": 3.0, "flash_attn_4": 1.25}
RIGHT = Accuracy(1e-3, 1e-3, 2e-3)


class Fake:
    """A worker on whose GPU everybody takes as long as ``MS`` says, and FlashAttention-3 is not installed.

    fails: (method, contender or None) -> what a call ends with. wrong: the peer that is.
    """

    fails: ClassVar[dict] = {}
    wrong: ClassVar[str] = ""
    told: ClassVar[list] = []

    def __init__(self, *args, **kwargs):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def call(self, method, *args, timeout):
        Fake.told.append((method, *args))
        name = args[0] if args and isinstance(args[0], str) else None
        if failure := Fake.fails.get((method, name)):
            raise failure
        if method == "missing":
            return None if args[0] in MS else "not installed"
        checked = Accuracy(2.57, 1e-3, 2e-3) if args and args[0] == [Fake.wrong] else RIGHT
        return {"check": checked, "sample": (MS.get(name, 0.0), 5.0)}.get(method)


@pytest.fixture
def faked(monkeypatch):
    monkeypatch.setattr("tutorial_lib.hardware.has_gpu", lambda: True)
    monkeypatch.setattr("tutorial_lib.hardware.describe_machine", lambda device: MACHINE)
    monkeypatch.setattr("steps.measuring.ahead.compile_ahead", lambda *args: None)
    monkeypatch.setattr("steps.measuring.sweep.chosen_steps", lambda p, target, timed: [measuring._step_of("sdpa")])
    monkeypatch.setattr("tutorial_lib.worker.Worker", Fake)
    monkeypatch.setattr(Fake, "fails", {})
    monkeypatch.setattr(Fake, "told", [])


def swept(tmp_path, *more):
    return sweep.main(["--iterations", "2", "--output-dir", str(tmp_path), *more])


def test_problems_are_recorded_and_shown(faked, tmp_path, capsys, monkeypatch):
    assert swept(tmp_path, "--count", "6") == 0
    [record] = recorded_sweeps(tmp_path)
    assert [row.the_problem() for row in record.rows] == [one.problem for one in problems(0, 6, "forward")]
    for row in record.rows:
        assert row.milliseconds == {name: [ms, ms] for name, ms in MS.items()} | {"sdpa_flash": [3.0]}
        assert row.host_us["sdpa"] == 5.0
        assert row.correct and row.fell_back and row.best_peer == "flash_attn_4"
        assert row.skipped == {"flash_attn_3": "not installed"} and row.versions["torch"]
    said = " ".join(capsys.readouterr().out.split())
    assert "1.25 times as fast as flash_attn_4, 2.00 as SDPA; by sdpa" in said
    assert "all 6 1.25 1.25 0 2.00 6 – 1.25" in said
    monkeypatch.setattr("tutorial_lib.hardware.has_gpu", lambda: False)
    assert sweep.main(["--output-dir", str(tmp_path)]) == 0
    assert "There is no GPU here. Recorded:" in capsys.readouterr().out


def test_a_later_call_goes_on_where_one_stopped(faked, tmp_path, monkeypatch, capsys):
    """Ctrl-C in the third problem: two are recorded, and are not measured again; other passes stand beside them."""
    opened = []

    class Interrupted(Fake):
        def call(self, method, *args, timeout):
            opened.append(args[0]) if method == "open" else None
            if len(opened) == 3:
                raise KeyboardInterrupt
            return super().call(method, *args, timeout=timeout)

    monkeypatch.setattr("tutorial_lib.worker.Worker", Interrupted)
    assert swept(tmp_path, "--count", "5") == 130
    assert "what was finished is recorded" in capsys.readouterr().err
    [record] = recorded_sweeps(tmp_path)
    assert [row.the_problem() for row in record.rows] == opened[:2]
    monkeypatch.setattr("tutorial_lib.worker.Worker", Fake)
    assert swept(tmp_path, "--count", "5") == 0
    assert [args[1] for args in Fake.told if args[0] == "open"][2:] == opened[2:3] + [
        one.problem for one in problems(0, 5, "forward")[3:]
    ]
    assert swept(tmp_path, "--count", "2", "--pass", "training") == 0
    assert swept(tmp_path, "--count", "3", "--seed", "1") == 0
    [record] = recorded_sweeps(tmp_path)
    assert [(row.pass_, row.seed) for row in record.rows] == (
        [("forward", 0)] * 5 + [("training", 0)] * 2 + [("forward", 1)] * 3
    )
    before = (tmp_path / "gpu" / "sweep.json").read_bytes()
    assert swept(tmp_path, "--count", "5") == 0 and (tmp_path / "gpu" / "sweep.json").read_bytes() == before


def test_the_time_ends_it_before_a_problem(faked, tmp_path, monkeypatch, capsys):
    """Compiling takes ten seconds, a problem six. As many are compiled as there is time for."""
    clock, compiled = [0.0], []

    def takes(seconds, function):
        def slow(*args):
            clock[0] += seconds
            return function(*args)

        return slow

    monkeypatch.setattr(sweep.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr("steps.measuring.sweep.to_compile", lambda chosen, target: compiled.append(len(chosen)))
    monkeypatch.setattr("steps.measuring.ahead.compile_ahead", takes(10.0, lambda *args: None))
    monkeypatch.setattr(measuring, "time_problem", takes(6.0, measuring.time_problem))
    assert swept(tmp_path, "--count", "40", "--seconds", "60") == 0
    assert len(recorded_sweeps(tmp_path)[0].rows) == 8 and compiled == [60 / sweep.PROBLEM_SECONDS]
    assert "The time is over: 32 of 40 problems are left." in capsys.readouterr().out
    monkeypatch.setattr(sweep, "PROBLEM_SECONDS", 30.0)
    assert swept(tmp_path, "--count", "12", "--seconds", "70") == 0
    assert len(recorded_sweeps(tmp_path)[0].rows) == 12 and compiled[1:] == [2, 1, 1]


def test_candidates_are_timed_beside_sdpa_alone_and_the_choice_learns_from_them(faked, tmp_path, monkeypatch, capsys):
    asked = []

    def candidates(problem, arch):
        asked.append(problem)
        return [get_step("epilogue_overlap"), get_step("pv_wait_after_max")]

    monkeypatch.setattr("steps.core.choice.candidates", candidates)
    for name, ms in {"epilogue_overlap": 0.5, "pv_wait_after_max": 1.75}.items():
        monkeypatch.setitem(MS, name, ms)
    assert swept(tmp_path, "--steps", "--count", "3") == 0
    [record] = recorded_candidates(tmp_path)
    assert [row.the_problem() for row in record.rows] == asked == [one.problem for one in problems(0, 3, "forward")]
    assert ("check", ["epilogue_overlap", "pv_wait_after_max"]) in Fake.told and not recorded_sweeps(tmp_path)
    for row in record.rows:
        times = {"sdpa": [2.0, 2.0], "epilogue_overlap": [0.5, 0.5], "pv_wait_after_max": [1.75]}
        assert row.milliseconds == times and row.correct and row.steps == []
    assert "epilogue_overlap 500 µs, pv_wait_after_max 1.75e+03 µs, sdpa 2e+03 µs" in capsys.readouterr().out
    [run, *_] = recorded_timings(tmp_path)
    assert [m.name for m in run.steps] == ["sdpa", "epilogue_overlap", "pv_wait_after_max"]
    chosen = best(asked[0], "sm_90", tmp_path)
    assert chosen.step.name == "epilogue_overlap" and chosen.of_baseline == 4 and "Not measured" not in chosen.why
    assert swept(tmp_path, "--steps", "--pass", "training") == 2


def time_one(timed="forward", rounds=2):
    drawn = Drawn(problem(), "vision", "a model")
    restoring = measuring.Restoring(1.0)
    return measuring.time_problem(Fake(), restoring, drawn, timed, [], 7, rounds, random.Random(0)), restoring


def test_passes_take_turns(faked, tmp_path):
    assert swept(tmp_path, "--pass", "forward,training,forward", "--count", "2") == 0
    [record] = recorded_sweeps(tmp_path)
    assert [row.pass_ for row in record.rows] == ["forward", "training"] * 2


def test_what_compiles_ahead_is_asked_for_once(monkeypatch):
    """flash-attn-4's kernels do not depend on lengths; those of both passes with gradients are the same."""
    monkeypatch.setattr("steps.reference.peers._installed", lambda module: True)
    shapes = [problem(), problem(batch=7, seq_len_q=500, seq_len_kv=500), problem(kv_heads=2)]
    step = measuring._step_of("sdpa")
    chosen = {(timed, shape): [step] for timed in TIMED for shape in shapes}
    found = measuring.to_compile(chosen, "sm_90")
    assert [(what.timed, shape) for what, shape in found] == [
        (timed, shape) for timed in ("backward", "forward") for shape in (shapes[0], shapes[2])
    ]
    steps, peer = [get_step("exp2"), get_step("transposed_scores")], measuring._step_of("flash_attn_4")
    found = measuring.to_compile({("forward", shapes[0]): steps[:1], ("training", shapes[0]): steps}, "sm_90")
    own = [(what.timed, what.steps) for what, _ in found if what.steps[0] is not peer]
    assert own == [("training", tuple(steps)), ("forward", (steps[0],))]


@pytest.mark.parametrize("timed", TIMED)
def test_what_compiles_ahead_launches_what_a_timed_call_does(timed):
    """The forward pass with a log-sum-exp where gradients follow, and these; a peer's by autograd."""
    gradients, called = timed != "forward", []

    def attention(q, k, v, return_lse, **asked):
        called.append((return_lse, *asked.values()))
        return (q, "lse") if return_lse else q

    def peer(q, k, v, *asked):
        o = q * k.sum() * v.sum()
        if o.requires_grad:
            o.register_hook(lambda do: called.append("gradients"))
        called.append(o.requires_grad)
        return o

    step = SimpleNamespace(attention=attention)
    backward = SimpleNamespace(gradients=lambda q, k, v, o, lse, do, **asked: called.append((lse, *asked.values())))
    measuring.Called((step, backward) if gradients else (step,), timed, "cpu").compile(problem(window=50), "sm_90")
    assert called == [(gradients, True, 50), *([("lse", True, 50)] if gradients else [])]
    called.clear()
    peer = replace(measuring._step_of("sdpa"), function=peer)
    measuring.Called((peer,), timed, "cpu").compile(problem(), "sm_90")
    assert called == ([True, "gradients"] if gradients else [False])


def test_who_is_far_behind_takes_part_in_one_round(faked, monkeypatch):
    """Whose first sample is more than so many times the fastest of the others; never who is wanted."""
    assert MS["sdpa_flash"] > measuring.FAR_BEHIND * MS["flash_attn_4"] >= MS["sdpa_cudnn"]
    monkeypatch.setitem(MS, FRONT_DOOR, 9.0)
    monkeypatch.setitem(MS, "sdpa", 8.0)
    row, _ = time_one(rounds=3)
    assert {name: len(ms) for name, ms in row.milliseconds.items()} == {name: 3 for name in MS} | {"sdpa_flash": 1}
    assert row.ratio("sdpa_flash").median == pytest.approx(1 / 3) and row.best_peer == "flash_attn_4"


@pytest.mark.parametrize("method", ["prepare", "sample"])
def test_a_peer_that_fails_is_skipped(faked, method):
    Fake.fails = {(method, "sdpa_cudnn"): WorkerFailure("the process died")}
    row, restoring = time_one()
    assert row.timed and row.skipped["sdpa_cudnn"] == "the process died" and "sdpa_cudnn" not in row.milliseconds
    assert len(row.milliseconds[FRONT_DOOR]) == 2 and "sdpa_cudnn" not in restoring.prepared
    told, Fake.told = list(Fake.told), []
    restoring.again(Fake())
    assert Fake.told == [told[0], *(("prepare", name) for name in restoring.prepared)]


def test_a_peer_that_is_wrong_is_not_timed(faked, monkeypatch):
    """As flash-attn-4's gradients are at head_dim 80 (results/nvidia-h200/b4_h32_s4096_d80_bf16_causal_backward)."""
    monkeypatch.setattr(Fake, "wrong", "flash_attn_4")
    row, restoring = time_one()
    assert "the largest error is 2.57" in row.skipped["flash_attn_4"] and "flash_attn_4" not in row.milliseconds
    assert row.timed and row.correct and row.best_peer == "sdpa_cudnn" and "flash_attn_4" not in restoring.prepared


@pytest.mark.parametrize("dies", [None, ("sample", "sdpa_cudnn")], ids=str)
def test_a_process_opens_a_problem_once(faked, tmp_path, monkeypatch, dies):
    """Also one that starts for it, and one that takes the place of another, which is told what that was told."""

    class Mortal(Fake):
        def __init__(self, *args, on_start):
            self.alive, self.on_start = False, on_start

        def call(self, method, *args, timeout):
            if not self.alive:
                self.alive = True
                Fake.told.append(("start",))
                self.on_start(self)
            if (method, *args) == dies:
                self.alive = False
                raise WorkerFailure("the process died")
            return super().call(method, *args, timeout=timeout)

    monkeypatch.setattr("tutorial_lib.worker.Worker", Mortal)
    assert swept(tmp_path, "--count", "2") == 0
    told = [args for args in Fake.told if args[0] in ("start", "open")]
    first, second = (args for args in dict.fromkeys(told) if args[0] == "open")
    start = ("start",)
    assert told == ([start, first, start, first, second, start, second] if dies else [start, first, second])


@pytest.mark.parametrize(
    "call", [("open", None), ("check", None), *itertools.product(("prepare", "sample"), (FRONT_DOOR, "sdpa"))]
)
def test_where_the_front_door_or_sdpa_fails_nothing_is_timed(faked, call, tmp_path, capsys):
    Fake.fails = {call: WorkerFailure("hung")}
    row, _ = time_one()
    assert row.failure == "hung" and not row.timed and row.milliseconds == {}
    assert swept(tmp_path, "--count", "2") == 0 and capsys.readouterr().out.count("hung") == 4  # as timed, and shown


def test_a_wrong_output_is_told(faked, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("tests.commands.test_sweep.RIGHT", Accuracy(float("nan"), 1e-3, 2e-3))
    assert swept(tmp_path, "--count", "2") == 0
    [record] = recorded_sweeps(tmp_path)
    assert not any(row.timed or row.correct for row in record.rows) and record.of("forward") == []
    said = capsys.readouterr().out
    assert (
        said.count("the output holds NaN") == 4 and "2 problems from models that people run, of which 2 failed" in said
    )


def test_steps_are_read_by_todays_names(faked, tmp_path, monkeypatch):
    monkeypatch.setattr("steps.measuring.sweep.chosen_steps", lambda *asked: [get_step("sdpa")])
    assert swept(tmp_path, "--count", "1") == 0
    path = tmp_path / "gpu" / "sweep.json"
    path.write_text(path.read_text(encoding="utf-8").replace('["sdpa"]', '["at_maxima"]'), encoding="utf-8")
    assert recorded_sweeps(tmp_path)[0].rows[0].steps == ["pv_wait_after_max"]
    assert swept(tmp_path, "--count", "2") == 0  # what it goes on with keeps the names of its day
    assert [row["steps"] for row in json.loads(path.read_text(encoding="utf-8"))["rows"]] == [["at_maxima"], ["sdpa"]]


@pytest.mark.parametrize("content", ["", "{}", '{"schema": 1}'])
def test_a_file_that_holds_no_sweep_is_not_written_over(faked, tmp_path, content, capsys):
    path = tmp_path / "gpu" / "sweep.json"
    path.parent.mkdir()
    path.write_text(content, encoding="utf-8")
    assert swept(tmp_path) == 2 and path.read_text(encoding="utf-8") == content
    said = capsys.readouterr().err
    assert "must hold a sweep" in said and said.count("\n") == 1


# --- the worker's side, as far as a CPU goes ---


@pytest.mark.parametrize("timed", TIMED)
@pytest.mark.parametrize("shape", [problem(kv_heads=2), problem(window=50), problem(seq_len_q=3, seq_len_kv=77)])
def test_the_front_door_is_checked_and_called(timed, shape):
    sweeper = measuring.Sweeper("cpu")
    sweeper.open(shape, timed, 3)
    checked = sweeper.check()
    assert checked.correct and checked.reference_error > 0
    for name in (FRONT_DOOR, "sdpa"):
        made = sweeper._call(sweeper._function(name))(1)
        made = (made,) if timed == "forward" else made
        q, k, v, *_ = sweeper.inputs[0]
        assert [x.shape for x in made] == [x.shape for x in ((q,) if timed == "forward" else (q, k, v))]


@pytest.mark.parametrize("timed", TIMED)
def test_an_output_that_is_wrong_in_a_head_that_is_looked_at_is_found(timed, monkeypatch):
    """Of 4 key/value heads two are compared, the first and the last: what is wrong between them is not found."""
    shape = problem(kv_heads=2)
    monkeypatch.setattr(measuring, "CHECKED_PAIRS", 2 * 2 * 128 * 128)
    right = measuring.Sweeper._function

    def broken(batch, head):
        def function(self, name):
            def attention(q, k, v):
                wrong = q.new_ones((*q.shape[:2], 1, 1))
                wrong[batch, head] = 1.5
                return right(self, name)(q, k, v) * wrong

            return attention

        return function

    sweeper = measuring.Sweeper("cpu")
    sweeper.open(shape, timed, 3)
    for (batch, head), found in {(0, 0): True, (0, 1): True, (1, 3): True, (0, 2): False, (1, 1): False}.items():
        monkeypatch.setattr(measuring.Sweeper, "_function", broken(batch, head))
        assert sweeper.check().correct is not found


# --- tables ---


def row(family, ours, others, steps=("exp2",), timed="forward", **more):
    fields = {"problem": problem().as_dict(), "family": family, "model": "a model", "seed": 0, "versions": {}}
    times = {FRONT_DOOR: [ours] * 3, **{name: [ms] * 3 for name, ms in others.items()}}
    return Swept(pass_=timed, date="2026-11-30", steps=list(steps), milliseconds=times, **fields, **more)


@pytest.fixture
def made_up():
    """A sweep of five rows, of which one failed."""
    rows = [
        row("vision", 1.0, {"sdpa": 4.0, "sdpa_cudnn": 2.0}),
        row("vision", 2.0, {"sdpa": 1.0}, ["sdpa"]),
        row("speech", 1.0, {"sdpa": 8.0, "flash_attn_4": 1.0}, host_us={FRONT_DOOR: 4000.0, "flash_attn_4": 1000.0}),
        row("speech", 1.0, {"sdpa": 3.0}, timed="training"),
        row("speech", 1.0, {"sdpa": 3.0}, failure="hung"),
    ]
    return Sweep(schema=2, date="2026-11-30", machine=MACHINE, rows=rows)


def test_means_and_order_are_over_the_rows_of_a_pass(made_up):
    shown = made_up.of("forward")
    assert [r.ratio(r.best_peer).median for r in shown] == [0.5, 1.0, 2.0]
    means = tables.Means.of(shown)
    assert (means.count, means.best, means.least, means.behind) == (3, pytest.approx(1), 0.5, 1)
    assert means.sdpa == pytest.approx((4 * 0.5 * 8) ** (1 / 3)) and means.fell_back == 1
    assert means.by_steps == pytest.approx(2**0.5)
    assert means.eager == pytest.approx((2 * 0.5 * 0.25) ** (1 / 3))
    assert [cells[0] for cells in tables.family_rows(shown)] == ["speech", "vision", "all"]
    assert tables.swept_rows(shown)[0][:3] == ["0.50 (0.50–0.50)", "sdpa", "0.50"]
    assert tables.failed_rows(made_up) == [f"forward, {problem().describe()}: hung"]


def test_a_figure_and_a_paragraph_tell_of_all_passes(made_up, tmp_path, monkeypatch):
    from steps import report
    from tests.results.made_up import run_of

    axes = plots.sweep(made_up).axes
    assert len(axes) == 2 and sum(len(line.get_xdata()) for line in axes[0].lines if len(line.get_xdata()) != 2) == 2
    assert {text.get_text() for text in axes[0].get_legend().get_texts()} == {
        *("against SDPA", "against SDPA, left to SDPA"),
        *("against the best of the others", "against the best of the others, left to SDPA"),
    }
    [above] = [line for line in axes[0].lines if line.get_marker() == "^"]
    assert list(above.get_xdata()) == [2, 3] and set(above.get_ydata()) == {plots.HIGHEST_RATIO}
    assert axes[0].get_title(loc="left").endswith("; triangles: above 2.5, up to 8 against SDPA")
    told = tables.swept_in_words(made_up)
    assert "In the geometric mean it is 1.00 times as fast as the fastest of them on each problem" in told
    assert "(3 problems, the least 0.50, 1 left to SDPA); 3.00 times as fast" in told
    failed = made_up.model_copy(update={"rows": made_up.rows[-1:]})
    assert tables.swept_in_words(failed) == ""
    page = report.readme_table([run_of({"sdpa": 1.0, "exp2": 2.0})], [failed, made_up])
    assert page.endswith(f"{told} ![{report.FIGURE}](results/gpu/sweep.png)") and "No record holds" not in page
    write_whole(tmp_path / "gpu" / "sweep.json", as_json(made_up))
    monkeypatch.setattr(report, "read_all", lambda paths: [])
    monkeypatch.setattr(report, "ladder_report", lambda runs, folder: "")
    assert report.main([str(tmp_path)]) == 0 and (tmp_path / "gpu" / "sweep.png").exists()
