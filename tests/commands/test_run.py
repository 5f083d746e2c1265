"""``python -m steps.run``: bad input, faults, interruption, and what it leaves behind."""

import contextlib
import dataclasses
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import asdict

import pytest

from steps import PAGED, QUANTIZED, STEPS, get_step
from steps.core import fused
from steps.core.grids import GRIDS
from steps.core.ladder import get_part, whole_ladder
from steps.core.path import path as path_of
from steps.core.problems import HEADLINE
from steps.core.recorded import find_recorded, read_run
from steps.hopper.conditions import launched
from steps.hopper.skeleton import HopperStep
from steps.measuring.measure import Progress, Settings, _Contender, _profile, _summarise, _time, measure
from steps.once import named
from steps.reference.peers import PEERS, peers_of
from steps.run import (
    LOOK,
    direction_of,
    main,
    make_parser,
    make_problems,
    others_told,
    select_peers,
    steps_for,
    write_results,
)
from steps.running.showing import learned, show_run
from tests import faulty
from tests.selection import ROOT
from tests.shapes import problem
from tutorial_lib import tables
from tutorial_lib.clock import Clock
from tutorial_lib.command import BadRequest
from tutorial_lib.files import RESULTS
from tutorial_lib.problem import Problem
from tutorial_lib.report import as_markdown
from tutorial_lib.timing import Sample
from tutorial_lib.worker import Inline, Worker, WorkerFailure


def call(*arguments) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([str(a) for a in arguments])
    return status, out.getvalue(), err.getvalue()


@pytest.fixture
def inline(monkeypatch):
    """Steps are checked in this process: to start another takes longer than what most tests measure."""
    monkeypatch.setattr("steps.measuring.measure.Worker", Inline)
    monkeypatch.setattr("steps.measuring.measure.CHECKS_A_WORKER", 1000)


@pytest.fixture
def terminal(monkeypatch):
    """terminal(width, *arguments): the lines that the command shows on a terminal so wide, without any colour."""
    from rich.console import Console

    def lines(width: int, *arguments) -> list[str]:
        out = io.StringIO()
        monkeypatch.setattr(
            "steps.run.make_console",
            lambda **settings: Console(
                **{"file": out, "width": width, "force_terminal": True, "color_system": None, "highlight": False}
                | settings
            ),
        )
        status, _, err = call(*arguments)
        assert status == 0, err
        return out.getvalue().splitlines()

    return lines


def test_of_a_grid_some_problems_may_be_asked_for_by_their_names():
    def found(text):
        options = make_parser().parse_args(["--grid", "gradients", "--direction", "backward", "--problems", text])
        return [here for here, _ in make_problems(options, "cuda")]

    assert {(p.head_dim, p.seq_len_q) for p in found("d256,s1024_d64")} == {(256, 4096), (64, 1024)}
    with pytest.raises(BadRequest, match="--problems: must stand in names of gradients's, such as b4_h32_"):
        found("bf16")


def test_a_grid_is_a_family_of_problems_that_some_step_takes():
    for name, grid in GRIDS.items():
        found = [here for here, _ in make_problems(make_parser().parse_args(["--grid", name]), "cuda")]
        assert found == list(grid.problems) and len({problem.slug for problem in found}) == len(found) > 1
        for each in found:
            asked = (*STEPS[2:], get_step("narrow_values"), *PAGED[1:], *QUANTIZED[1:])
            assert any(step.unsupported(each, "sm_90") is None for step in asked), each.describe()
    assert {p.kv_heads for p in GRIDS["gqa"].problems} == {64, 8, 1}
    assert {p.batch * p.seq_len_q for p in GRIDS["constant"].problems if p.seq_len_q <= 32768} == {32768}


def test_gradients_under_masks_are_measured():
    def problems(*arguments):
        options = make_parser().parse_args(["--direction", "backward", *arguments])
        return [here for here, _ in make_problems(options, "cuda")]

    [asked] = problems("--window", "9", "--softcap", "5")
    assert (asked.window, asked.softcap) == (9, 5)
    found = problems("--grid", "gradients_windows")
    assert found == list(GRIDS["gradients_windows"].problems) and all(each.window for each in found)
    assert not any(get_step("deferred_reduce_add").unsupported(each, "sm_90") for each in found)
    found = problems("--grid", "packed")
    assert found == list(GRIDS["packed"].problems)
    found += problems("--grid", "gradients_models")
    assert {each.features for each in found} == {(), ("softcap",), ("window", "softcap"), ("lengths",)}
    for name in ("two_blocks", "deferred_reduce_add"):
        assert not any(get_step(name).unsupported(each, "sm_90") for each in found)
    with pytest.raises(BadRequest, match="--grid: latent is for attention, and not for its gradients"):
        problems("--grid", "latent")


def test_a_grid_of_fp8_is_of_the_pass_fp8():
    assert direction_of(make_parser().parse_args(["--grid", "fp8"])) == "fp8"
    assert {problem.fp8 for problem in GRIDS["fp8"].problems} == {True}
    with pytest.raises(BadRequest, match="--grid: goes without --direction backward"):
        direction_of(make_parser().parse_args(["--grid", "fp8", "--direction", "backward"]))


def test_an_output_directory_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    status, _, err = call("--output-dir", tmp_path / "file" / "results")
    assert status == 2 and "--output-dir: cannot write to" in err and len(err.splitlines()) == 1
    assert (tmp_path / "file").read_text(encoding="utf-8") == "in the way"


def test_a_disk_that_fills_up_is_one_line(inline, monkeypatch, tmp_path):
    def full(*arguments):
        raise OSError("No space left on device")

    monkeypatch.setattr("steps.run.write_results", full)
    status, _, err = call("--seq-len", 64, "--steps", "0", "--device", "cpu", "--output-dir", tmp_path)
    assert status == 1 and err == "steps.run: cannot write results: No space left on device\n"


def test_peers_are_chosen_by_name():
    def chosen(*arguments):
        return [peer.name for peer in select_peers(make_parser().parse_args(arguments).peers)]

    assert chosen() == []
    assert chosen("--peers") == chosen("--peers", "all") == [peer.name for peer in PEERS]
    assert chosen("--peers", "flash_attn_4, sdpa_cudnn") == ["sdpa_cudnn", "flash_attn_4"]


@pytest.mark.parametrize("width", [80, 100])
def test_list_names_every_step_and_its_gpus_on_one_screen(width, terminal):
    lines = terminal(width, "--list")
    text = " ".join(" ".join(lines).split())
    for step in (step for step in whole_ladder() if step.number is not None):
        assert f"({step.label})" in text if step.fork else re.search(rf"[ ]{step.label}(,|\b)", text), step.label
    assert len(lines) < 50 and max(map(len, lines)) <= width
    assert "NVIDIA since Ampere: 100 explicit, 101 swizzle" in text and "H100 (sm_90): 200 wgmma" in text
    assert "B200 (sm_100): 600 tensor_memory" in text and "MI355X (gfx950): 702 direct" in text


def test_a_part_is_listed_with_what_each_of_its_steps_changes(terminal):
    lines = terminal(80, "--list", "hopper")
    text = " ".join(" ".join(lines).split())
    assert max(map(len, lines)) <= 80 and "three_warpgroups_unordered" in text  # which is inside a step
    assert all(step.name in text for step in STEPS if step.number in get_part("hopper").numbers)
    assert "exp2" not in text and "[H100 (sm_90)]" in text


def test_defaults():
    assert make_parser().parse_args(["--timeout", "0.5"]).timeout == 0.5
    options = make_parser().parse_args([])
    assert (options.seq_len, options.head_dim, options.dtype) == ([2048], [128], ["float16"])
    assert [asked.causal for _, asked in make_problems(options, "cpu")] == [True]
    assert options.check and options.device == "auto" and options.output_dir == RESULTS and options.steps == "path"


def test_the_path_may_stand_beside_other_steps():
    """In the ladder's order, each once; what is inside a step comes last."""

    def names(text):
        options = make_parser().parse_args(["--steps", text])
        return [step.name for step in steps_for(options, HEADLINE, "cpu")]

    usual = [step.name for step in path_of(HEADLINE, "sm_90")]
    assert names("path") == usual
    options = make_parser().parse_args([])
    told = others_told(options, path_of(HEADLINE, "sm_90"))
    ends = f"from {get_step(usual[0]).label} to {get_step(usual[-1]).label}"
    others = len(STEPS) - len(usual)
    assert told.startswith(f"The path has {len(usual)} steps for this problem, {ends}. {others} others are ")
    assert "--steps all" in told and others_told(make_parser().parse_args(["--steps", "all"]), STEPS) is None
    found = names("larger_tile_four_warps, path,row_max_ilp,exp2")
    assert [name for name in found if name not in usual] == ["larger_tile_four_warps", "row_max_ilp"] and len(
        found
    ) == len(usual) + 2


def test_a_run_on_the_cpu(inline, tmp_path):
    """Two lengths, every result file, and the columns a reader without a GPU gets."""
    arguments = ["--seq-len", 96, 130, "--steps", "0,mma,7", "--device", "cpu", "--head-dim", 64, "--peers"]
    status, out, err = call(*arguments, "--output-dir", tmp_path, "--seed", 5)
    assert status == 0, err
    assert "No GPU is used" in out and "default to 1 and 2 here (4 and 32 on a GPU)" in out
    assert "hot loop: instructions per K/V tile" in out
    for seq_len in (96, 130):
        [folder] = tmp_path.glob(f"cpu-*/b1_h2_s{seq_len}_d64_fp16_causal")
        assert {p.name for p in folder.iterdir()} == {"results.json", "results.csv", "report.md", "log.txt", "figures"}
        assert {p.name for p in (folder / "figures").iterdir()} == {"hot_loop.png", "hot_loop.svg"}
        data = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        assert {"schema", "machine", "versions", "settings", "problem", "steps", "peers"} <= set(data)
        assert [s["status"] for s in data["steps"]] == ["checked"] * 3
        assert all(s["correct"] and "latency_ms" not in s for s in data["steps"])
        assert data["steps"][1]["resources"]["registers"] > 0
        assert {p["status"] for p in data["peers"]} == {"skipped"}
        assert data["settings"]["seed"] == 5
        report = (folder / "report.md").read_text(encoding="utf-8")
        assert "Nothing was timed here" in report and "divide: " not in report.split("### 2")[0]


def test_several_problems_and_of_them_only_what_is_missing(inline, tmp_path):
    def run(steps, *head_dims):
        few = ["--seq-len", 64, "--device", "cpu", "--no-check", "--missing", "--output-dir", tmp_path]
        before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*/results.json")}
        status, out, err = call(*few, "--dtype", "float16", "bfloat16", "--steps", steps, "--head-dim", *head_dims)
        assert status == 0, err
        after = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*/results.json")}
        written = sorted(path.parent.name for path in after if before.get(path) != after[path])
        assert out.count("Already recorded: B=1 H=2 S=64") == 2 * len(head_dims) - len(written)
        return written

    names = {d: [f"b1_h2_s64_d{d}_{dtype}_causal" for dtype in ("bf16", "fp16")] for d in (32, 64)}
    assert run("0", 64) == names[64]
    assert run("0", 32, 64) == names[32]
    assert run("0,1", 64) == names[64]  # a step more
    [path] = tmp_path.glob(f"*/{names[64][0]}/results.json")
    path.write_text(path.read_text(encoding="utf-8").replace('"skipped"', '"failed"', 1), encoding="utf-8")
    assert run("0,1", 64) == names[64][:1]


def test_what_only_compiles_here_is_never_called_correct(inline, tmp_path, monkeypatch):
    """What is too long for the simulator compiles, and nothing is said of its numbers."""
    monkeypatch.setattr(fused, "SIMULATED_TILES", 0)
    arguments = ["--batch", 1, "--heads", 1, "--seq-len", 64, "--head-dim", 64, "--steps", "7,20,24"]
    status, out, _ = call(*arguments, "--output-dir", tmp_path, "--device", "cpu")
    assert status == 0 and out.count("compiled, not run") == 2
    assert "Note: 104 gluon_larger_tile was compiled and not run: 1 tiles of keys, which is long" in out
    [path] = tmp_path.glob("cpu-*/*/results.json")
    run = read_run(path)
    assert {m.name: m.status for m in run.steps} == {
        "approx_division": "checked",
        "explicit": "compiled",
        "gluon_larger_tile": "compiled",
    }
    for m in run.steps[1:]:
        assert m.correct is None and m.max_error is None and m.resources["registers"] > 0
    assert (path.parent / "report.md").read_text(encoding="utf-8").count("compiled, not run") == 2


def test_a_problem_without_a_launch_rule_is_told_in_one_line(inline, tmp_path, monkeypatch):
    """Also where somebody has added a head_dim, and no rule yet."""
    asked = ["--steps", "producer", "--seq-len", 64, "--head-dim", 512, "--device", "cpu", "--output-dir", tmp_path]
    assert "Skipped: 201 producer: head_dim must be a multiple of 8 up to 256, got 512\n" in call(*asked)[1]
    monkeypatch.setattr(HopperStep, "head_dims", (*HopperStep.head_dims, 512))
    told = "no rule of [[hopper]] in steps/core/rules.toml takes head_dim 512"
    assert f"Skipped: 201 producer: {told}\n" in call(*asked)[1]
    with pytest.raises(ValueError, match="no launch rule of Hopper's kernels takes B=1 H=2 S=9 D=512 fp16 full"):
        launched(Problem(batch=1, heads=2, seq_len_q=9, seq_len_kv=9, head_dim=512))


def test_gluon_and_hopper_steps_run_on_the_cpu(inline, tmp_path):
    arguments = [
        "--batch",
        1,
        "--heads",
        1,
        "--seq-len",
        200,
        "--head-dim",
        64,
        "--steps",
        "20,24,31,pv_wait_after_max",
    ]
    status, out, _ = call(*arguments, "--output-dir", tmp_path, "--device", "cpu")
    assert status == 0 and "compiled, not run" not in out
    [path] = tmp_path.glob("cpu-*/*/results.json")
    for m in read_run(path).steps:
        assert (m.status, m.correct) == ("checked", True) and m.max_error > 0 and m.resources["registers"] > 0


def test_recorded_timings_stand_in_marked(inline, tmp_path):
    status, out, _ = call("--seq-len", 1024, "--steps", "0,7", "--device", "cpu", "--output-dir", tmp_path)
    assert status == 0
    asked = Problem(batch=4, heads=32, seq_len_q=1024, seq_len_kv=1024, head_dim=128, causal=True)
    recorded = find_recorded(asked, [RESULTS])
    assert recorded is not None
    assert f"Recorded timings were measured elsewhere: {recorded.machine['name']}" in out
    assert recorded.day in out
    assert re.search(r"recorded\s", out)
    assert f"{recorded.measurement('approx_division').tflops:.0f}" in out


def recorded_path():
    """The steps of the path as they are recorded on the headline, with two peers."""
    recorded = find_recorded(HEADLINE)
    names = {step.name for step in path_of(HEADLINE, "sm_90")}
    steps = [m for m in recorded.steps if m.name in names]
    return recorded.model_copy(update={"steps": steps, "peers": recorded.peers[:2], "inside": [], "sustained": []})


def untimed(run):
    """The same as found without a GPU."""
    none = dict.fromkeys(("latency_ms", "tflops", "speedup_vs_previous", "speedup_vs_baseline", "clock_ghz"))
    steps = [m.model_copy(update={"status": "checked", **none}) for m in run.steps]
    return run.model_copy(update={"steps": steps, "peers": [], "ceiling": None})


def shown(run, recorded, width: int | None) -> list[str]:
    """The lines of a run's table on a terminal so wide; None: in a file."""
    from rich.console import Console

    out = io.StringIO()
    kind = {"width": width or 160, "force_terminal": width is not None, "color_system": None}
    show_run(Console(file=out, highlight=False, **kind), run, recorded)
    return out.getvalue().splitlines()


def rows_of(lines: list[str], run) -> list[list[str]]:
    """Those that begin with a step's number and name: their words."""
    labels = {m.label for m in run.steps}
    return [line.split() for line in lines if " ".join(line.split()[:2]) in labels]


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_table_of_a_gpu_fits_and_breaks_no_row(width):
    run = recorded_path()
    lines = shown(run, None, width)
    rows = rows_of(lines, run)
    assert len(rows) == len(run.steps) and max(map(len, lines)) <= width and not any("…" in line for line in lines)
    [head] = [line.split() for line in lines if line.startswith("step")]
    assert head[:2] == ["step", "name"] and ("ms" in head) == ("SDPA's" in head) == (width >= 100)
    tflops = head.index("TFLOPS")
    best = run.by_speed()[0]
    assert [row[1] for row in rows if row[-1] == "fastest"] == [best.name]
    assert [row[tflops] for row in rows] == [f"{run.measurement(row[1]).tflops:.0f}" for row in rows]
    numbers = [line.index(row[tflops], 20) + len(row[tflops]) for line in lines for row in rows if line.split() == row]
    assert len(set(numbers)) == 1  # they align
    text = " ".join(lines)  # the step before is named where it is not the row above
    assert "× faster than 1 " in text and "1.29× faster " in text and "than 24" not in text


def test_a_file_is_shown_all_columns_and_no_line_is_broken():
    run = recorded_path()
    lines = shown(run, None, None)
    assert len(rows_of(lines, run)) == len(run.steps)
    [head] = [line for line in lines if line.startswith("step")]
    for header in ("title", "of the step before", "ms p10–p90", "GHz", "host µs", "cosine", "spills", "shared bytes"):
        assert header in head
    assert len({len(line) for line in lines if line.startswith("─")}) == 1


def test_tables_name_what_speeds_and_errors_stand_beside():
    for direction, whose, who in (("forward", "SDPA's", "SDPA"), ("fp8", "fp8's", "step 300")):
        run = recorded_path().model_copy(update={"direction": direction})
        [head] = [line for line in shown(run, None, None) if line.startswith("step")]
        assert f"error, of {whose}" in head and f"error ({whose})" in head and f"of {who} " in head
        assert {f"error ({whose})", f"error / {whose}", f"vs {who}"} <= {header for header, _ in tables.columns(run)}
        for its in (run, untimed(run)):
            _, told = as_markdown(its).split("## How it was measured")
            assert f"at most twice {whose} plus" in told and ("SDPA" in told) == ("13 fraction bits" not in told)


@pytest.mark.parametrize("width", [80, 100, 119, 140])
def test_recorded_timings_are_shown_without_a_broken_cell(width):
    """In a narrow terminal they have a table of their own."""
    recorded = find_recorded(HEADLINE)
    here = untimed(recorded_path())
    lines = shown(here, recorded, width)
    rows = rows_of(lines, here)
    assert len(rows) == len(here.steps) * (1 if width >= 140 else 2) and max(map(len, lines)) <= width
    [linked] = [row for row in rows[-len(here.steps) :] if row[1] == "epilogue_overlap"]
    assert f"{recorded.measurement('epilogue_overlap').tflops:.0f}" in linked
    assert sum("Recorded" in line or "recorded" in line for line in lines) > 1
    assert "no timing of this problem is recorded" in " ".join(" ".join(shown(here, None, width)).split())


def test_one_sentence_says_what_was_learned():
    run = recorded_path()
    best, gain = run.by_speed()[0], run.measurement("swizzle").speedup_vs_previous.median
    told = (
        f"is {best.label}, {best.tflops:.0f} TFLOPS, {best.speedup_vs_baseline.median:.2f}× SDPA; the largest step was "
    )
    told += f"101 swizzle, {gain:.2f}× as fast as 100 explicit."
    assert learned(run) == f"The fastest {told}"
    right = f"All {len(run.steps) - 1} steps checked here are right"
    assert learned(untimed(run), run) == f"{right}; recorded on {run.machine['name']}, the fastest {told}"
    assert learned(untimed(run)) == f"{right}."
    wrong = untimed(run)
    wrong.steps[-1] = wrong.steps[-1].model_copy(update={"correct": False, "status": "failed"})
    assert learned(wrong) == f"{len(run.steps) - 2} of {len(run.steps) - 1} steps checked here are right."


def test_who_was_skipped_is_told_once_by_the_reason():
    run = recorded_path()
    for n in (2, 3):
        run.steps[n] = run.steps[n].model_copy(update={"status": "skipped", "reason": "there is no room"})
    lines = shown(run, None, 160)
    assert [line for line in lines if "skipped" in line.lower()] == ["Skipped: 2 mma, 3 exp2: there is no room"]
    assert len(rows_of(lines, run)) == len(run.steps) - 2


def test_no_recorded_timings_of_another_problem(tmp_path):
    asked = Problem(batch=4, heads=32, seq_len_q=1000, seq_len_kv=1024, head_dim=128, causal=True)
    assert find_recorded(asked, [RESULTS]) is None
    assert find_recorded(asked, [tmp_path]) is None


def cpu_settings(**changes) -> Settings:
    return Settings(**{"device": "cpu", "seed": 1, "timeout": 300.0} | changes)


def test_unchecked_on_the_cpu_is_never_called_checked(inline):
    run, _, _ = measure(problem(), [STEPS[0], STEPS[7]], [], cpu_settings(check=False))
    assert [m.status for m in run.steps] == ["skipped", "compiled"]
    assert run.steps[0].reason == "neither checked nor timed"
    assert run.steps[1].correct is None and run.steps[1].max_error is None


class Impatient(Worker):
    """Waits for a step that hangs no longer than an answer takes, and for others as usual."""

    def call(self, method, *args, timeout):
        hangs = any(getattr(arg, "name", None) == "hangs" for arg in args)
        return super().call(method, *args, timeout=1.0 if hangs else timeout)


def test_a_failing_step_costs_no_other_its_result(monkeypatch):
    bad = [faulty.raises, faulty.wrong, faulty.dies, faulty.hangs]
    steps = [STEPS[0], *(faulty.make(f, 90 + n) for n, f in enumerate(bad)), STEPS[7]]
    monkeypatch.setattr("steps.measuring.measure.Worker", Impatient)
    run, interrupted, _ = measure(problem(), steps, [], cpu_settings())
    assert not interrupted
    found = {m.name: m for m in run.steps}
    assert found["sdpa"].status == found["approx_division"].status == "checked"
    assert {found[f.__name__].status for f in bad} == {"failed"}
    assert found["raises"].reason == "RuntimeError: this step raises"
    assert found["wrong"].reason.startswith("wrong result: the largest error is 0.1")
    assert found["wrong"].correct is False
    assert found["dies"].reason.startswith("the process died (SIGSEGV)")
    assert found["hangs"].reason == "hung: no answer within 1 s (see --timeout)"


def test_a_failure_gives_exit_status_1(inline, monkeypatch, tmp_path):
    monkeypatch.setattr("steps.run.steps_for", lambda *asked: [STEPS[0], faulty.make(faulty.wrong)])
    status, out, _ = call("--seq-len", 64, "--device", "cpu", "--output-dir", tmp_path)
    assert status == 1
    assert "90 wrong failed: wrong result" in out
    assert len(list(tmp_path.glob("*/*/results.json"))) == 1


def test_what_does_not_fit_in_memory_is_skipped_with_the_numbers(inline, monkeypatch):
    monkeypatch.setattr("steps.measuring.measure.available_bytes", lambda device: 10**6)
    run, _, _ = measure(problem(), [STEPS[0], STEPS[1]], [], cpu_settings())
    assert {m.status for m in run.steps} == {"skipped"}
    assert "GB of memory, 0.0 GB are free" in run.steps[0].reason


@pytest.fixture
def start():
    """start(arguments): the command as a process of its own, in a group of its own; nothing of it outlives a test."""
    started = []

    def begin(*arguments) -> subprocess.Popen:
        command = [sys.executable, "-u", "-m", "steps.run", *map(str, arguments)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8"}
        # What a shell starts in the background ignores Ctrl-C, and so would all that it starts.
        hears = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
        started.append(subprocess.Popen(command, cwd=ROOT, start_new_session=True, **hears, **pipes))
        return started[-1]

    yield begin
    for process in started:
        kill(process)


def kill(process: subprocess.Popen) -> None:
    """The process and all that it started, at once."""
    with contextlib.suppress(ProcessLookupError):  # there is nobody left
        os.killpg(process.pid, signal.SIGKILL)


def wait_for(condition, process: subprocess.Popen) -> None:
    """Until the condition holds or the process has ended: a sign of progress, and never a time."""
    while not condition() and process.poll() is None:
        time.sleep(0.01)


def test_ctrl_c_keeps_what_is_finished(start, tmp_path):
    """Interrupted while the second of two lengths runs: the first is whole, the second says how far it came."""
    arguments = ["--seq-len", 64, 20000, "--steps", "0,2-7", "--device", "cpu", "--output-dir", tmp_path]
    process = start(*arguments)
    wait_for(lambda: list(tmp_path.glob("*/*_s64_*/report.md")), process)  # the second length is next; it takes minutes
    assert process.poll() is None, process.communicate()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to everybody in the foreground
    out, err = process.communicate()
    assert process.returncode == 130, out + err
    assert "Interrupted" in err and "Traceback" not in err
    [first] = tmp_path.glob("*/*_s64_*/results.json")
    assert {m.status for m in read_run(first).steps} == {"checked"}
    interrupted = list(tmp_path.glob("*/*_s20000_*-interrupted/results.json"))
    assert "what was finished is kept" in err or not interrupted
    for path in interrupted:
        statuses = {m.status for m in read_run(path).steps}
        assert "skipped" in statuses and any("interrupted" in (m.reason or "") for m in read_run(path).steps)
    assert not list(tmp_path.glob("*/*_s20000_*causal/results.json"))  # what was interrupted replaces nothing


def test_killed_at_any_moment_the_earlier_result_stays(inline, start, tmp_path):
    arguments = ["--seq-len", 64, "--steps", "0,2", "--device", "cpu", "--output-dir", tmp_path]
    assert call(*arguments)[0] == 0
    [path] = tmp_path.glob("*/*/results.json")
    moments = {  # what is there to be seen -> of the process, and of the record's time before it
        "its first word": lambda process, before: process.stdout.readline(),
        "it writes": lambda process, before: wait_for(lambda: list(path.parent.glob(".results.json.*")), process),
        "it has written": lambda process, before: wait_for(lambda: path.stat().st_mtime_ns != before, process),
    }
    for wait in moments.values():
        process = start(*arguments)
        wait(process, path.stat().st_mtime_ns)
        kill(process)
        process.communicate()
        assert len(read_run(path).steps) == 2


NCU = """#!{python}
import sys
numbers = {numbers}
names = sys.argv[sys.argv.index("steps.once") + 1].split(",")
print("called for", *names, file=open({log!r}, "a"))
if {broken!r} in names:
    sys.exit("==ERROR== broken")
if {broken!r} == "short" and len(names) > 1:
    names.pop()
print('"ID","Metric Name","Metric Unit","Metric Value"')
for n, number in enumerate(numbers[name] for name in names):
    print(f'"{{n}}","gpu__time_duration.sum","us","{{number}}"')
"""


@pytest.mark.parametrize("broken", ["nothing", "short", "exp2"])
def test_counters_are_read_in_one_go_and_one_by_one_where_that_fails(broken, monkeypatch, tmp_path):
    steps = [STEPS[n] for n in (7, 2, 0, 3)]
    log, numbers = tmp_path / "log", {s.name: s.number for s in steps}
    (tmp_path / "ncu").write_text(
        NCU.format(python=sys.executable, numbers=numbers, log=str(log), broken=broken), encoding="utf-8"
    )
    (tmp_path / "ncu").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    contenders = [_Contender(step, status="measured") for step in steps] + [_Contender(STEPS[4], status="failed")]
    notes = _profile(problem(), contenders, cpu_settings(), Progress())
    read = {c.step.number: c.counters and c.counters["time_us"] for c in contenders}
    called = log.read_text(encoding="utf-8").splitlines()
    assert called[0] == "called for approx_division mma exp2" and len(called) == (1 if broken == "nothing" else 4)
    if broken == "exp2":
        assert notes == ["3 exp2: ncu failed: ==ERROR== broken"] and read == {7: 7, 2: 2, 0: None, 3: None, 4: None}
    else:
        assert notes == [] and read == {7: 7, 2: 2, 0: None, 3: 3, 4: None}


def test_counters_of_all_kernels_of_a_step_are_put_together(monkeypatch):
    """Two kernels of which one has the keys and one the queries, and a step with one."""
    steps = [get_step(name) for name in ("conflict_free_layout", "two_kernels")]
    kernels = [{"time_us": n} for n in (1.0, 2.0, 4.0)]
    monkeypatch.setattr("steps.measuring.measure.read_counters", lambda command, kernel, timeout: kernels)
    monkeypatch.setattr("steps.measuring.measure.find_ncu", lambda: "ncu")
    contenders = [_Contender(step, status="measured") for step in steps]
    assert _profile(HEADLINE, contenders, cpu_settings(), Progress()) == []
    assert [c.counters["time_us"] for c in contenders] == [1.0, 6.0]


def test_peers_that_name_their_kernels_are_counted_beside_steps(monkeypatch):
    """Of the pass that is measured. Of flash-attn-4 a kernel is asked for, of PyTorch's memory-efficient one none."""
    peers = {peer.name: peer for peer in peers_of("backward")}
    steps = [
        get_step("conflict_free_layout"),
        peers["flash_attn_4"],
        peers["sdpa_efficient"],
        get_step("sdpa_gradients"),
    ]
    asked = []

    def read(command, kernel, timeout):
        asked.append((command[3], command[5], kernel))
        return [{"time_us": 1.0}, {"time_us": 2.0}]

    monkeypatch.setattr("steps.measuring.measure.read_counters", read)
    monkeypatch.setattr("steps.measuring.measure.find_ncu", lambda: "ncu")
    contenders = [_Contender(step, status="measured") for step in steps]
    assert _profile(HEADLINE, contenders, cpu_settings(), Progress()) == []
    assert [c.counters and c.counters["time_us"] for c in contenders] == [1.0, 2.0, None, None]
    [(names, direction, kernel)] = asked
    assert kernel == "fmha|flash_bwd_sm" and named(names, HEADLINE, direction) == steps[:2]


class FakeWorker:
    """Answers as a worker with a GPU would, from a script: lets the timing loop be tested where there is none."""

    def __init__(self, failing=()):
        self.failing = dict(failing)
        self.sampled = []

    def call(self, method, *arguments, timeout):
        if method == "prepare":
            return None
        assert method == "sample"
        name, sustained = arguments
        self.sampled.append(name)
        if self.failing.get(name, 0) and self.sampled.count(name) >= self.failing[name]:
            raise WorkerFailure("RuntimeError: CUDA error: an illegal memory access was encountered")
        clock = {"sdpa": 1.6, "mma": 1.8, "exp2": 1.5, "ceiling": 1.5}[name]
        return asdict(
            Sample(
                milliseconds={"sdpa": 1.0, "mma": 2.0, "exp2": 1.6, "ceiling": 1.4}[name] * (1.1 if sustained else 1),
                gpu=None,
                host_us=None if sustained else 20.0,
                clock=None if name == "mma" and self.sampled.count(name) == 1 else Clock(clock, clock, clock),
                no_clock="SM 3 was read only once" if name == "mma" and self.sampled.count(name) == 1 else None,
                joules=0.7 if sustained else None,
            )
        )


def timed(failing=(), **of_settings):
    """A run as the timing loop and the summary make it, of SDPA, mma and exp2 with fixed latencies."""
    contenders = [_Contender(get_step(name), runs=True) for name in ("sdpa", "mma", "exp2")]
    rounds: list[dict] = []
    going_on: list[dict] = []
    settings = cpu_settings(rounds=4, **of_settings)
    notes = _time(FakeWorker(failing), contenders, settings, rounds, going_on, Progress())
    return _summarise(problem(), contenders, settings, rounds, going_on, notes)


@pytest.mark.parametrize(("multiprocessors", "rounds"), [(132, 0), (264, 4)])
def test_a_run_beside_another_process_says_so(monkeypatch, multiprocessors, rounds):
    """1.4 ms at 1.5 GHz are what the product takes 132 SMs, and twice what it takes 264."""
    machine = {"name": "A GPU", "slug": "a-gpu", "arch": "sm_90", "multiprocessors": multiprocessors}
    monkeypatch.setattr("steps.measuring.measure.describe_machine", lambda *_: machine)
    told = [note for note in timed().notes if note.startswith("Another process must have used the GPU")]
    assert [f"in {rounds} of 4 rounds" in note for note in told] == [True] * bool(rounds)


def test_every_round_holds_everybody_and_ratios_are_taken_inside_it():
    run = timed()
    assert len(run.rounds) == 4
    assert all(set(r.latency_ms) == {"sdpa", "mma", "exp2", "ceiling"} for r in run.rounds)
    mma, exp2 = run.measurement("mma"), run.measurement("exp2")
    assert mma.speedup_vs_baseline.median == 0.5 and mma.speedup_vs_previous is None  # naive took no part
    assert exp2.speedup_vs_previous.median == 1.25 and exp2.speedup_vs_previous.verdict == "faster"
    assert exp2.latency_ms.rounds == 4 and run.ceiling.tflops == pytest.approx(2 * 8192**3 / 1.4e-3 / 1e12)
    # exp2 takes 1.6 ms at 1.5 GHz, mma 2 ms at 1.8: 1.5 times fewer cycles, at 5/6 of the clock.
    assert (exp2.clock_ghz, exp2.cycles, exp2.host_us) == (1.5, pytest.approx(2.4e6), 20.0)
    assert run.split(exp2, mma) == (pytest.approx(1.5), pytest.approx(1.5 / 1.8))
    assert (run.ceiling.clock_ghz, exp2.sustained, run.sustained) == (1.5, None, [])
    # A sample without a clock costs its clock alone.
    assert [("mma" in r.clock_ghz) for r in run.rounds] == [False, True, True, True]
    assert mma.clock_ghz == 1.8 and mma.latency_ms.rounds == 4
    assert "The clock of 1 samples is not known: SM 3 was read only once." in run.notes


def test_who_fails_while_it_is_timed_leaves_and_the_others_finish():
    run = timed({"mma": 3})
    assert run.measurement("mma").status == "failed" and "illegal memory access" in run.measurement("mma").reason
    assert run.measurement("exp2").status == "measured" and len(run.rounds) == 4
    assert run.measurement("exp2").speedup_vs_previous is None  # it was not in every round
    run = timed({"ceiling": 1})
    assert run.ceiling is None and any(note.startswith("There is no ceiling") for note in run.notes)
    assert run.measurement("exp2").status == "measured" and run.measurement("exp2").percent_of_ceiling is None
    run = timed({"sdpa": 2})
    assert run.measurement("sdpa").status == "failed"
    assert run.measurement("exp2").status == "measured" and run.measurement("exp2").speedup_vs_baseline is None


def test_a_load_that_goes_on_is_measured_behind_the_rounds():
    run = timed(sustained=2)
    assert (len(run.rounds), len(run.sustained)) == (4, 2)
    exp2 = run.measurement("exp2")
    assert exp2.latency_ms.median == 1.6 and exp2.sustained.latency_ms.median == pytest.approx(1.76)
    assert exp2.sustained.joules == 0.7 and exp2.sustained.watts == pytest.approx(0.7 / 1.76e-3)
    assert exp2.sustained.cycles == pytest.approx(1.76e6 * 1.5) and exp2.host_us == 20.0
    assert run.ceiling.sustained.tflops == pytest.approx(2 * 8192**3 / 1.54e-3 / 1e12)
    run = timed(sustained=2, lasting=("exp2",))  # some steps alone
    assert [set(r.latency_ms) for r in run.sustained] == [{"sdpa", "exp2", "ceiling"}] * 2
    assert run.measurement("mma").sustained is None and run.measurement("mma").latency_ms.rounds == 4
    assert run.measurement("exp2").sustained and run.ceiling.sustained


def test_who_fails_in_the_load_that_goes_on_keeps_its_rounds():
    run = timed({"mma": 6, "sdpa": 6}, sustained=2)
    for name in ("mma", "sdpa"):
        m = run.measurement(name)
        assert m.status == "measured" and m.sustained is None and m.latency_ms.rounds == 4
        assert any(note.startswith(f"{m.label} did not last in the load that goes on: RuntimeE") for note in run.notes)
    assert run.measurement("exp2").sustained.latency_ms.rounds == 2


def test_what_is_inside_a_step_is_measured_by_its_name(inline, tmp_path):
    arguments = ["--batch", 1, "--heads", 1, "--seq-len", 64, "--head-dim", 64, "--device", "cpu"]
    status, out, _ = call(*arguments, "--steps", "larger_tile_four_warps", "--output-dir", tmp_path)
    assert status == 0 and "A larger tile, four warps" in out
    [path] = tmp_path.glob("cpu-*/*/results.json")
    assert [m.status for m in read_run(path).inside] == ["checked"] and "A larger tile" in (
        path.parent / "report.md"
    ).read_text(encoding="utf-8")


def test_the_rules_of_every_launch_are_told_once(monkeypatch, tmp_path):
    """When a step is checked; a timed launch tells nothing."""
    monkeypatch.setenv("FMHA_PROFILE", "1")
    status, _, error = call("--seq-len", 64, "--steps", "exp2,pv_wait_after_max", "--output-dir", tmp_path)
    told = [line for line in error.splitlines() if line.startswith("FMHA_PROFILE: ")]
    assert status == 0 and [line.split("Choice=")[1] for line in told] == ["CPU_Block_64x64", "SM90_TwoGroups_128x128"]


def test_what_is_timed_or_repeated_tells_no_rules(monkeypatch, capfd):
    """The check tells them, once for every kernel."""
    from steps.core.launch import PROFILE
    from steps.measuring import bench

    monkeypatch.setenv(PROFILE, "1")
    monkeypatch.setattr(bench.timing, "plan_sample", lambda call: None)
    monkeypatch.setattr(bench, "Stopwatch", lambda: None)
    step = dataclasses.replace(get_step("mask_loops"))
    timed = bench.Bench(problem(heads=1, kv_heads=1, seq_len_q=16, seq_len_kv=16), "backward", "cpu", 0, check=True)
    monkeypatch.setattr(timed, "_call", lambda step: lambda i: timed.kind.call(step, timed.problem, timed.inputs))
    assert timed.check(step).correct
    assert capfd.readouterr().err.count(PROFILE) == 2
    assert timed.repeat(step) == 0
    timed.prepare(step)
    timed.calls[step.name](0)
    assert capfd.readouterr().err == "" and os.environ[PROFILE] == "1"


def test_the_best_backward_step_is_the_fastest_recorded_one(inline, tmp_path):
    from steps import best

    status, out, _ = call("--direction", "backward", "--steps", "best", "--seq-len", 64, "--output-dir", tmp_path)
    [path] = tmp_path.glob("*/*/results.json")
    run = read_run(path)
    asked = dataclasses.replace(run.the_problem(), batch=4, heads=32, kv_heads=32)  # which the CPU computes less of
    choice = best(asked, "sm_90", direction="backward")
    assert status == 0 and choice.step.direction == "backward"
    assert [m.name for m in run.steps if m.status == "checked"] == [choice.step.name]
    assert choice.step.label in " ".join(out.split())


def test_a_look_of_few_rounds_replaces_no_record_of_more(tmp_path):
    record = recorded_path()
    look = record.model_copy(update={"rounds": record.rounds[:5]})
    folder = write_results(record, False, tmp_path, None, "log")
    assert write_results(look, False, tmp_path, None, "log", look=True) == folder / LOOK
    assert len(read_run(folder).rounds) == len(record.rounds) > 5 == len(read_run(folder / LOOK).rounds)
    assert write_results(look, False, tmp_path, None, "log") == folder  # as many as were asked for
    assert len(read_run(folder).rounds) == 5
