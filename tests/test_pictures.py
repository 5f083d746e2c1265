"""Pictures tell what the kernels do, and show all of it."""

import dataclasses

import matplotlib.colors
import pytest

from steps.fused import tiles_visited
from steps.tiles import Tile
from tests.shapes import problem
from tutorial_lib import pictures

SQUARE = problem(batch=1, heads=1, seq_len_q=256, seq_len_kv=256)


@pytest.mark.parametrize(
    "shape", [SQUARE, dataclasses.replace(SQUARE, causal=False), problem(seq_len_q=77, seq_len_kv=200)]
)
def test_tiles_that_are_visited_have_a_look_of_their_own(shape):
    axes = pictures.tiles_of(shape, 64, 32, owner="group").axes[0]
    never = matplotlib.colors.to_rgba("#eeeeee")
    drawn = sum(patch.get_facecolor() != never for patch in axes.patches)
    assert drawn == tiles_visited(dataclasses.replace(shape, batch=1, heads=1, kv_heads=1), Tile(64, 32))
    assert "a group owns" in axes.get_title()


def test_no_share_lies_on_the_frame():
    axes = pictures.shares({"dealt": [70, 70, 63], "in turn": [72, 70, 61]}, "tiles of keys").axes[0]
    bottom, top = axes.get_ylim()
    assert bottom == 0 and top > 72
