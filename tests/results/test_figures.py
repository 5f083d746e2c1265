"""Figures: what is in them, that they can be read, and which of them are committed."""

import io
import itertools
import re
import subprocess
from dataclasses import replace

import pytest

from steps.core.problems import HEADLINE
from steps.core.recorded import recorded_runs
from steps.report import HEADLINES
from tests.results.made_up import run_of
from tests.results.recorded import RECORDED, ROOT, recorded, tracked
from tutorial_lib import limits, pictures, plots
from tutorial_lib.files import RESULTS
from tutorial_lib.problem import Problem
from tutorial_lib.results import of_every_part, of_most_problems, of_one_machine

LENGTHS = of_every_part(of_most_problems([r for r in RECORDED if r.the_problem().family == HEADLINES[0].family]))


def test_a_row_holds_steps_of_one_part_in_their_order():
    """No more bars side by side than a page shows, and none left out; labels of at most three lines."""
    run = recorded()
    drawn = {
        plots.tflops_by_step(run): [m for m in run.steps if m.tflops],
        plots.gain_by_step(run): [m for m in run.steps if m.speedup_vs_previous],
        plots.hot_loop_by_kind(run): [m for m in run.steps if m.resources and m.resources["hot_loop"]],
        plots.predicted_and_measured(limits.compare(run), run): [c.measurement for c in limits.compare(run)],
    }
    for figure, expected in drawn.items():
        rows = [[label.get_text() for label in axes.get_xticklabels()] for axes in figure.axes]
        labels = [label for row in rows for label in row]
        assert labels == [plots.narrow(m.label) for m in expected] and len(expected) > plots.STEPS_A_ROW
        assert max(label.count("\n") for label in labels) <= 2
        parts = {m.number: m.part for m in expected}
        for row in rows:
            assert len(row) <= plots.STEPS_A_ROW
            assert len({parts[int(re.match(r"\d+", label)[0])] for label in row}) == 1


def test_a_figure_may_hold_steps_for_gpus_of_two_makers():
    """The kinds of instructions of AMD's code are others than those of NVIDIA's."""
    run = recorded()
    one, *_, two = (m for m in run.steps if m.resources and m.resources["hot_loop"])
    amd = two.model_copy(update={"resources": two.resources | {"hot_loop": {"VALU": 7.0, "MFMA": 5.0}}})
    for steps in ([one, amd], [amd, one]):
        axes = plots.hot_loop_by_kind(run.model_copy(update={"steps": steps})).axes
        totals = {text.get_text() for each in axes for text in each.texts}
        assert totals == {"12", f"{sum(one.resources['hot_loop'].values()):.0f}"}


def test_a_part_longer_than_a_row_is_broken_evenly():
    run = run_of({"sdpa": 1.0} | {f"step{n}": 1.0 for n in range(plots.STEPS_A_ROW + 1)}, part="one")
    assert [len(axes.get_xticks()) for axes in plots.tflops_by_step(run).axes] == [8, 8]


def test_gains_have_one_scale_and_the_long_ones_are_cut():
    """6 % must not look like 86 %, in whichever row."""
    run = run_of({"sdpa": 1.0, "lower": 4.0, "higher": 0.4, "little": 0.38})
    parts = {"sdpa": "one", "lower": "one"}
    steps = [m.model_copy(update={"part": parts.get(m.name, "two")}) for m in run.steps]
    figure = plots.gain_by_step(run.model_copy(update={"steps": steps}))
    assert len(figure.axes) == 2 and len({axes.get_ylim() for axes in figure.axes}) == 1
    heights = [bar.get_height() for axes in figure.axes for bar in axes.patches]
    assert heights == pytest.approx([plots.LOSS_SHOWN, plots.GAIN_SHOWN, 100 * (0.4 / 0.38 - 1)], rel=0.05)
    texts = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert texts[0].startswith("-75") and texts[1].startswith("×10") and texts[2].startswith("+5")


def test_over_the_length_each_part_has_a_panel_of_lines_that_can_be_followed():
    figure = plots.tflops_by_length(LENGTHS)
    found = sorted(run.day for run in LENGTHS)
    assert found[0] != found[-1] and figure.get_suptitle().endswith(f"{found[0]} to {found[-1]}")
    panels = {axes.get_title(loc="left"): [line.get_label() for line in axes.lines] for axes in figure.axes}
    assert list(panels) == ["cutile", "gluon", "hopper"]
    for labels in panels.values():
        assert len(labels) <= plots.LINES_A_PANEL and labels[:2] == ["0 sdpa", "flash_attn_4"]
        assert "sdpa_cudnn" not in labels  # what SDPA chose
    steps = {label for labels in panels.values() for label in labels[2:]}
    forks = {m.label for m in LENGTHS[0].steps if m.fork}
    assert forks and not any(forks & set(labels[:-1]) for labels in panels.values())  # one at most, behind the path
    assert {
        "1 naive",
        "10 mask_loop",
        "100 explicit",
        "104 gluon_larger_tile",
        "200 wgmma",
        "206 pv_wait_after_max",
    } <= steps


def test_over_the_length_gradients_stand_beside_pytorchs_and_the_fastest_peer():
    family = replace(HEADLINE, seq_len_q=1024, seq_len_kv=1024).family
    runs = [run for run in recorded_runs(RESULTS, "backward") if run.the_problem().family == family]
    figure = plots.tflops_by_length(of_one_machine(runs))
    for axes in figure.axes:
        assert [line.get_label() for line in axes.lines][:2] == ["400 sdpa_gradients", "flash_attn_4"]
        assert len(axes.lines) <= plots.LINES_A_PANEL


def test_over_the_length_a_fork_is_drawn_where_it_is_faster_than_the_path():
    fork = next(m for m in LENGTHS[0].steps if m.part == "gluon" and m.fork)
    for faster in (1.0, 1.5):
        changed = []
        for run in LENGTHS:
            best = max(m.tflops for m in run.steps if m.part == "gluon" and not m.fork and m.tflops)
            as_fast = {fork.name: {"tflops": faster * best}}
            changed.append(
                run.model_copy(update={"steps": [m.model_copy(update=as_fast.get(m.name, {})) for m in run.steps]})
            )
        labels = [line.get_label() for axes in plots.tflops_by_length(changed).axes for line in axes.lines]
        assert (fork.label in labels) == (faster > 1)


def test_over_the_length_several_gpus_stand_beside_one_and_pytorchs():
    recorded = [run for run in recorded_runs(RESULTS, several=True) if run.the_problem().kv_heads == 8]
    runs = [run for run in recorded if run.machine["slug"] == "nvidia-h200-x2"]
    assert len(runs) > 1
    for axes in plots.tflops_by_length(runs).axes:
        labels = [line.get_label() for line in axes.lines]
        assert labels[:2] == ["one_gpu", "context_parallel_allgather"] and labels[-1] == "805 copy_engines"
        assert axes.get_ylabel() == "TFLOPS a GPU (median)"


def test_over_the_length_a_step_of_a_single_record_makes_no_line_and_the_last_number_stands_last():
    runs = [
        run for run in RECORDED if run.machine["slug"] == "nvidia-h200" and run.the_problem().family == HEADLINE.family
    ]
    assert len({len(run.steps) for run in runs}) > 1
    for axes in plots.tflops_by_length(runs).axes:
        assert all(len(line.get_xdata()) > 1 for line in axes.lines)
        numbers = [int(line.get_label().split()[0]) for line in axes.lines if line.get_label()[0].isdigit()]
        assert numbers == sorted(numbers)


def test_lines_of_a_panel_can_be_told_apart_in_grey():
    light = [0.3 * r + 0.59 * g + 0.11 * b for r, g, b in plots._shades(plots.LINES_A_PANEL)]
    assert all(a - b > 0.05 for a, b in itertools.pairwise(light))


def test_nothing_is_drawn_outside_of_the_axes():
    """Also where a later panel's lines rise above those of the first."""
    run = LENGTHS[0]
    steps = [m.model_copy(update={"tflops": 10 * m.tflops}) if m.name == "pv_wait_after_max" else m for m in run.steps]
    figure = plots.tflops_by_length([run.model_copy(update={"steps": steps})])
    for axes in figure.axes:
        low, high = axes.get_ylim()
        assert low == 0 and all(0 < y <= high for line in axes.lines for y in line.get_ydata())


def test_the_step_that_is_meant_stands_out_in_grey_too():
    run = recorded()
    shown = run.model_copy(
        update={"steps": [run.measurement(name) for name in ("sdpa", "lpt_scheduler", "epilogue_overlap")]}
    )
    [axes] = plots.tflops_by_step(shown, highlight="epilogue_overlap").axes
    light = [0.3 * r + 0.59 * g + 0.11 * b for r, g, b, _ in (bar.get_facecolor() for bar in axes.patches[:3])]
    assert light[0] == light[1] > light[2] + 0.3


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


COMMITTED = re.compile(
    r"results/(layouts/\w+"
    r"|compiled/\w+/survey"
    r"|[\w-]+/sweep"
    rf"|[\w-]+/({'|'.join(problem.slug for problem in HEADLINES)})/figures/\w+"
    rf"|[\w-]+/({'|'.join(problem.slug.replace('fp16', 'bf16') for problem in HEADLINES)})_backward/figures/\w+"
    rf"|[\w-]+/by_length-({'|'.join(problem.family for problem in HEADLINES)}))\.png"
)


def test_only_figures_of_the_headline_problems_are_committed():
    pngs = {path.relative_to(ROOT).as_posix(): path.stat().st_size for path in tracked("results/*.png")}
    assert pngs and [name for name in pngs if not COMMITTED.fullmatch(name)] == []
    assert {name: size for name, size in pngs.items() if size > (240_000 if "survey" in name else 90_000)} == {}


@pytest.mark.parametrize(
    "name",
    [
        "a-gpu/{slug}/figures/gain.png",
        "a/{slug}_backward/figures/gain.png",
        "a-gpu/by_length-{family}.png",
        "a/{slug}/results.csv",
    ],
)
def test_gitignore_knows_which_figures_are_committed(name):
    other = "b1_h8_s8192_d128_fp16_full", "b4_h32_d64_fp16_full"
    headlines = [replace(problem, dtype="bfloat16") if "_backward" in name else problem for problem in HEADLINES]
    known = [(problem.slug, problem.family, name.endswith("png")) for problem in headlines]
    for slug, family, kept in [*known, (*other, False)]:
        path = "results/" + name.format(slug=slug, family=family)
        ignored = subprocess.run(["git", "check-ignore", "-q", "--no-index", path], cwd=ROOT).returncode == 0
        assert ignored is not kept, path
