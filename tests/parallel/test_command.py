"""``steps.run --parallel``: bad requests, what it writes, and what every rank says where one of them fails."""

import contextlib
import io
import os
import re
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from steps import PARALLEL, get_step, lesson_together, show
from steps.core.problems import LONG
from steps.core.recorded import read_run, recorded_runs
from steps.measuring.measure import Settings, _Contender, _summarise
from steps.measuring.parallel import one_gpu
from steps.parallel.peers import peers_over_ranks
from steps.run import main
from tests.selection import ROOT, sampled
from tutorial_lib.passes import FORWARD
from tutorial_lib.report import write_report
from tutorial_lib.results import as_json, write_run
from tutorial_lib.timing import Sample

ASKED = [step.name for step in PARALLEL if step.number]  # in their order; of both directions
SMALL = ["--seq-len", "64", "--head-dim", "64"]


def call(*arguments) -> tuple[int, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([str(a) for a in arguments])
    return status, err.getvalue()


def together(module: str, *arguments, ranks: int = 2) -> subprocess.CompletedProcess:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [*launch, "-m", module, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", env=os.environ)


def test_what_a_rank_does_is_shown_beside_the_step_before(capsys):
    assert show.main(["zigzag"]) == 0
    assert capsys.readouterr().out == get_step("zigzag").source()
    assert show.main(["double_buffering", "--against", "ring"]) == 0
    out = capsys.readouterr().out
    marked = [line for line in out.splitlines() if line[:2] in ("+ ", "- ") and "new, - gone" not in line]
    assert marked == [
        "- ring = Ring(share=in_order, ahead=False)",
        "+ double_buffering = Ring(share=in_order, ahead=True)",
    ]
    assert show.main(["ring", "--against", "exp2"]) == 2
    assert "argument --against: step 3 exp2 does not compute over several GPUs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "torchrun started 4 processes for one measurement: say --parallel"),
        (["--parallel", "warp"], "argument --parallel: no step warp; did you mean larger_tile"),
        (["--parallel", "exp2"], f"step 3 exp2 computes on one GPU; over several compute {', '.join(ASKED)}"),
        (["--parallel", "--sustained"], "argument --parallel: goes without --sustained"),
        (["--parallel", "--steps", "ring"], "argument --parallel: goes without --steps"),
        (["--parallel", "ring", "--page-size", "16"], "argument --parallel: goes without --page-size"),
        (
            ["--parallel", "--peers", "sdpa_cudnn"],
            "argument --peers: no peer sdpa_cudnn; all takes those there are",
        ),
        (
            ["--parallel", "ring", "--seq-len", "66"],
            "--seq-len: step 801 ring: the sequence must be a multiple of 4 tokens",
        ),
        (["--parallel", "ring", "--seq-len-q", "66"], "argument --seq-len-q: step 801 ring: the sequence must be"),
        (["--parallel", "ring", "--seq-len-kv", "66", "--no-causal"], "argument --seq-len-kv: step 801 ring: the seq"),
        (["--parallel", "ring", "--seq-len-q", "64", "--seq-len", "66"], "argument --seq-len: step 801 ring: the seq"),
        (["--parallel", "zigzag", "--seq-len", "68"], "step 803 zigzag: the sequence must be a multiple of 8 tokens"),
    ],
)
def test_a_bad_request_is_one_line_with_the_rank(arguments, told, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "2")
    status, err = call("--device", "cpu", *SMALL, *arguments)
    assert status == 2 and err.startswith("steps.run, rank 2 of 4: ") and told in err and err.count("\n") == 1


def test_a_lesson_says_what_a_rank_said(monkeypatch):
    odd = replace(lesson_together.CHECKED, seq_len_q=66, seq_len_kv=66)
    monkeypatch.setattr(lesson_together, "CHECKED", odd)
    monkeypatch.setattr(lesson_together, "RANKS", 2)
    with pytest.raises(RuntimeError) as raised:
        lesson_together.checked("forward")
    told = "argument --seq-len: step 803 zigzag: the sequence must be a multiple of 4 tokens for 2 ranks, got 66"
    assert re.fullmatch(rf"steps\.run, rank [01] of 2: {told}", str(raised.value))


def test_without_a_ranks_word_the_last_line_is_told():
    assert lesson_together.last_words("a warning\nno port is free\n\n") == "no port is free"
    assert lesson_together.last_words("") == "the processes ended without a word"


def test_a_lesson_shows_the_record_beside_the_model_where_there_is_one(tmp_path):
    def told(lesson):
        pages = (lesson.machine(), lesson.predict(), lesson.predict(2.0), lesson.time())
        return [" ".join(part for part in page.parts if isinstance(part, str)) for page in pages]

    grouped = replace(LONG, kv_heads=8)
    lesson = lesson_together.LessonTogether("zigzag", grouped)
    machine, asked, answered, time = told(lesson)
    m = lesson.recorded.measurement("zigzag")
    assert lesson.recorded.machine["name"] in machine and "compared with the measurement below" in asked
    assert f"| {m.percent_of_ideal:.1f} % |" in time and "context parallelism, allgather" in time
    assert f"**{m.speedup_vs_previous.median:.2f}×" in time and "Your guess said 2.00" in time
    [before, now] = (
        next(line for line in time.splitlines() if line.startswith(f"| {label} |"))
        for label in ("802 double_buffering", "803 zigzag")
    )
    as_checked = [lesson_together._as_checked(lesson.recorded.measurement(n)) for n in ("zigzag", "copy_engines")]
    assert as_checked == ["803 zigzag", "805 copy_engines, without copy engines"]
    assert before.endswith("| – | – |") and now.endswith(f"| 0 | {m.exchange.open_ms.median:.3g} |")  # in one: lost
    assert "the model says 1.50 times as fast" in answered  # three halves of a part in order, one in a zigzag
    machine, asked, answered, time = told(lesson_together.LessonTogether("zigzag", grouped, tmp_path))
    assert "Not timed." in machine and "Nobody has timed either" in asked and "Checked on CPUs, not timed." in time
    assert "On 8 GPUs over NVLink" in answered


def test_a_lesson_over_several_gpus_tells_of_a_step_that_has_none_before_it(tmp_path):
    grouped = replace(LONG, kv_heads=8)

    def told(name: str, **where) -> str:
        lesson = lesson_together.LessonTogether(name, grouped, **where)
        return " ".join(part for part in lesson.time().parts if isinstance(part, str))

    assert "Recorded, not measured here" in told("gather") and "Times as fast" not in told("gather")
    gradients = told("zigzag_gradients")
    assert f"--parallel {','.join(ASKED)} " in gradients and "--direction backward" in gradients


def test_on_the_cpu_it_is_checked_and_not_timed(tmp_path):
    done = together(
        "steps.run", "--parallel", "zigzag,ulysses", *SMALL, "--direction", "backward", "--output-dir", tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Written: ") == 1
    [path] = tmp_path.glob("cpu-*-x2/b1_h2_s64_d64_fp16_causal_backward/results.json")
    run = read_run(path)
    assert run.ranks == 2 and not run.timed and run.machine["name"].startswith("2 × CPU")
    assert [(m.name, m.status, m.gpus, m.correct) for m in run.steps] == [
        ("zigzag_gradients", "checked", 2, True),
        ("ulysses_gradients", "checked", 2, True),
    ]
    kv = 2 * 2 * 32 * 64 * 2  # bytes of a rank's keys and values; the sums of their gradients are float32
    assert run.measurement("zigzag_gradients").exchange.sent_bytes == kv + 2 * kv
    assert run.measurement("zigzag_gradients").file == "steps/parallel/step803_zigzag.py"
    assert {p.name for p in path.parent.iterdir()} == {"results.json", "results.csv", "report.md", "log.txt"}


SAID = re.compile(r"^.*steps\.run: (.*)$", re.MULTILINE)
WORDS = {
    "dies": {"rank 0 of 2 stops, because another rank has ended", "rank 0 of 2 stops, because torchrun ended it"},
    "silent": {"rank 0 of 2 stops, because another rank did not answer in time"},
}


@sampled(core=lambda fault: fault == "dies")  # without torchrun both are in test_steps.py
@pytest.mark.parametrize("fault", ["dies", "silent"])
def test_where_a_rank_fails_every_other_says_so_in_one_line(tmp_path, fault):
    done = together("tests.parallel.breaking", fault, "--parallel", "ring", *SMALL, "--output-dir", tmp_path)
    assert done.returncode == 1
    said = SAID.findall(done.stderr)
    first = [line for line in said if line.startswith("rank 0")]
    assert len(first) == 1 and any(first[0].startswith(words) for words in WORDS[fault]), done.stderr
    second = [line for line in said if line.startswith("rank 1")]
    told = "rank 1 of 2 stops, because torchrun ended it, as it does when another rank has failed"
    assert second == ([told] if fault == "silent" else []), done.stderr
    assert list(tmp_path.iterdir()) == []


# --- what a GPU would measure, from samples that are made up ---

TIMES = {"one_gpu": (10.0,), "ring": (8.0, 6.0, 3.0), "double_buffering": (6.2, 6.0, 3.0), "ceiling": (1.4,)}


def timed_run(problem, ranks: int = 4):
    """A run of four GPUs as the summary makes it: the milliseconds of a call, of its computing, and of its sending."""
    steps = [one_gpu(problem, "sm_90", "forward"), get_step("ring"), get_step("double_buffering")]
    contenders = [_Contender(step, status="measured", reason=None, runs=True) for step in steps]
    for contender in contenders[1:]:
        contender.sent_bytes = 3 * 10**9
    rounds = []
    for noise in (1.0, 1.01):
        sampled = {}
        for name, (whole, *parts) in TIMES.items():
            sampled[name] = asdict(Sample(milliseconds=whole * noise, gpu=None))
            sampled[name] |= dict(zip(("computing_ms", "sending_ms"), (ms * noise for ms in parts)))
        rounds.append(sampled)
    settings = Settings(device="cpu", seed=1, rounds=2, isolated=False, ranks=ranks)
    return _summarise(problem, contenders, settings, rounds, [], [], steps[0])


def test_a_run_over_several_gpus_tells_the_share_of_ideal_and_what_of_the_sending_is_hidden(tmp_path):
    run = timed_run(LONG)
    assert run.ranks == 4 and [m.name for m in run.steps] == ["ring", "double_buffering"]
    ring = run.steps[0]
    assert ring.speedup_vs_baseline.median == pytest.approx(10 / 8) and ring.percent_of_ideal == pytest.approx(
        100 / 3.2
    )
    [alone] = run.peers
    assert alone.tflops == pytest.approx(FORWARD.operations(LONG) / 10.05e9) and alone.percent_of_ideal == 100
    assert ring.tflops == pytest.approx(alone.tflops * 10 / 8 / 4)
    told = [(m.exchange.hidden_ms.median, m.exchange.open_ms.median) for m in run.steps]
    assert told == [pytest.approx((1.005, 2.01)), pytest.approx((2.814, 0.201))]
    assert run.rounds[0].sending_ms == {"ring": 3.0, "double_buffering": 3.0}
    found = read_run(write_run(run, tmp_path / "a-gpu-x4" / "problem"))
    assert as_json(found) == as_json(run)
    assert recorded_runs(tmp_path) == [] and recorded_runs(tmp_path, several=True) == [found]
    write_report(run, tmp_path / "a-gpu-x4" / "problem")
    report = (tmp_path / "a-gpu-x4" / "problem" / "report.md").read_text(encoding="utf-8")
    assert (
        "| TFLOPS a GPU |" in report
        and "| of ceiling |" in report
        and "| of ideal |" in report
        and "| 3,000 | 3.02 | 2.81 | 0.201 |" in report
    )


@pytest.mark.parametrize(("ranks", "sets"), [(4, 1), (1, 2)])
def test_a_run_records_the_sets_of_inputs_that_took_turns(monkeypatch, ranks, sets):
    short = replace(LONG, batch=1, heads=1, kv_heads=1, seq_len_q=1024, seq_len_kv=1024)
    cache = FORWARD.tensor_bytes(short)  # two sets are twice as large
    machine = {"name": "a GPU", "l2_bytes": cache}
    monkeypatch.setattr("steps.measuring.measure.describe_machine", lambda *_: machine)
    assert timed_run(short, ranks).settings["input_sets"] == sets


def test_one_gpu_alone_runs_the_step_that_computes_the_parts():
    for direction in ("forward", "backward"):
        alone = one_gpu(LONG, "sm_90", direction)
        assert (alone.name, alone.number, alone.previous, alone.several) == ("one_gpu", None, None, False)
        assert alone.unsupported(LONG, "sm_90") is None and alone.direction == direction and alone.key_changes()


def test_peers_over_ranks_are_timed_on_a_gpu_only():
    for direction in ("forward", "backward"):
        peers = peers_over_ranks(direction)
        assert [peer.name for peer in peers] == ["context_parallel_allgather", "context_parallel_alltoall"]
        assert {peer.unsupported(LONG, "cpu") for peer in peers} == {"peers are timed on a GPU only"}
        assert {peer.unsupported(LONG, "sm_90") for peer in peers} == {None}
