"""Pictures of one iteration of the loop over keys."""

import re

import pytest

from steps.exercises import get_exercise
from tutorial_lib import drawings, pictures
from tutorial_lib.exercises import define

COPY, COMPUTE = [2, 2, 2, 2, 6, 2, 2], [3] * 7


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_the_picture_follows_the_rules_of_the_exercise(stages):
    exercise = get_exercise("copy_ahead")
    ends = define(exercise.solution, exercise.function)(COPY, COMPUTE, stages)
    [axes] = pictures.ahead(COPY, COMPUTE, [stages]).axes
    assert axes.get_title(loc="left").endswith(f"ends at {ends}")
    assert max(bar.get_x() + bar.get_width() for bar in axes.patches) == ends


def test_tiles_are_drawn_to_scale_and_named_with_their_sizes():
    [axes] = drawings.one_iteration(64, 128, 256).axes
    sizes = {(round(128 * patch.get_height()), round(128 * patch.get_width())) for patch in axes.patches}
    named = {tuple(map(int, found)) for text in axes.texts for found in re.findall(r"(\d+) × (\d+)", text.get_text())}
    assert {(64, 256), (256, 128), (64, 128), (128, 256)} == {size for size in named if size[1] > 1}
    assert {size for size in named if size[1] > 1} <= sizes
