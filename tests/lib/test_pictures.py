"""Pictures tell what the kernels do, and show all of it."""

import matplotlib.colors
import pytest

from steps.core.fused import tiles_visited
from steps.core.tiles import Tile
from tests.shapes import problem
from tutorial_lib import pictures


@pytest.mark.parametrize("shape", [problem(), problem(causal=False), problem(seq_len_q=77, seq_len_kv=200)])
def test_tiles_that_are_visited_have_a_look_of_their_own(shape):
    axes = pictures.tiles_of(shape, 64, 32).axes[0]
    never = matplotlib.colors.to_rgba("#eeeeee")
    drawn = sum(patch.get_facecolor() != never for patch in axes.patches)
    assert drawn * shape.batch * shape.heads == tiles_visited(shape, Tile(64, 32))
    assert "a block owns" in axes.get_title()


def test_no_share_lies_on_the_frame():
    axes = pictures.shares({"dealt": [70, 70, 63], "in turn": [72, 70, 61]}, "tiles of keys").axes[0]
    bottom, top = axes.get_ylim()
    assert bottom == 0 and top > 72


def test_a_simulated_timeline_names_products_of_either_kind_once():
    for kinds in (["wgmma", "wait"], ["tensor cores", "wait"], ["wgmma", "tensor cores", "wait"]):
        trace = [((0, 0, 0), "all warps", kind, "", 10.0 * n, 10.0 * n + 5) for n, kind in enumerate(kinds)]
        figure = pictures.simulated_timeline(trace, (0, 0, 0), "made up")
        names = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
        assert names == ["tensor cores", "waiting"]
