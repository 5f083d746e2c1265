"""Pictures of what a kernel does: banks that a read meets, who holds or computes what, one iteration of its loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from tutorial_lib import layouts
from tutorial_lib.pictures import SKY
from tutorial_lib.plots import BLUE, GREY, figure_with_axes

SHADES = ("#A9D9F4", "#E69F00", "#009E73", "#F6EFA0")  # of those who share work; they differ in grey, too
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
        wavefronts = layouts.ldmatrix_wavefronts(layout, columns)
        axes.set_title(f"{name}: {wavefronts} wavefront{'s' * (wavefronts > 1)} a matrix", fontsize=9)
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

    shades = ListedColormap(["#f0f0f0", *SHADES[:3]])
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


# --- who computes which scores ---

Share = tuple[str, tuple[int, int], tuple[int, int]]  # who, which queries and which keys, each [first, end)


def work(
    panels: Mapping[str, Sequence[Share]],
    length: int,
    tile: tuple[int, int],
    causal: bool = True,
    beside: Sequence[str] = (),
):
    """Who computes which scores of a head, a panel a title. Returns a matplotlib Figure.

    length: queries, and keys. tile: [query, key], in which scores are computed. beside: what is needed for the scores
    from the left, of their queries, and from below, of their keys.
    """
    from matplotlib.patches import Polygon, Rectangle

    figure, grid = figure_with_axes(3.9 * len(panels), 3.6, 1, len(panels), squeeze=False)
    centred = {"ha": "center", "va": "center", "fontsize": 8, "zorder": 4}
    thick = length / 11 if beside else 0
    for axes, (title, shares) in zip(grid[0], panels.items()):
        names = list(dict.fromkeys(who for who, *_ in shares))
        for who, (top, bottom), (left, right) in shares:
            look = {"facecolor": SHADES[names.index(who) % len(SHADES)], "edgecolor": BLUE}
            axes.add_patch(Rectangle((left, top), right - left, bottom - top, **look))
            axes.vlines(range(left, right, tile[1]), top, bottom, color=BLUE, linewidth=0.4)
            axes.hlines(range(top, bottom, tile[0]), left, right, color=BLUE, linewidth=0.4)
            upright = bottom - top > right - left
            if causal:  # the name stands in the middle of what is seen
                right, top = (right, max(top, (left + right) / 2)) if upright else (min(right, (top + bottom) / 2), top)
            axes.text((left + right) / 2, (top + bottom) / 2, who, rotation=90 * upright, **centred)
        if causal:
            triangle = [(0, 0), (length, 0), (length, length)]
            axes.add_patch(Polygon(triangle, facecolor="#eeeeee", edgecolor=GREY, zorder=3))
            axes.text(0.7 * length, 0.3 * length, "hidden", color=GREY, **centred)
        if beside:
            tops, bottoms, lefts, rights = zip(*((*queries, *keys) for _, queries, keys in shares))
            (x, y), wide, high = (min(lefts), min(tops)), max(rights) - min(lefts), max(bottoms) - min(tops)
            places = ((-1.2 * thick, y, thick, high), (x, length + 0.2 * thick, wide, thick))
            for name, (x, y, wide, high) in zip(beside, places):
                axes.add_patch(Rectangle((x, y), wide, high, facecolor="white", edgecolor=BLUE))
                axes.text(x + wide / 2, y + high / 2, name, rotation=90 * (high > wide), **centred)
        ticks = range(0, length + 1, length // 4)
        axes.set(xlim=(-1.3 * thick, length), ylim=(length + 1.3 * thick, 0), aspect="equal")
        axes.set(xticks=ticks, yticks=ticks, xlabel="key", ylabel="query")
        axes.set_title(title, fontsize=9)
    return figure


# --- one iteration of the loop over keys: the tiles in it, and when they are copied and used ---

LOADED, KEPT, PASSING = "loaded in this iteration", "kept for the next", "forgotten after this iteration"
LOOKS = {LOADED: ("white", "//"), KEPT: (SKY, ""), PASSING: ("#eeeeee", "")}


def one_iteration(query: int, key: int, head_dim: int):
    """What a block multiplies, keeps and forgets in one iteration of its loop; tiles are drawn to scale."""
    from matplotlib.patches import Patch, Rectangle

    figure, axes = figure_with_axes(6.8, 3.9)
    unit = 1 / 128

    def tile(x: float, y: float, name: str, rows: int, columns: int, kind: str, height: float | None = None) -> float:
        """A tile whose middle is at ``y``; returns where it ends."""
        width, high = max(0.1, columns * unit), height or rows * unit
        colour, hatch = LOOKS[kind]
        axes.add_patch(Rectangle((x, y - high / 2), width, high, facecolor=colour, hatch=hatch, edgecolor=BLUE))
        inside = columns > 1
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1.2, "alpha": 0.9} if hatch else None
        label = f"{name}\n{rows} × {columns}"
        above = {"ha": "center", "va": "center" if inside else "bottom", "fontsize": 8, "bbox": box}
        axes.text(x + width / 2, y if inside else y + high / 2 + 0.05, label, **above)
        return x + width

    def sign(x: float, y: float, text: str) -> float:
        axes.text(x + 0.17, y, text, ha="center", va="center", fontsize=11)
        return x + 0.34

    y = 0.0
    x = sign(tile(0, y, "q", query, head_dim, KEPT), y, "×")
    x = sign(tile(x, y, "keys, transposed", head_dim, key, LOADED), y, "=")
    x = tile(x, y, "scores", query, key, PASSING)
    x = sign(x + 0.1, y, "→")
    x = tile(x + 0.25, y, "row_max", query, 1, KEPT)
    tile(x + 0.55, y, "row_sum", query, 1, KEPT)
    y = -1.45
    x = sign(tile(0, y, "accumulator", query, head_dim, KEPT), y, "×")
    x = sign(tile(x + 0.2, y, "correction", query, 1, PASSING) + 0.2, y, "+")
    x = sign(tile(x, y, "weights", query, key, PASSING), y, "×")
    x = sign(tile(x, y, "values", key, head_dim, LOADED), y, "=")
    x = tile(x, y, "accumulator", query, head_dim, KEPT)
    handles = [Patch(facecolor=c, hatch=h, edgecolor=GREY, label=name) for name, (c, h) in LOOKS.items()]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.02), ncols=3, frameon=False, fontsize=8)
    axes.set(xlim=(-0.1, x + 0.1), ylim=(y - max(0.6, key * unit * 0.55), 0.62), aspect="equal")
    axes.axis("off")
    return figure


# --- the five products of the backward pass ---

PRODUCTS = (  # what comes out, its axes; the factors: name, axes, whether it lies the other way round
    ("S", "query key", ("Q", "query dim", False), ("K", "dim key", True)),
    ("dV", "key dim", ("P", "key query", True), ("dO", "query dim", False)),
    ("dP", "query key", ("dO", "query dim", False), ("V", "dim key", True)),
    ("dK", "key dim", ("dS", "key query", True), ("Q", "query dim", False)),
    ("dQ", "query dim", ("dS", "query key", False), ("K", "key dim", False)),
)
LENGTHS = {"query": 1.1, "key": 1.6, "dim": 0.7}
SCALE = 0.85


def backward_products():
    """The five products, in the order in which they are computed; hatched: a factor that is read transposed."""
    from matplotlib.patches import Patch, Rectangle

    figure, axes = figure_with_axes(7.2, 6.4)

    def matrix(x: float, middle: float, name: str, shape: str, turned: bool = False) -> float:
        rows, columns = shape.split()
        high, wide = SCALE * LENGTHS[rows], SCALE * LENGTHS[columns]
        look = {"facecolor": "#eeeeee" if turned else "white", "hatch": "//" if turned else "", "edgecolor": BLUE}
        axes.add_patch(Rectangle((x, middle - high / 2), wide, high, **look))
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1.2, "alpha": 0.9}
        text = {"ha": "center", "va": "center", "fontsize": 9, "bbox": box}
        axes.text(x + wide / 2, middle, name + ("$^T$" if turned else ""), **text)
        axes.text(x - 0.04, middle, rows, fontsize=6.5, rotation=90, ha="right", va="center", color=GREY)
        axes.text(x + wide / 2, middle - high / 2 - 0.04, columns, fontsize=6.5, ha="center", va="top", color=GREY)
        return x + wide

    y = 0.0
    for name, shape, left, right in PRODUCTS:
        high = SCALE * max(LENGTHS[axis] for axis in f"{shape} {left[1]} {right[1]}".split())
        y -= high / 2
        axes.text(matrix(0.3, y, name, shape) + 0.25, y, "=", ha="center", va="center", fontsize=11)
        axes.text(matrix(2.6, y, *left) + 0.25, y, "×", ha="center", va="center", fontsize=11)
        matrix(4.9, y, *right)
        y -= high / 2 + 0.3
    handles = [Patch(facecolor="#eeeeee", hatch="//", edgecolor=BLUE, label="read transposed")]
    axes.legend(handles=handles, frameon=False, fontsize=8, loc="upper right")
    axes.set(xlim=(0, 7.2), ylim=(y + 0.1, 0.15), aspect="equal")
    axes.axis("off")
    return figure
