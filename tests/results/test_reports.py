"""Reports, the document of the whole ladder and the README's table: made from results.json alone."""

import dataclasses
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from steps import INSIDE, STEPS, get_step, report
from steps.core.grids import GRIDS
from steps.core.ladder import part_of
from steps.core.problems import FULL, HEADLINE
from steps.core.recorded import read_run, recorded_sweeps
from tests.results.made_up import measurement, run_of
from tests.results.recorded import PATHS, RECORDED, ROOT, recorded, tracked
from tutorial_lib import plots, tables
from tutorial_lib.problem import Problem
from tutorial_lib.report import as_markdown, best_by_problem, link, write_report
from tutorial_lib.results import ResultsError, of_every_part, of_most_problems, write_run

LINKS = re.compile(r"\]\(([^)#]+)\)")
PLACE = ROOT / "results" / "nvidia-h100-80gb-hbm3" / recorded().the_problem().slug


KINDS = ("steps", "inside", "peers")


def small(problem=HEADLINE, **fields):
    """A run with the best of two parts, and a rival."""
    times = {"sdpa": 1.0, "exp2": 0.9, "mask_loop": 0.9005, "epilogue_overlap": 0.5, "flash_attn_4": 0.8}
    run = run_of(times, problem=problem, peers=("flash_attn_4",), **fields)
    parts = {"exp2": "cutile", "mask_loop": "cutile", "epilogue_overlap": "hopper"}
    steps = [m.model_copy(update={"part": parts.get(m.name), "file": f"steps/{m.name}.py"}) for m in run.steps]
    return run.model_copy(update={"steps": steps})


@pytest.fixture
def blank_figures(monkeypatch):
    """Figures are drawn, and a dot is written for each, which is faster: test_figures.py looks into them."""

    def save(figure, folder, name, svg=True, dpi=80):
        from PIL import Image

        folder.mkdir(exist_ok=True)
        paths = [folder / f"{name}.png", folder / f"{name}.svg"][: 1 + svg]
        Image.new("L", (1, 1)).save(paths[0])
        for path in paths[1:]:
            path.touch()
        return paths

    monkeypatch.setattr(plots, "save", save)
    monkeypatch.setattr(report, "ProcessPoolExecutor", lambda: ThreadPoolExecutor(1))  # a process knows nothing of it


def test_report_holds_every_step_and_how_it_was_measured(tmp_path, blank_figures):
    run = recorded()
    write_report(run, tmp_path)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    for m in run.everybody:
        assert m.title in text
    for m in run.inside:
        assert f"| {m.inside} | {m.name} |" in text
    assert run.machine["name"] in text and run.day in text and run.versions["torch"] in text
    assert f"{run.measurement('exp2').tflops:.0f}" in text
    figures = {p.name for p in (tmp_path / "figures").iterdir()}
    assert figures == {
        f"{name}.{kind}" for name in ("tflops", "gain", "path", "hot_loop", "limits") for kind in ("png", "svg")
    }
    for name in LINKS.findall(text):
        assert (tmp_path / name).exists()


def test_what_is_inside_a_step_stands_beside_its_predecessor_and_the_step():
    run = run_of({"sdpa": 1.0, "whole": 0.5, "piece": 0.8})
    *steps, piece = run.steps
    piece = piece.model_copy(update={"number": None, "inside": "whole", "previous": "sdpa", "previous_number": 0})
    against = run.speedup(piece, steps[0])
    piece = piece.model_copy(update={"speedup_vs_previous": against})
    text = as_markdown(run.model_copy(update={"steps": steps, "inside": [piece]}))
    [row] = [line for line in text.splitlines() if line.startswith("| whole | piece |")]
    assert "1.25× (1.25–1.25) faster than sdpa" in row and "0.62× (0.62–0.63) slower |" in row
    assert "put together from" in text and "put together from" not in as_markdown(run)


def test_figures_that_are_not_to_stay_are_drawn_and_not_linked(tmp_path, blank_figures):
    write_report(small(), tmp_path, linked=False)
    assert {path.suffix for path in (tmp_path / "figures").iterdir()} == {".png"}
    assert "![" not in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_reports_are_drawn_from_the_file_alone(tmp_path):
    for name in ("one", "two"):
        write_run(small(), tmp_path / name)
    assert report.main([str(tmp_path)]) == 0
    for name in ("report.md", "results.csv", "figures/tflops.svg", "figures/gain.png"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert list(tmp_path.glob("by_length-*.png")) and list(tmp_path.glob("by_length-*.svg"))


def test_every_part_that_was_timed_has_a_figure_on_the_problem_where_most_of_its_steps_are(tmp_path, monkeypatch):
    drawn = {}

    def path(steps, baseline, others):
        drawn[steps[0].part] = [m.name for m in steps], baseline.name
        return path

    monkeypatch.setattr(plots, "path", path)
    monkeypatch.setattr(plots, "save", lambda figure, folder, name, **how: [folder / f"{name}.png"])
    few = small(dataclasses.replace(HEADLINE, causal=False))
    few = few.model_copy(update={"steps": [m for m in few.steps if m.name != "mask_loop"]})
    made = report.write_parts([few, small()], tmp_path)
    assert made == [tmp_path / "a-gpu" / f"path-{part}.png" for part in ("cutile", "hopper")]
    assert drawn == {"cutile": (["exp2", "mask_loop"], "sdpa"), "hopper": (["epilogue_overlap"], "sdpa")}


def test_links_lead_from_a_report_to_the_files_of_its_steps(tmp_path):
    text = as_markdown(recorded(), PLACE, linked=False)
    files = {Path(name).name for name in LINKS.findall(text)}
    assert files == {Path(m.file).name for m in recorded().everybody if m.file}
    for name in LINKS.findall(text):
        assert (PLACE / name).exists(), name
    assert link("a title", "steps/run.py", tmp_path) == link("a title", None, ROOT) == "a title"  # no way there


def test_bad_paths_get_one_line(tmp_path, capsys):
    assert report.main([str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "no results.json under" in err and err.count("\n") == 1


@pytest.fixture
def place(tmp_path, monkeypatch, blank_figures):
    """A repository's results with two runs, and its README."""
    for problem in (HEADLINE, dataclasses.replace(HEADLINE, seq_len_q=1024, seq_len_kv=1024)):
        write_run(small(problem), tmp_path / "results" / "a-gpu" / problem.slug)
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(report, "README", tmp_path / "README.md")
    (tmp_path / "README.md").write_text(f"Before.\n{report.BEGIN}\nold\n{report.END}\nAfter.\n", encoding="utf-8")
    return tmp_path


def test_the_command_draws_all_of_it_and_again_the_same(place, capsys):
    assert report.main([str(place / "results")]) == 0
    assert str(place / "README.md") in capsys.readouterr().out
    made = sorted(path for path in place.rglob("*") if path.is_file())
    names = {path.relative_to(place).as_posix() for path in made}
    slug = HEADLINE.slug
    assert {"results/ladder.md", "README.md", f"results/a-gpu/{slug}/report.md"} <= names
    assert {f"results/a-gpu/{slug}/results.csv", f"results/a-gpu/{slug}/figures/gain.png"} <= names
    assert f"results/a-gpu/by_length-{HEADLINE.family}.png" in names
    unlinked = place / "results" / "a-gpu" / "b4_h32_s1024_d128_fp16_causal"
    assert (
        "![" not in (unlinked / "report.md").read_text(encoding="utf-8")
        and (unlinked / "figures" / "gain.png").exists()
    )
    before = [path.read_bytes() for path in made]
    assert report.main([str(place / "results")]) == 0
    assert [path.read_bytes() for path in made] == before


def test_other_paths_leave_the_readme_alone(place, tmp_path):
    before = report.README.read_text(encoding="utf-8")
    write_run(small(), tmp_path / "elsewhere" / "one")
    assert report.main([str(tmp_path / "elsewhere")]) == 0
    assert report.README.read_text(encoding="utf-8") == before and (tmp_path / "elsewhere" / "ladder.md").exists()


def test_the_readme_table_holds_rivals_and_the_best_of_each_part():
    runs = [small(), small(FULL), small(dataclasses.replace(HEADLINE, seq_len_q=1024, seq_len_kv=1024))]
    table, told = report.readme_table(runs).split("\n\n")
    lines = table.splitlines()
    assert lines[0] == "| TFLOPS, times SDPA's | causal mask | no mask |" and len(lines) == 8
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    names = ["SDPA", "FlashAttention-3", "flash-attn-4", "best of cuTile", "best of Gluon", "best of Hopper"]
    assert [row[0] for row in cells] == names
    assert cells[0][1] == "1000 (1.00×)" and cells[1][1:] == cells[4][1:] == ["–", "–"]
    assert cells[3][2] == "1111 (1.11×) [exp2](steps/exp2.py)"  # mask_loop is as fast, and comes later
    assert cells[5][1] == "2000 (2.00×) [epilogue_overlap](steps/epilogue_overlap.py)"
    assert "over 3 recorded problems of plain attention, decoding left out" in told
    assert "the best step is 2.00 times as fast as SDPA and 1.60" in told


def without_hopper(run, tflops):
    """The run without Hopper's steps in its rounds: they were so fast in an earlier one."""
    before = {"earlier": "2026-01-01", "tflops": tflops}
    return run.model_copy(
        update={"steps": [m.model_copy(update=before) if m.part == "hopper" else m for m in run.steps]}
    )


def test_of_a_part_that_a_run_leaves_out_an_earlier_one_tells_the_best():
    assert "500 (2.00×) [epilogue_overlap]" in report.readme_table([without_hopper(small(), 500.0)])


def test_kernels_for_few_queries_do_not_count_where_there_are_many():
    """Each standard problem, of which few records hold such kernels, has its place."""
    runs = of_most_problems(RECORDED)
    standard = [run for run in runs if run.the_problem() in GRIDS["standard"].problems]
    assert any(m.part == "everyday" for run in runs for m in run.by_speed()[:1])
    table, _ = best_by_problem(runs, "flash_attn_4")
    families = [f"| 4 | {heads} | {heads} | {d} | " for heads, d in ((32, 64), (32, 128), (16, 256))]
    rows = [line for line in table.splitlines() if line.startswith(tuple(families)) and "window" not in line]
    assert sum(line.count("×, ") for line in rows) >= len(standard) == 60


def test_a_table_tells_packed_sequences_from_one_long_one_and_from_others():
    common = {"heads": 32, "head_dim": 128, "causal": True}
    problems = [Problem.packed(lengths, **common) for lengths in ((500, 500), (300, 700))]
    plain = dataclasses.replace(problems[0], lengths=None)
    table, _ = best_by_problem([small(problem) for problem in (plain, *problems)], "flash_attn_4")
    masks = [line.split(" | ")[5] for line in table.splitlines() if line.startswith("| 1 |")]
    assert sorted(masks) == ["causal", "causal, packed: 2 of 300 to 700", "causal, packed: 2 of 500"]


def test_the_mean_leaves_out_what_does_not_know_the_best():
    """Without the rival, or rounds with both; without the part of the best; and what was wrong is not the best."""
    run = small()
    no_rival = run.model_copy(update={"peers": []})
    no_part = run.model_copy(update={"steps": [m for m in run.steps if m.part != "hopper"]})
    table, factors = best_by_problem([run, no_rival, no_part], "flash_attn_4")
    assert factors == [pytest.approx((2.0, 1.6), rel=0.01)] and "3 epilogue_overlap: 2000 (2.00×, 1.60×)" in table
    assert best_by_problem([run, without_hopper(run, 500.0)], "flash_attn_4")[1][1:] == [
        pytest.approx((1.11, 0.89), rel=0.01)
    ]
    assert len(best_by_problem([run, without_hopper(run, 5000.0)], "flash_attn_4")[1]) == 1
    no_part = without_hopper(run, 5000.0)  # it does not say either that its own best is the best of the others
    no_cutile = run.model_copy(update={"steps": [m for m in run.steps if m.part != "cutile"]})
    assert len(best_by_problem([run, no_part, no_cutile], "flash_attn_4")[1]) == 2
    wrong = [m.model_copy(update={"correct": m.name != "epilogue_overlap"}) for m in run.steps]
    table, factors = best_by_problem([run.model_copy(update={"steps": wrong})], "flash_attn_4")
    assert len(factors) == 1 and "1 exp2: 1111" in table
    assert best_by_problem([no_rival], "flash_attn_4") == ("", [])
    latencies = [{name: ms for name, ms in r.latency_ms.items() if name != "flash_attn_4"} for r in run.rounds]
    rounds = [r.model_copy(update={"latency_ms": of}) for r, of in zip(run.rounds, latencies, strict=True)]
    assert best_by_problem([run.model_copy(update={"rounds": rounds})], "flash_attn_4") == ("", [])
    assert "No record holds" in report.readme_table([no_rival])


def test_the_mean_is_of_plain_attention_and_who_is_best_elsewhere_leaves_nothing_out():
    """A window, and decoding, have kernels of their own: they are in the table, and other problems stay there."""
    run = small()

    def of(part="everyday", **changes):
        elsewhere = [m.model_copy(update={"part": part}) if m.name == "epilogue_overlap" else m for m in run.steps]
        return run.model_copy(update={"steps": elsewhere, "problem": run.problem | changes})

    window, decoding = of(window=256), of(seq_len_q=1, seq_len_kv=32768)
    table, factors = best_by_problem([run, window, decoding], "flash_attn_4")
    assert table.count("3 epilogue_overlap: 2000") == 3 and "causal window=256" in table and len(factors) == 1
    assert (
        best_by_problem([run, of("blackwell")], "flash_attn_4")[1] == []
    )  # of the same kind neither knows the best of both


def test_what_is_told_over_lengths_leaves_out_runs_of_some_parts_and_of_other_lengths_of_keys():
    run = small()
    shorter = run.problem | {"seq_len_q": 4000, "seq_len_kv": 4000}
    some = run.model_copy(update={"steps": run.steps[:2], "problem": shorter})
    odd = run.model_copy(update={"problem": run.problem | {"seq_len_q": 3001}})
    assert of_every_part([some, run, odd]) == [run]


@pytest.mark.parametrize("text", ["nothing here", f"{report.END} {report.BEGIN} {report.BEGIN}"])
def test_a_readme_without_markers_is_refused(tmp_path, text):
    (tmp_path / "README.md").write_text(text, encoding="utf-8")
    with pytest.raises(ResultsError, match="must hold the lines"):
        report.update_readme(tmp_path / "README.md", [small()])
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == text


def test_one_document_tells_the_whole_ladder():
    """Every step with its change; contents and links that lead somewhere; no longer than can be read."""
    text = report.ladder_report(RECORDED, ROOT / "results")
    lines = text.splitlines()
    assert len(lines) < 1800
    for step in STEPS:
        heading = f"### {step.label}: {step.title}{' (fork)' if step.fork else ''}"
        assert heading in lines and step.change in text
    for step in (s for s in INSIDE if get_step(s.inside) in STEPS and part_of(get_step(s.inside).number).timed):
        [row] = [line for line in lines if line.startswith(f"| inside | [{step.name}]")]
        above = next(line for line in lines[lines.index(row) :: -1] if line.startswith("| ") and line[2].isdigit())
        assert f"[{step.inside}]" in above and f"Inside it, **{step.name}**" in text
    anchors = {report._anchor(line.lstrip("# ")) for line in lines if line.startswith("#")}
    contents = re.findall(r"\]\(#([^)]+)\)", text)
    parts = {part_of(step.number).name for step in STEPS}
    assert len(contents) == len(STEPS) + len(parts) + 3 and set(contents) <= anchors
    for name in LINKS.findall(text):
        assert (ROOT / "results" / name).exists(), name


def test_a_cell_of_the_ladder_says_what_was_brought():
    run = run_of({"sdpa": 1.0, "one": 0.5, "two": 0.5, "three": 0.5}, code={"one": "abc", "two": "abc"})
    cells = [report._found(m) for m in run.steps]
    assert cells == ["1000 (1.00×)", "2000 (2.00×) **2.00×**", "2000 (2.00×) same code", "2000 (2.00×) 1.00×"]
    assert report._found(None) == report._found(measurement("skipped", 1)) == tables.NOTHING
    before = report._found(run.steps[-1].model_copy(update={"earlier": "2026-11-01"}))
    assert report.OTHER_DAY in before and before.replace(report.OTHER_DAY, "") == cells[-1]


def test_a_table_names_the_day_of_who_was_not_in_the_rounds():
    run = recorded("b4_h32_s4096_d128_fp16_full", "nvidia-h100-80gb-hbm3")
    old = {m.label: m.earlier or "" for m in run.everybody if m.sustained}
    headers, rows = tables.sustained(run)
    assert headers[-1] == "timed earlier, on" and {row[0]: row[-1] for row in rows} == old and any(old.values())
    new = run.model_copy(update={kind: [m for m in getattr(run, kind) if not m.earlier] for kind in KINDS})
    headers, rows = tables.sustained(new)
    assert headers == [header for header, _ in tables.SUSTAINED] and {len(row) for row in rows} == {len(headers)}


def test_a_table_by_problem_has_a_cell_for_each_run_and_a_dash_for_none():
    run = recorded()

    def like(**changes):
        return run.model_copy(update={"problem": run.problem | changes})

    elsewhere = run.model_copy(update={"machine": run.machine | {"name": "Another"}})
    runs = [like(seq_len_q=512), run, like(head_dim=64), like(seq_len_q=512, seq_len_kv=512), elsewhere]
    runs += [like(kv_heads=8, seq_len_q=17, seq_len_kv=17, window=9)]
    runs += [run.model_copy(update={"versions": run.versions | {"triton": "99"}})]  # what other compilers made
    shown = tables.by_problem([(r, f"cell {n}") for n, r in enumerate(runs)]).split("\n\n")
    where, first, short, other, second, newer, third = shown
    assert where == f"{run.where}:" and other == f"Another, {run.day}, {run.compilers}:"
    assert where.endswith(f", {run.compilers}:") and f"Triton {run.versions['triton']}" in where
    assert newer.startswith(f"{run.machine['name']}, {run.day}, Triton 99") and third.endswith("| cell 6 |")
    assert first.splitlines() == [
        "| B | H | KV heads | D | dtype | mask | S=512 | S=512x4096 | S=4096 |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| 4 | 32 | 32 | 64 | fp16 | causal | – | – | cell 2 |",
        "| 4 | 32 | 32 | 128 | fp16 | causal | cell 3 | cell 0 | cell 1 |",
    ]
    assert short.splitlines()[0].endswith("| mask | S=17 |")  # has no length in common with the others
    assert short.endswith("| 4 | 32 | 8 | 128 | fp16 | causal window=9 | cell 5 |")
    assert second.endswith("| 4 | 32 | 32 | 128 | fp16 | causal | cell 4 |")


def test_runs_of_the_backward_pass_are_no_part_of_the_ladder(blank_figures, tmp_path):
    """They have reports of their own, and plots over the length of their own."""
    run = small()
    longer = run.model_copy(update={"problem": run.problem | {"seq_len_q": 8192, "seq_len_kv": 8192}})
    for forward in (run, longer):
        write_run(forward, tmp_path / "gpu" / forward.the_problem().slug)
    assert report.main([str(tmp_path)]) == 0
    ladder = (tmp_path / "ladder.md").read_text(encoding="utf-8")
    for forward in (run, longer):
        backward = forward.model_copy(update={"direction": "backward", "date": "2099-01-01T00:00:00+00:00"})
        write_run(backward, tmp_path / "gpu" / f"{forward.the_problem().slug}_backward")
    assert report.main([str(tmp_path)]) == 0
    assert (tmp_path / "ladder.md").read_text(encoding="utf-8") == ladder
    told = (tmp_path / "gpu" / f"{run.the_problem().slug}_backward" / "report.md").read_text(encoding="utf-8")
    assert told.startswith("# Attention's gradients, step by step")
    family = run.the_problem().family
    drawn = {path.name for path in (tmp_path / "gpu").glob("by_length-*.png")}
    assert drawn == {f"by_length-{family}.png", f"by_length-{family}_backward.png"}


def test_what_is_committed_is_what_make_report_makes():
    committed, pictures = set(tracked("results/*/*/report.md")), []
    assert committed
    for path, run in ((path, read_run(path.parent)) for path in committed):
        expected = as_markdown(run, path.parent, linked=run.the_problem() in report.HEADLINES)
        assert path.read_text(encoding="utf-8") == expected, "run `make report`"
        for name in LINKS.findall(expected):
            assert (path.parent / name).exists(), name
            pictures += [path.parent / name] * name.endswith(".png")
    told = subprocess.run(["git", "check-ignore", *pictures], cwd=ROOT, capture_output=True, encoding="utf-8")
    assert not told.stdout, "no clone has these figures: name their folder in .gitignore"
    runs = [run for run in map(read_run, PATHS) if run.direction == "forward" and run.ranks == 1]
    assert (ROOT / "results" / "ladder.md").read_text(encoding="utf-8") == report.ladder_report(runs, ROOT / "results")
    text = report.README.read_text(encoding="utf-8")
    table = report.readme_table(runs, recorded_sweeps(ROOT / "results"))
    assert text.split(report.BEGIN)[1].split(report.END)[0].strip() == table, "run `make report`"


def test_a_backward_report_tells_whether_bits_are_the_same():
    run = run_of({"sdpa": 1.0, "exp2": 2.0})
    assert "same bits" not in as_markdown(run)
    steps = [m.model_copy(update={"repeat_difference": x}) for m, x in zip(run.steps, (3e-5, 0.0), strict=True)]
    text = as_markdown(run.model_copy(update={"steps": steps}))
    assert "| ± 3e-05 |" in text and "| 1.00 | yes |" in text and "«Same bits»" in text


def test_a_report_tells_what_others_publish():
    """The error beside SDPA's, and the cosine, where the record has it."""
    run = run_of({"sdpa": 1.0, "exp2": 2.0})
    text = as_markdown(run)
    assert "| error / SDPA's |" in text and "cosine" not in text
    told = run.model_copy(update={"steps": [m.model_copy(update={"cosine": 0.999999987}) for m in run.steps]})
    assert "| 0.99999999 |" in as_markdown(told) and "The cosine is that of the angle" in as_markdown(told)


def test_a_report_of_fp8_speaks_of_nobody_elses_error():
    run = read_run(ROOT / "results" / "nvidia-h200" / "b4_h32_s4096_d128_fp8_causal" / "results.json")
    text = as_markdown(run)
    assert run.inside and "error (fp8's)" in text and "twice fp8's" in text and "SDPA's" not in text
