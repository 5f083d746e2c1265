"""results.json, the reports drawn from it, and the README's tables."""

import io
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from steps import MODULES, STEPS
from tutorial_lib import limits, pictures, plots, tables, timing
from tutorial_lib.files import write_whole
from tutorial_lib.problem import Problem
from tutorial_lib.report import (
    README_PARTS,
    RIVAL,
    as_csv,
    as_markdown,
    fastest,
    main,
    teaching_report,
    update_readme,
    write_report,
)
from tutorial_lib.results import ResultsError, read_run, recorded_runs, write_run

ROOT = Path(__file__).parent.parent
RECORDED = recorded_runs(ROOT / "results")
LENGTHS = {1024, 2048, 4096, 8192, 16384}


def committed() -> list[Path]:
    """The recorded files that belong to the repository; what a user measured here since is none of its claims."""
    listed = subprocess.run(["git", "ls-files", "results"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in listed.stdout.splitlines() if line.endswith("results.json")]


@pytest.fixture
def run():
    return next(r for r in RECORDED if r.the_problem().slug == "b4_h32_s4096_d128_fp16_causal")


def test_what_the_readme_speaks_of_is_recorded():
    """H100, B=4 H=32 D=128 fp16, five lengths, causal and full, every step and peer."""
    for causal in (True, False):
        runs = [r for r in RECORDED if r.the_problem().causal is causal and "H100" in r.machine["name"]]
        runs = [r for r in runs if r.the_problem().family.startswith("b4_h32_d128_fp16")]
        assert {r.the_problem().seq_len_q for r in runs} >= LENGTHS
        for r in runs:
            assert {m.number for m in r.steps} >= {0, 2, 3, 4, 5, 6, 7}
            assert {"sdpa_cudnn", "sdpa_flash", "flex", "flash_attn_4"} <= {m.name for m in r.peers if m.tflops}
            assert all(m.correct for m in r.steps if m.status == "measured")


@pytest.mark.parametrize("r", RECORDED, ids=lambda r: r.the_problem().slug)
def test_recorded_figures_follow_from_the_recorded_rounds(r):
    """Nobody typed a number: latencies, TFLOPS, speedups and verdicts are recomputed from the raw rounds."""
    for m in (m for m in [*r.steps, *r.peers] if m.status == "measured"):
        mine = [x.latency_ms[m.name] for x in r.rounds]
        latency = timing.spread(mine)
        assert (latency.median, latency.low, latency.high) == pytest.approx(
            (m.latency_ms.median, m.latency_ms.low, m.latency_ms.high)
        )
        assert m.tflops == pytest.approx(r.the_problem().flops / latency.median / 1e9)
        ratio = timing.speedup([x.latency_ms["sdpa"] for x in r.rounds], mine)
        assert ratio.median == pytest.approx(m.speedup_vs_baseline.median)
        assert timing.verdict(ratio) == m.speedup_vs_baseline.verdict
        if m.speedup_vs_previous:
            ratio = timing.speedup([x.latency_ms[m.previous] for x in r.rounds], mine)
            assert ratio.median == pytest.approx(m.speedup_vs_previous.median)
            assert timing.verdict(ratio) == m.speedup_vs_previous.verdict


def test_identical_machine_code_is_called_the_same():
    """Where two steps compile to the same instructions, a verdict other than "same" would be noise taken for news."""
    found = [(r.problem["head_dim"], m) for r in RECORDED for m in r.steps if m.speedup_vs_previous]
    pairs = [m for d, m in found if m.name == "load_order" or (m.name == "fine_grained" and d <= 128)]
    assert {m.name for m in pairs} == {"load_order", "fine_grained"}
    assert {m.speedup_vs_previous.verdict for m in pairs} == {"same"}


def test_bars_break_into_rows_that_can_be_read(run):
    """No more bars side by side than a page shows, and none left out."""
    gains = [m for m in run.steps if m.speedup_vs_previous]
    compared = [m for m in gains if 1 / plots.LEAP < m.speedup_vs_previous.median < plots.LEAP]
    drawn = {
        plots.tflops_by_step(run): [m for m in run.steps if m.tflops],
        plots.gain_by_step(run): compared,
        plots.hot_loop_by_kind(run): [m for m in run.steps if m.resources and m.resources["hot_loop"]],
        plots.predicted_and_measured(limits.compare(run), run): [c.measurement for c in limits.compare(run)],
    }
    for figure, expected in drawn.items():
        rows = [[label.get_text() for label in axes.get_xticklabels()] for axes in figure.axes]
        assert max(map(len, rows)) <= plots.STEPS_A_ROW and len(expected) > plots.STEPS_A_ROW
        assert [label.split("\n")[0] for row in rows for label in row] == [str(m.number) for m in expected]


def test_a_gain_of_nothing_has_no_minus(run):
    """A hundredth of a percent below 0 is rounded to +0.0 %."""
    ratio = run.measurement("latency").speedup_vs_previous
    nothing = ratio.model_copy(update={"median": 0.9999, "low": 0.999, "high": 1.001})
    update = {"speedup_vs_previous": nothing}
    steps = [m.model_copy(update=update) if m.name == "latency" else m for m in run.steps]
    figure = plots.gain_by_step(run.model_copy(update={"steps": steps}))
    texts = [text.get_text().split("\n")[0] for axes in figure.axes for text in axes.texts]
    assert "+0.0 %" in texts and "-0.0 %" not in texts


def test_nothing_is_drawn_outside_of_the_axes(run):
    """Also where a later panel's lines rise above those of the first."""
    steps = [m.model_copy(update={"tflops": 10 * m.tflops}) if m.name == "linked" else m for m in run.steps]
    figure = plots.tflops_by_length([run.model_copy(update={"steps": steps})])
    for axes in figure.axes:
        low, high = axes.get_ylim()
        assert low == 0 and all(0 < y <= high for line in axes.lines for y in line.get_ydata())


@pytest.mark.parametrize("dpi", [80, 110])
def test_every_colour_of_a_figure_is_kept_in_its_png(dpi):
    """A thin line does not take the colour of another, nor a light tile that of the paper."""
    from matplotlib.colors import to_rgb
    from PIL import Image

    lengths = plots.tflops_by_length([r for r in RECORDED if r.the_problem().slug.endswith("_d64_fp16_causal")])
    small = Problem(batch=1, heads=1, seq_len_q=256, seq_len_kv=256, head_dim=64, causal=True)
    tiles = pictures.tiles_of(small, 64, 64)
    drawn = {
        lengths: {to_rgb(line.get_color()) for axes in lengths.axes for line in axes.lines} | {(1, 1, 1)},
        tiles: {patch.get_facecolor()[:3] for axes in tiles.axes for patch in axes.patches} | {(1, 1, 1)},
    }
    for figure, colours in drawn.items():
        picture = Image.open(io.BytesIO(plots.png(figure, dpi))).convert("RGB")
        kept = [colour for _, colour in picture.getcolors(picture.width * picture.height)]
        assert len(kept) <= 256 and len(colours) > 2
        for colour in colours:
            assert min(max(abs(255 * a - b) for a, b in zip(colour, other)) for other in kept) <= 4, colour


def test_step_7_is_near_cudnn(run):
    """0.85 of SDPA's cuDNN backend, in the same rounds."""
    fused = [x.latency_ms["approx_division"] for x in run.rounds]
    cudnn = [x.latency_ms["sdpa_cudnn"] for x in run.rounds]
    assert timing.speedup(cudnn, fused).median >= 0.85


def test_written_and_read_it_is_the_same(run, tmp_path):
    assert read_run(write_run(run, tmp_path)) == run
    data = json.loads((tmp_path / "results.json").read_text())
    assert data["schema"] == 1
    step = data["steps"][3]
    assert set(step) >= {"number", "name", "title", "status", "reason", "latency_ms", "tflops", "percent_of_ceiling"}
    assert set(step) >= {"speedup_vs_baseline", "speedup_vs_previous", "max_error", "reference_error", "correct"}
    assert set(step) >= {"key_changes", "resources"}
    assert set(step["latency_ms"]) == {"median", "low", "high", "rounds"}
    assert set(step["speedup_vs_previous"]) == {"median", "low", "high", "verdict"}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda text: text[:200], "is not a results.json of schema 1"),
        (lambda text: text.replace('"schema": 1', '"schema": 2'), "schema: Input should be 1"),
        (lambda text: text.replace('"tflops"', '"teraflops"', 1), "steps.0"),
        (lambda text: text.replace('"measured"', '"estimated"', 1), "steps.0.status"),
    ],
)
def test_a_file_of_another_schema_is_refused_in_one_line(run, tmp_path, spoil, message):
    path = write_run(run, tmp_path)
    path.write_text(spoil(path.read_text()))
    with pytest.raises(ResultsError, match=re.escape(message)) as error:
        read_run(path)
    assert "\n" not in str(error.value)
    assert recorded_runs(tmp_path.parent) == []


def test_a_write_that_fails_leaves_the_old_file(run, tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    write_whole(path, "old")

    def fails(*arguments):
        raise OSError("disk full")

    for function in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, function, fails)
            with pytest.raises(OSError, match="disk full"):
                write_whole(path, "new")
        assert path.read_text() == "old"
        assert list(tmp_path.iterdir()) == [path]


def test_report_holds_every_step_and_how_it_was_measured(run, tmp_path):
    write_report(run, tmp_path)
    report = (tmp_path / "report.md").read_text()
    for m in run.steps:
        assert f"### {m.label}" in report
    assert run.machine["name"] in report and run.day in report and run.versions["torch"] in report
    assert f"{run.measurement('exp2').tflops:.0f}" in report
    assert "softmax: softmax_exp -> softmax_exp2" in report
    assert "SM clock" in report
    figures = {p.name for p in (tmp_path / "figures").iterdir()}
    assert figures == {f"{name}.{kind}" for name in ("tflops", "gain", "hot_loop", "limits") for kind in ("png", "svg")}
    for name in re.findall(r"\]\((figures/\S+)\)", report):
        assert (tmp_path / name).exists()


def test_reports_are_drawn_from_the_file_alone(run, tmp_path):
    for name in ("one", "two"):
        write_run(run, tmp_path / name)
    assert main([str(tmp_path)]) == 0
    for name in ("report.md", "results.csv", "figures/tflops.svg", "figures/gain.png"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert list(tmp_path.glob("by_length-*.png")) and list(tmp_path.glob("by_length-*.svg"))


def test_committed_reports_are_up_to_date():
    for path in committed():
        assert (path.parent / "report.md").read_text() == as_markdown(read_run(path), path.parent), "run `make report`"
        assert (path.parent / "results.csv").read_text() == as_csv(read_run(path)), "run `make report`"


def test_bad_paths_get_one_line(tmp_path, capsys):
    assert main([str(tmp_path / "missing.json")]) == 2
    assert main([str(tmp_path)]) == 2
    assert main(["--colour"]) == 2
    err = capsys.readouterr().err.splitlines()
    assert err.pop() == "report: the following arguments are required: PATH"
    assert len(err) == 2 and "cannot read" in err[0] and "no results.json under" in err[1]


def test_steps_of_a_skeleton_share_a_panel_whatever_their_numbers():
    run = max((r for r in RECORDED if r.machine["arch"] == "sm_90"), key=lambda r: len(r.steps))
    panels = plots._by_skeleton([m for m in run.steps if m.number])
    where = {m.name: n for n, panel in enumerate(panels) for m in panel}
    assert where["naive"] == where["mma"] == where["approx_division"] == where["sections"] == 0
    assert where["explicit"] == where["wide_block"] == 1
    assert where["wgmma"] == where["third_group"] == where["lean_sum"] == 2
    assert sum(len(panel) for panel in panels) == len([m for m in run.steps if m.number])
    some = [m for m in run.steps if m.name in ("wide_block", "wgmma", "producer")]
    assert [[m.name for m in panel] for panel in plots._by_skeleton(some)] == [["wide_block"], ["wgmma", "producer"]]


def test_the_readme_shows_what_is_recorded():
    text = (ROOT / "README.md").read_text()
    runs = [read_run(path) for path in committed()]
    for (begin, end), made in README_PARTS.items():
        assert text.split(begin)[1].split(end)[0].strip() == made(runs).strip(), (
            "results/ has changed: run `make report`"
        )
    shown = text.split("S=1024", 1)[1]
    for step in STEPS:
        assert f"| {step.number} | [{step.title}](steps/{MODULES[step.number]}.py) |" in shown


def test_the_fastest_step_is_told_only_where_it_is_known(run):
    """flash-attn-4 was measured, and what is the fastest where the newest step was; the figures are the record's."""
    best, *others = run.by_speed()
    assert all(best.latency_ms.median <= m.latency_ms.median and m.number for m in others)
    ratio = timing.speedup(*([x.latency_ms[name] for x in run.rounds] for name in (RIVAL, best.name)))
    factors = f"{best.speedup_vs_baseline.median:.2f}×, {ratio.median:.2f}×"
    table = fastest([run], "{number}-{name}")
    assert f"[{best.number}]({best.number}-{best.name}): {best.tflops:.0f} ({factors})" in table
    assert "these 1 problems" in table

    def without(name):
        steps, peers = ([m for m in group if m.name != name] for group in (run.steps, run.peers))
        return run.model_copy(update={"steps": steps, "peers": peers})

    failed = [
        m.model_copy(update={"status": "failed", "tflops": None}) if m.name == best.name else m for m in run.steps
    ]
    incomplete = [without(best.name), without(RIVAL), run.model_copy(update={"steps": failed})]
    assert fastest([run, *incomplete], "{number}-{name}") == table
    newest = run.steps[-1]
    assert newest.name != best.name  # so a record from before it still knows the fastest
    older = without(newest.name).model_copy(update={"problem": run.problem | {"dtype": "bfloat16"}})
    assert "these 2 problems" in fastest([run, older], "{number}-{name}")
    assert fastest([], "") == fastest([without(RIVAL)], "") == "No record holds both the newest step and flash-attn-4."
    wrong = [m.model_copy(update={"correct": False}) if m.name == best.name else m for m in run.steps]
    assert run.model_copy(update={"steps": wrong}).by_speed() == others


def test_a_table_by_problem_has_a_cell_for_each_run_and_a_dash_for_none(run):
    def like(**changes):
        return run.model_copy(update={"problem": run.problem | changes})

    elsewhere = run.model_copy(update={"machine": run.machine | {"name": "Another"}})
    runs = [like(seq_len_q=512), run, like(head_dim=64), like(seq_len_q=512, seq_len_kv=512), elsewhere]
    first, second = tables.by_problem([(r, f"cell {n}") for n, r in enumerate(runs)]).split("\n\n")
    assert first.splitlines() == [
        f"| {run.machine['name']}, {run.day} | S=512 | S=512x4096 | S=4096 |",
        "| --- | --- | --- | --- |",
        "| b4_h32_d64_fp16_causal | – | – | cell 2 |",
        "| b4_h32_d128_fp16_causal | cell 3 | cell 0 | cell 1 |",
    ]
    assert second.startswith("| Another") and second.endswith("| b4_h32_d128_fp16_causal | cell 4 |")


def test_a_readme_without_markers_is_refused(tmp_path):
    (tmp_path / "README.md").write_text("nothing here")
    with pytest.raises(ValueError, match="must hold the lines"):
        update_readme(tmp_path / "README.md", RECORDED)


def test_one_document_tells_the_whole_ladder(tmp_path):
    """Every step with its change, links that lead somewhere, and on the page nothing from the network."""
    text = teaching_report(RECORDED, ROOT / "results")
    for step in STEPS:
        assert f"### {step.label}: {step.title}" in text and step.change in text
    for link in re.findall(r"\]\(([^)#]+)", text):
        assert (ROOT / "results" / link).exists(), link
    for length in (1024, 2048):
        run = next(r for r in RECORDED if r.the_problem().slug == f"b4_h32_s{length}_d128_fp16_causal")
        write_run(run, tmp_path / "machine" / run.the_problem().slug)
    assert main(["--teach", str(tmp_path), str(tmp_path)]) == 0
    page = (tmp_path / "ladder.html").read_text()
    assert page.count('src="data:image/png') == len(list(tmp_path.glob("*/by_length-*.png"))) == 1
    assert not re.search(r'(src|href)="https?:', page)
