"""Pictures of what a kernel does, computed from its layouts: banks that a read meets, and which warp holds what."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tutorial_lib import layouts
from tutorial_lib.plots import BLUE, GREY, figure_with_axes

SHOWN = 2  # the chunk of every row that the drawn ldmatrix asks for


def banks(kept: Sequence[tuple[str, object, int]]):
    """Eight rows of a tile over the 32 banks, and the chunks that one ldmatrix reads. Returns a matplotlib Figure.

    kept: name, shared layout and columns, side by side.
    """
    from matplotlib.patches import Rectangle

    sizes = {"height_ratios": [3, 1]}
    figure, grid = figure_with_axes(4.8 * len(kept), 4.4, 2, len(kept), squeeze=False, gridspec_kw=sizes)
    for (name, layout, columns), axes, below in zip(kept, *grid):
        reads = layouts.ldmatrix_addresses(layout, columns, chunk=SHOWN)
        for row in range(layouts.MATRIX_ROWS):
            for chunk in range(columns // layouts.CHUNK):
                address = layouts.shared_address(layout, columns, row, chunk * layouts.CHUNK)
                line, at = divmod(address // layouts.WORD, layouts.BANKS)
                read = address in reads
                style = {"facecolor": BLUE if read else "white", "edgecolor": GREY, "linewidth": 0.6}
                axes.add_patch(Rectangle((at, line), 4, 1, **style))
                text = {"color": "white" if read else "black", "weight": "bold" if read else "normal"}
                axes.text(at + 2, line + 0.5, str(chunk), ha="center", va="center", fontsize=8, **text)
        lines = layouts.MATRIX_ROWS * columns * layouts.ELEMENT // (layouts.BANKS * layouts.WORD)
        axes.set(xlim=(0, layouts.BANKS), ylim=(lines, 0), xticks=range(0, 33, 4), yticks=[])
        axes.set_ylabel(f"rows 0 to {layouts.MATRIX_ROWS - 1} of a tile")
        turns = layouts.ldmatrix_turns(layout, columns)
        axes.set_title(f"{name}: {turns} turn{'s' * (turns > 1)} a matrix", fontsize=9)
        words = layouts.words_a_bank(reads)
        heights = [words[bank] for bank in range(layouts.BANKS)]
        below.bar([bank + 0.5 for bank in range(layouts.BANKS)], heights, 0.9, color=BLUE)
        below.set(xlim=(0, layouts.BANKS), ylim=(0, layouts.MATRIX_ROWS + 0.5))
        below.set(xticks=range(0, 33, 4), yticks=[1, 8], xlabel="bank", ylabel="words read")
    figure.suptitle(
        f"Chunks of 16 bytes, by their number in the row; filled: chunk {SHOWN} of eight rows, one 8 x 8 matrix",
        fontsize=9,
    )
    return figure


def owners(divisions: Sequence[tuple[str, Sequence[tuple[str, object, tuple[int, int]]], str]]):
    """Which warp holds which part of a tile, a row of pictures a division. Returns a matplotlib Figure.

    divisions: a name; for every picture its title, register layout and shape [rows, columns]; a line to stand below.
    """
    from matplotlib.colors import ListedColormap

    shades = ListedColormap(["#f0f0f0", "#56B4E9", "#E69F00", "#009E73"])
    wide = max(len(pictures) for _, pictures, _ in divisions)
    figure, grid = figure_with_axes(3.0 * wide, 3.1 * len(divisions), len(divisions), wide, squeeze=False)
    for line, (name, pictures, note) in zip(grid, divisions):
        for axes, (title, layout, shape) in zip(line, pictures):
            held = layouts.held_by(layout, shape)
            rows, columns = shape
            owner = held.argmax(axis=0)  # the first of its holders
            look = {"cmap": shades, "vmin": 0, "vmax": 3, "aspect": "auto", "interpolation": "nearest"}
            axes.imshow(owner, extent=(0, columns, rows, 0), **look)
            if held.all():
                axes.text(columns / 2, rows / 2, f"all {len(held)} warps,\nevery element", ha="center", va="center")
            else:
                for top, left, height, width in _patches(owner):
                    warp = owner[top, left]
                    text = f"warp {warp}" if width >= columns / 4 else f"{warp}"
                    axes.text(left + width / 2, top + height / 2, text, ha="center", va="center", fontsize=8)
            axes.set_xticks([0, columns])
            axes.set_yticks([0, rows])
            axes.set_title(title, fontsize=9)
        line[0].set_ylabel(f"{name}\nquery")
        line[wide // 2].set_xlabel(note)
    figure.suptitle("What each of the four warps holds in registers (numbers: the warp)", fontsize=9)
    return figure


def _patches(owner):
    """(top, left, height, width) of the blocks of one owner, by cutting where rows or columns change hands."""
    import numpy

    def cuts(axis: int) -> list[int]:
        changes = numpy.any(numpy.diff(owner, axis=axis) != 0, axis=1 - axis)
        return [0, *(numpy.flatnonzero(changes) + 1).tolist(), owner.shape[axis]]

    down, across = cuts(0), cuts(1)
    for top, bottom in pairwise(down):
        for left, right in pairwise(across):
            yield top, left, bottom - top, right - left


def crosses(scores, weights, shape: tuple[int, int]) -> str:
    """What must pass between warps from the scores to the product with V, in words, from two register layouts."""
    held, needed = layouts.held_by(scores, shape), layouts.held_by(weights, shape)
    rows = held.any(axis=2)  # [warp, query]
    missing = int((needed & ~held).sum(axis=(1, 2)).max())
    parts = []
    if (rows.sum(axis=0) > 1).any():
        parts.append("the maximum and the sum of every row")
    if missing:
        parts.append(f"{missing} weights that each warp needs and does not hold")
    return " and ".join(parts) or "nothing"
