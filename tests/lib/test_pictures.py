"""Pictures tell what the kernels do, and show all of it."""

import itertools
import re

import matplotlib.colors
import pytest

from steps.core.fused import tiles_visited
from steps.core.tiles import Tile
from tests.shapes import problem
from tutorial_lib import drawings, pictures
from tutorial_lib.architectures import ARCHITECTURES, REFERENCE_GPUS
from tutorial_lib.gpu_picture import gpu_picture
from tutorial_lib.plots import figure_with_axes
from tutorial_lib.simulator.machine import H100, MI300X
from tutorial_lib.simulator.run import Run


@pytest.mark.parametrize("shape", [problem(), problem(causal=False), problem(seq_len_q=77, seq_len_kv=200)])
def test_tiles_that_are_visited_have_a_look_of_their_own(shape):
    axes = pictures.tiles_of(shape, 64, 32).axes[0]
    never = matplotlib.colors.to_rgba("#eeeeee")
    drawn = sum(patch.get_facecolor() != never for patch in axes.patches)
    assert drawn * shape.batch * shape.heads == tiles_visited(shape, Tile(64, 32))
    assert "a block owns" in axes.get_title()


def timeline(kinds, machine=H100):
    """A run that did these kinds of things, one after the other."""
    run = Run(machine, True, None)
    run.trace = [((0, 0, 0), "all warps", kind, "", 10.0 * n, 10.0 * n + 5) for n, kind in enumerate(kinds)]
    run.clocks[0, 0, 0] = 10.0 * len(kinds)
    return pictures.simulated_timeline(run, "made up")


def legend(figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


def test_a_simulated_timeline_names_products_of_either_kind_once():
    for kinds in (["wgmma", "wait"], ["tensor cores", "wait"], ["wgmma", "tensor cores", "wait"]):
        assert legend(timeline(kinds)) == ["tensor cores", "waiting"]


@pytest.mark.parametrize(("machine", "names"), [(H100, ["tensor cores", "shared memory"]), (MI300X, ["MFMA", "LDS"])])
def test_a_simulated_timeline_has_the_words_of_the_gpus_maker(machine, names):
    assert legend(timeline(["tensor cores", "smem"], machine)) == names


def test_the_legend_of_a_simulated_timeline_shows_its_bars():
    figure = timeline(pictures.SIMULATED)
    bars = {(bar.get_facecolor(), bar.get_hatch()) for bar in figure.axes[0].patches}
    marks = figure.axes[0].get_legend().get_patches()
    assert bars == {(mark.get_facecolor(), mark.get_hatch()) for mark in marks} and len(bars) == len(marks)


LOOKS = {
    "simulated": {name: (colour, hatch) for colour, hatch, name in pictures.SIMULATED.values()},
    "measured": {name: (colour, hatch) for colour, hatch, name in pictures.MEASURED.values()},
    "tensor memory": {name: (colour, "") for name, colour in (pictures.HELD | {"being written": "black"}).items()},
    "those who share work": {colour: (colour, "") for colour in drawings.SHADES},
}


@pytest.mark.parametrize("looks", LOOKS.values(), ids=LOOKS)
def test_looks_differ_in_grey(looks):
    """What has the same hatch, or none, differs in lightness by a tenth of that from black to white."""
    for (one, (colour, hatch)), (other, (second, its)) in itertools.combinations(looks.items(), 2):
        assert hatch != its or abs(pictures.lightness(colour) - pictures.lightness(second)) > 0.1, (one, other)


@pytest.mark.parametrize("arch", REFERENCE_GPUS)
def test_the_figures_are_those_of_the_architecture(arch):
    gpu, limits = REFERENCE_GPUS[arch], ARCHITECTURES[arch]
    [axes] = gpu_picture(gpu).axes
    written = [text.get_text() for text in axes.texts]
    assert gpu.name in written and f"{gpu.multiprocessors} SMs" in written
    assert len(axes.patches) == 1 + 4 * 6 + 1 + 1 + gpu.multiprocessors + 2
    for figure in (
        "16,384\nregisters",
        f"tensor core:\n{limits.tensor_flops // 4:,} operations",
        f"MUFU:\n{limits.mufu // 4} results",
        f"FMA pipe:\n{limits.fp32 // 4} results",
        f"room for {limits.max_warps // 4} warps\nof 32 lanes",
    ):
        assert written.count(figure) == 4
    assert any(f"{limits.shared_bytes // 1024} KiB" in text for text in written)


COPY, COMPUTE = [2, 2, 2, 2, 6, 2, 2], [3] * 7


@pytest.mark.parametrize(("stages", "ends"), [(1, 39), (2, 26), (4, 23)])  # of one, copies and computations alternate
def test_the_picture_of_stages_ends_when_its_last_computation_does(stages, ends):
    """The slow copy begins at 11 with two stages, when the computation with tile 2 has ended; with four, at 8."""
    [axes] = pictures.ahead(COPY, COMPUTE, [stages]).axes
    assert axes.get_title(loc="left").endswith(f"ends at {ends}")
    assert max(bar.get_x() + bar.get_width() for bar in axes.patches) == ends


def test_tiles_are_drawn_to_scale_and_named_with_their_sizes():
    [axes] = drawings.one_iteration(64, 128, 256).axes
    sizes = {(round(128 * patch.get_height()), round(128 * patch.get_width())) for patch in axes.patches}
    named = {tuple(map(int, found)) for text in axes.texts for found in re.findall(r"(\d+) × (\d+)", text.get_text())}
    assert {(64, 256), (256, 128), (64, 128), (128, 256)} == {size for size in named if size[1] > 1}
    assert {size for size in named if size[1] > 1} <= sizes


def test_names_of_points_cover_no_point_and_no_other_name():
    axes = figure_with_axes(4, 3)[1]
    axes.set(xlim=(0, 1), ylim=(0, 1))
    points = [(0.5, 0.5), (0.51, 0.5), (0.5, 0.52), (0.99, 0.5)]
    named = [(f"step {n}", at, "black", pictures.BESIDE + pictures.FURTHER) for n, at in enumerate(points)]
    pictures._name(axes, [*named, ("no room", points[0], "black", [])], points)
    boxes = {text.get_text(): text.get_window_extent() for text in axes.texts if text.get_text()}
    assert list(boxes) == [name for name, *_ in named]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes.values(), 2))
    at = axes.transData.transform(points)
    assert not any(box.contains(*point) for box in boxes.values() for point in at)
    assert all(axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1 for box in boxes.values())
