"""Pictures of who holds what: the warp, lane and register of every element of a small tile, from its layout."""

from __future__ import annotations

from collections.abc import Sequence

from tutorial_lib.layouts import holders
from tutorial_lib.plots import GREY, figure_with_axes

SHADES = ("#ffffff", "#d9e8f3", "#b3d1e8", "#8cbadc")  # of lanes that are neighbours, or of warps


def draw(tiles: Sequence[tuple[str, object, tuple[int, int]]], rows: int | None = None, below: str = "column"):
    """Tiles side by side: in every box the elements of a row that one lane holds one after the other.

    tiles: title, layout and shape. rows: how many to draw, None for all. Returns a matplotlib Figure.
    """
    from matplotlib.patches import Rectangle

    drawn = max(rows or shape[0] for _, _, shape in tiles)
    figure, grid = figure_with_axes(8.6, 0.9 + 0.235 * drawn, 1, len(tiles), squeeze=False)
    for axes, (title, layout, shape) in zip(grid[0], tiles):
        held = holders(layout, shape)
        warps = 1 + max(warp for each in held.values() for warp, _, _ in each)
        shown, columns = rows or shape[0], shape[1]
        for row in range(shown):
            for first, end, (warp, lane, register) in _runs(held, row, columns):
                shade = SHADES[(warp if warps > 1 else lane) % 4]
                style = {"facecolor": shade, "edgecolor": GREY, "linewidth": 0.6}
                axes.add_patch(Rectangle((first, row), end - first, 1, **style))
                numbers = str(register) if end == first + 1 else f"{register}–{register + end - first - 1}"
                who = f"warp {warp}, lane {lane}: {numbers}" if warps > 1 else f"{lane}: {numbers}"
                axes.text((first + end) / 2, row + 0.52, who, ha="center", va="center", fontsize=7)
        step = max(1, columns // 8)
        axes.set(xlim=(0, columns), ylim=(shown, 0), xticks=range(0, columns + 1, step), yticks=range(0, shown + 1, 2))
        axes.set(xlabel=below, ylabel="row")
        axes.set_title(title, fontsize=9)
    return figure


def _runs(held: dict, row: int, columns: int):
    """(first column, end, (warp, lane, register)): neighbours that a lane holds in neighbouring registers."""
    first = 0
    for column in range(1, columns + 1):
        begin = held[row, first][0]
        next_one = held[row, column][0] if column < columns else None
        if next_one != (begin[0], begin[1], begin[2] + column - first):
            yield first, column, begin
            first = column
