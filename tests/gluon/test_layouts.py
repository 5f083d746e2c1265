"""Banks and warps, computed: two models of the banks agree with each other, and with what a GPU counted."""

import dataclasses
import itertools

import pytest
from triton.experimental.gluon import language as gl

from steps import get_step, layouts
from steps.gluon.step101_swizzle import swizzle
from tests.core.test_steps import GLUON
from tests.results.recorded import RECORDED
from tutorial_lib import layouts as model

MMA = gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8])


def plain(columns):
    return gl.SwizzledSharedLayout(1, 1, 1, [1, 0])


def transposed(layout):
    """The layout of the same memory with the axes swapped, as K is read."""
    return gl.SwizzledSharedLayout(layout.vec, layout.per_phase, layout.max_phase, [0, 1])


@pytest.mark.parametrize("columns", [32, 64, 128, 256])
@pytest.mark.parametrize("kept", [plain, swizzle])
def test_two_models_of_the_banks_agree(kept, columns):
    layout = kept(columns)
    ours = model.ldmatrix_wavefronts(layout, columns) - 1
    assert ours == model.triton_conflicts(gl.DotOperandLayout(0, MMA, 2), layout, [64, columns])  # Q
    assert ours == model.triton_conflicts(gl.DotOperandLayout(1, MMA, 2), transposed(layout), [columns, 64])  # K
    assert ours == (0 if kept is swizzle else min(8, columns // 8) - 1)


@pytest.mark.parametrize("columns", [32, 64, 128])
@pytest.mark.parametrize("kept", [plain, swizzle])
def test_every_element_has_a_place_of_its_own(kept, columns):
    places = {model.shared_address(kept(columns), columns, *at) for at in itertools.product(range(16), range(columns))}
    assert places == set(range(0, 16 * columns * 2, 2))


def test_what_is_computed_is_what_a_gpu_counted():
    """Bank conflicts of ldmatrix by ncu, in every recorded run: of Triton 3.6's code to the last one.

    Of Triton 3.9's code ncu counts 6 for each matrix of Q, and not 7; why is not known.
    """
    compared = 0
    for run in RECORDED:
        for m in run.steps:
            step = get_step(m.name)
            if step.backend == "gluon" and m.counters and "ldmatrix_bank_conflicts" in m.counters:
                counted, computed = m.counters["ldmatrix_bank_conflicts"], step.ldmatrix_conflicts(run.the_problem())
                assert 0.9 * computed <= counted <= computed, m.label
                assert counted == computed or not run.versions["triton"].startswith("3.6"), m.label
                compared += counted > 0
    assert compared


@pytest.mark.parametrize("step", GLUON, ids=lambda s: s.name)
def test_every_score_and_output_belongs_to_one_warp(step):
    v = step.variant(layouts.DRAWN)
    for shape in ((v.tile.query, v.tile.key), (v.tile.query, v.head_dim)):
        assert (model.held_by(v.accumulator, shape).sum(axis=0) == 1).all()


def test_shared_memory_by_hand():
    """64 queries, 64 keys, head_dim 128, four warps: Q 4 KiB, K and V 16 KiB each a warp; 32 KiB are copied."""
    assert get_step("stages").shared_clocks(layouts.DRAWN) == (4 * (4 + 16 + 16) + 32) * 1024 / 128
    assert get_step("q_registers").shared_clocks(layouts.DRAWN) == (4 * (16 + 16) + 32) * 1024 / 128
    assert get_step("gluon_larger_tile").shared_clocks(layouts.DRAWN) == (4 * (8 + 16 + 16) + 32) * 1024 / 128
    # In pieces Q is read, and copied, for every tile; two by four warps share 64 queries, 64 keys, head_dim 512.
    wide = dataclasses.replace(layouts.DRAWN, head_dim=512)
    assert get_step("head_dim_tiling").shared_clocks(wide) == (8 * (32 + 16 + 16) + 3 * 64) * 1024 / 128
    # Split-KV: every warp reads all of Q, and a quarter of K and V; without the swizzle in eight wavefronts.
    assert get_step("swizzle").shared_clocks(layouts.DRAWN) == (4 * (16 + 4 + 4) + 32) * 1024 / 128
    assert get_step("explicit").shared_clocks(layouts.DRAWN) == (8 * 4 * (16 + 4 + 4) + 32) * 1024 / 128


def test_only_split_kv_exchanges():
    assert "maximum and the sum" in layouts.exchanged(get_step("swizzle"))
    assert "3072 weights" in layouts.exchanged(get_step("swizzle"))  # of 64 x 64, a warp holds a quarter
    assert layouts.exchanged(get_step("split_q")) == "nothing"


def test_the_drawings_show_the_layouts():
    banks = layouts.draw_banks()
    assert [axes.get_title() for axes in banks.axes[:2]] == [
        "step 100 explicit: 8 wavefronts a matrix",
        "step 101 swizzle: 1 wavefront a matrix",
    ]
    heights = [[bar.get_height() for bar in axes.patches] for axes in banks.axes[2:]]
    assert heights == [[0] * 8 + [8] * 4 + [0] * 20, [1] * 32]
    owners = layouts.draw_owners()
    texts = [[text.get_text() for text in axes.texts] for axes in owners.axes]
    assert texts[0] == list("01230123") and texts[1] == ["all 4 warps,\nevery element"]
    assert texts[3] == texts[4] == texts[5] == ["warp 0", "warp 1", "warp 2", "warp 3"]


def test_the_command_writes_table_and_drawings(tmp_path, capsys):
    assert layouts.main(["--output", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "704,643,072" in out and "Counted: NVIDIA" in out
    assert {path.name for path in tmp_path.iterdir()} == {"banks.png", "banks.svg", "owners.png", "owners.svg"}


def test_without_a_recorded_run_nothing_is_claimed(tmp_path, capsys):
    assert layouts.main(["--results", str(tmp_path)]) == 0
    assert "Counted" not in capsys.readouterr().out
