"""Figures, drawn from results alone. Every one can be read in greyscale."""

from __future__ import annotations

import io
import itertools
import statistics
import textwrap
from collections.abc import Sequence
from pathlib import Path

from tutorial_lib.files import write_whole
from tutorial_lib.passes import PASSES
from tutorial_lib.records import BASELINE, Sweep, Training
from tutorial_lib.results import Measurement, Run
from tutorial_lib.tables import TIMED, days, provenance, readings
from tutorial_lib.timing import NOISE

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"  # Okabe and Ito's palette for the colour-blind, plus grey
PALE = "#c4c4c4"  # what stands beside the one that is meant
MARKERS = "osD^vP*X<>hpd"
STYLES = ("-", "--", "-.", ":")
LABEL_WIDTH = 10  # letters of a line below a bar that do not reach into the next one's
STEPS_A_ROW = 14  # bars whose names can be read on a page
GAIN_SHOWN, LOSS_SHOWN = 60, -20  # percent: longer bars are cut off there, so that those of a few can be told apart
LINES_A_PANEL = 6  # lines over the sequence length that can be followed
PEERS_A_PANEL = 1
RATIO_TICKS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.5, 2, 3, 5, 10, 20, 50)  # of a logarithmic axis
SETTINGS = {"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "fmha", "axes.spines.top": False}
SETTINGS["axes.spines.right"] = False


def save(figure, folder: Path, name: str, svg: bool = True, dpi: int = 80) -> list[Path]:
    """Write ``figure`` as PNG and, unless ``svg`` is false, as SVG into ``folder``; returns the paths."""
    import matplotlib

    path = Path(folder, f"{name}.png")
    if not svg:
        write_whole(path, png(figure, dpi))
        return [path]
    drawn = io.BytesIO()
    with matplotlib.rc_context(SETTINGS):
        figure.savefig(drawn, format="svg", metadata={"Date": None})  # the same results give the same file
    write_whole(path, png(figure, dpi))
    write_whole(path.with_suffix(".svg"), drawn.getvalue())
    return [path, path.with_suffix(".svg")]


def png(figure, dpi: int = 80) -> bytes:
    """``figure`` as a PNG of few colours.

    The canvas draws it once, with what it measured for the layout; ``savefig`` does so twice where there is a layout.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure.dpi = dpi
    canvas = FigureCanvasAgg(figure)
    with matplotlib.rc_context(SETTINGS):
        canvas.draw()
    return _with_few_colours(canvas.buffer_rgba(), 64 if dpi <= 80 else 12)  # finer dots need fewer blends


def _with_few_colours(drawn, most: int) -> bytes:
    """The same picture from so many of its own colours, each pixel the nearest: a fraction of the bytes.

    The next colour taken is the one that lacks most, over all its pixels: those of lines and areas come before the
    blends at their edges. Pillow's ways make new colours of several, and a line took that of another.
    """
    import numpy as np
    from PIL import Image

    pixels = (np.asarray(drawn).view(">u4")[..., 0] >> 8).astype(np.int32)  # red, green and blue as one number
    found, counts = np.unique(pixels, return_counts=True)
    colours = np.stack([found >> 16, found >> 8 & 255, found & 255], axis=1)
    taken, nearest = [], np.zeros(len(found), dtype=np.uint8)
    lacks = np.full(len(found), 1 << 20)  # squared distance to the nearest one taken; more than any before there is one
    while len(taken) < most and lacks.any():
        taken.append(np.argmax(lacks * counts))
        away = np.square(colours - colours[taken[-1]]).sum(axis=1)
        nearest[away < lacks] = len(taken) - 1
        lacks = np.minimum(lacks, away)
    picture = Image.fromarray(nearest[np.searchsorted(found, pixels)], mode="P")
    picture.putpalette(colours[taken].astype(np.uint8).tobytes())
    smaller = io.BytesIO()
    picture.save(smaller, format="png", optimize=True)
    return smaller.getvalue()


def figure_with_axes(width: float, height: float, rows: int = 1, columns: int = 1, **kwargs):
    import matplotlib
    from matplotlib.figure import Figure  # not pyplot: no window, no global state

    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots(rows, columns, **kwargs)


def _titled(figure, title: str) -> None:
    """A title over the whole figure, in as many lines as its width asks for."""
    figure.suptitle(textwrap.fill(title, int(14 * figure.get_figwidth())), fontsize=9)


def _by_part(measurements: Sequence[Measurement]) -> list[list[Measurement]]:
    """Measurements part by part, in the order in which the parts begin."""
    parts: dict[str | None, list[Measurement]] = {}
    for m in measurements:
        parts.setdefault(m.part, []).append(m)
    return list(parts.values())


def _step_rows(steps: Sequence[Measurement], title: str, legend: float = 0, one_scale: bool = True):
    """A figure, and axes with a place for each of their steps: a row a part, more where a part is long.

    legend: inches for one at the right; one_scale: whether the rows share theirs. Returns (figure, [(axes, steps of
    the row), …]).
    """
    rows = []
    for part in _by_part(steps) or [[]]:
        longest = -(-len(part) // max(1, -(-len(part) // STEPS_A_ROW)))  # rows of a part are as long as each other
        rows += [part[n : n + longest] for n in range(0, len(part), longest or 1)] or [[]]
    longest = max(map(len, rows))
    width = max(6.4, 0.8 + 0.66 * longest) + legend
    height = 3.9 if len(rows) == 1 else 2.6 * len(rows)
    figure, grid = figure_with_axes(width, height, len(rows), squeeze=False, sharey=one_scale)
    _titled(figure, title)
    for axes in grid[:, 0]:
        axes.set_xlim(-0.6, max(longest, 1) - 0.4)
    return figure, list(zip(grid[:, 0], rows))


def narrow(label: str) -> str:
    """A step's label, its words on as few lines as hold ``LABEL_WIDTH`` letters each."""
    return "\n".join(textwrap.wrap(label.replace("_", " "), LABEL_WIDTH, break_long_words=False))


def _label_steps(axes, measurements: Sequence[Measurement]) -> None:
    axes.set_xticks(range(len(measurements)), [narrow(m.label) for m in measurements], fontsize=7.5)


def tflops_by_step(run: Run, highlight: str | None = None):
    """A bar a step with its 10th to 90th percentile; SDPA as a line. Returns a matplotlib Figure.

    highlight: the name of the step that is meant; the others are pale, and all stand in one row.
    """
    measured = [m for m in run.steps if m.tflops is not None]
    if highlight is None:
        figure, rows = _step_rows(measured, provenance(run))
    else:
        figure, axes = figure_with_axes(max(5.4, 1.8 + 1.1 * len(measured)), 2.9)
        _titled(figure, provenance(run))
        axes.set_xlim(-0.6, max(len(measured), 1) - 0.4)
        rows = [(axes, measured)]
    baseline = run.measurement(PASSES[run.direction].baseline)
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}  # no line strikes a figure through
    for axes, steps in rows:
        median = [m.tflops for m in steps]
        low = [m.tflops * (1 - m.latency_ms.median / m.latency_ms.high) for m in steps]
        high = [m.tflops * (m.latency_ms.median / m.latency_ms.low - 1) for m in steps]
        colours = [GREY if m is baseline else BLUE for m in steps]
        if highlight is not None:
            colours = [BLUE if m.name == highlight else PALE for m in steps]
        axes.bar(
            range(len(steps)), median, 0.8 if highlight is None else 0.6, color=colours, yerr=[low, high], capsize=3
        )
        text = {"textcoords": "offset points", "ha": "center", "fontsize": 8, "bbox": box}
        for x, (value, above) in enumerate(zip(median, high)):
            weight = "bold" if steps[x].name == highlight else "normal"
            axes.annotate(f"{value:.0f}", (x, value + above), (0, 2), weight=weight, **text)
        if baseline and baseline.tflops:
            axes.axhline(baseline.tflops, color=ORANGE, linestyle="--")
            text = {"xycoords": ("axes fraction", "data"), "va": "center", "color": ORANGE, "fontsize": 8}
            name = PASSES[run.direction].baseline_in_tables
            axes.annotate(name, (1.01, baseline.tflops), **text)  # beside the bars, whose figures stand on top
        _label_steps(axes, steps)
        axes.set_ylabel("TFLOPS (median,\n10th to 90th percentile)")
    axes.set_ylim(0, 1.12 * max(m.tflops for m in measured))
    return figure


def share(m: Measurement, baseline: Measurement) -> float:
    """What a step has of SDPA's speed: the median of the ratios inside its rounds, where these hold both."""
    return m.speedup_vs_baseline.median if m.speedup_vs_baseline else m.tflops / baseline.tflops


def path(
    steps: Sequence[Measurement], baseline: Measurement, others: Sequence[Measurement] = (), against: str = "SDPA"
):
    """A bar a step, from the first to the last of a path; SDPA and other libraries as lines. Returns a Figure.

    against: what the baseline is called, where it is not SDPA.
    """
    figure, axes = figure_with_axes(6.4, 0.7 + 0.26 * len(steps))
    axes.barh(range(len(steps)), [m.tflops for m in steps], 0.7, color=[PALE] * (len(steps) - 1) + [BLUE])
    for y, m in enumerate(steps):
        told = f"{m.tflops:.0f} ({share(m, baseline):.0%})"
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}  # no line strikes a figure through
        axes.annotate(told, (m.tflops, y), (3, 0), textcoords="offset points", va="center", fontsize=8, bbox=box)
    axes.set_yticks(range(len(steps)), [m.label for m in steps], fontsize=8)
    axes.invert_yaxis()
    others = sorted(others, key=lambda m: m.tflops, reverse=True)
    beside = [(other, ":", "left", row) for row, other in enumerate(others)]  # names stand above each other
    for m, style, side, row in [(baseline, "--", "right", 0), *beside]:
        axes.axvline(m.tflops, color=ORANGE, linestyle=style)
        name = against if m is baseline else m.title
        told = f" {name} {m.tflops:.0f} "
        top = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points"}
        axes.annotate(
            told, (m.tflops, 1), (0, 2 + 10 * row), color=ORANGE, ha=side, fontsize=8, annotation_clip=False, **top
        )
    axes.set_xlim(0, 1.2 * max(m.tflops for m in (*steps, baseline)))
    axes.set_xlabel(f"TFLOPS, and the share of {against}'s", fontsize=8)
    return figure


def gain_by_step(run: Run):
    """What every step gained over the one before it, in percent, with its spread. Returns a matplotlib Figure.

    All rows have one scale. A bar that would leave it is cut off, with an arrow; its figure is the whole gain.
    """
    compared = [m for m in run.steps if m.speedup_vs_previous is not None]
    figure, rows = _step_rows(compared, provenance(run))
    looks = {"faster": (BLUE, ""), "same": ("white", "///"), "slower": (ORANGE, "xxx")}
    for axes, steps in rows:
        for x, m in enumerate(steps):
            ratio = m.speedup_vs_previous
            gain = 100 * (ratio.median - 1)
            shown = min(max(gain, LOSS_SHOWN), GAIN_SHOWN)
            colour, hatch = looks[ratio.verdict]
            axes.bar(x, shown, color=colour, hatch=hatch, edgecolor=BLUE if colour == "white" else "black")
            top = max(shown, 0)
            if shown == gain:
                low, high = 100 * (ratio.median - ratio.low), 100 * (ratio.high - ratio.median)
                axes.errorbar(x, gain, yerr=[[low], [high]], capsize=3, color="black", linewidth=1)
                top = max(min(gain + high, GAIN_SHOWN), 0)
            else:
                axes.plot(x, shown, marker="^" if gain > 0 else "v", color="black", markersize=7)
            told = f"×{ratio.median:.2g}" if ratio.median >= 2 else f"{gain:+z.1f} %"
            told += "\nsame code" if ratio.same_code else f"\n{ratio.verdict}"
            if not m.follows and m.previous:
                told += "\n" + narrow(f"{'as' if ratio.verdict == 'same' else 'than'} {m.previous}")
            axes.annotate(told, (x, top), (0, 5), textcoords="offset points", ha="center", fontsize=7)
        axes.axhline(0, color="black", linewidth=0.8)
        _label_steps(axes, steps)
        axes.set_ylabel("gain over the previous\nstep, % (median, p10–p90)")
    gains = [100 * (m.speedup_vs_previous.median - 1) for m in compared]
    top, bottom = min(GAIN_SHOWN, max([*gains, 5])), max(LOSS_SHOWN, min([*gains, 0]))
    rows[0][0].set_ylim(bottom - 0.08 * (top - bottom), top + 0.45 * (top - bottom))  # above: room for four lines
    return figure


def trial(runs: Sequence[Run], values: Sequence[float], axis: str):
    """Speed and error over what a trial changed, a line for each problem. Returns a matplotlib Figure.

    Every run holds SDPA and, in the order of ``values``, what was tried.
    """
    figure, (speed, error) = figure_with_axes(8.4, 3.4, 1, 2)
    for n, run in enumerate(runs):
        tried = [m for m in run.steps if m.number]
        look = {"marker": MARKERS[n], "linestyle": STYLES[n % len(STYLES)], "color": f"C{n}"}
        label = f"D={run.problem['head_dim']} {'causal' if run.problem['causal'] else 'full'}"
        timed = [(x, m) for x, m in zip(values, tried, strict=True) if m.tflops]
        middle = [m.tflops for _, m in timed]
        spread = [
            [m.tflops * (1 - m.latency_ms.median / m.latency_ms.high) for _, m in timed],
            [m.tflops * (m.latency_ms.median / m.latency_ms.low - 1) for _, m in timed],
        ]
        speed.errorbar([x for x, _ in timed], middle, yerr=spread, capsize=3, label=label, **look)
        checked = [(x, m.max_error / m.reference_error) for x, m in zip(values, tried, strict=True) if m.max_error]
        error.plot(*zip(*checked), label=label, **look)
    speed.set_ylim(bottom=0)
    speed.set_ylabel("TFLOPS (median, 10th to 90th percentile)")
    error.axhline(1, color="black", linewidth=0.8)
    error.set_ylim(0, 1.2 * error.get_ylim()[1])
    error.set_ylabel("largest error over SDPA's")
    for axes in (speed, error):
        axes.set_xlabel(axis)
    speed.legend(frameon=False)
    figure.suptitle(f"{runs[0].machine['name']}, {days(runs)}", fontsize=9)
    return figure


def training(record: Training):
    """The loss over training steps, by what computed attention. Returns a matplotlib Figure."""
    figure, axes = figure_with_axes(6.4, 3.2)
    for n, (name, curve) in enumerate(record.losses.items()):
        axes.plot(range(1, len(curve) + 1), curve, label=name, color=f"C{n}", linestyle=STYLES[n % len(STYLES)])
    axes.axhline(record.floor, color="black", linewidth=0.8)
    axes.annotate("the least that the data allow", (1, record.floor), va="bottom", fontsize=8)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("training step")
    axes.set_ylabel("loss, nats a token")
    axes.legend(frameon=False)
    figure.suptitle(f"{record.machine['name']}, {record.day}", fontsize=9)
    return figure


HIGHEST_RATIO = 2.5  # that a figure of a sweep has room for: around 1 differences are to be seen


def sweep(record: Sweep):
    """How many times as fast ``steps.attention`` is on each problem of a sweep, sorted: a panel a pass.

    Against the best of the others, and against SDPA, each in its own order; the problems that it leaves to SDPA are
    hollow. What is above ``HIGHEST_RATIO`` is a triangle at the edge. Returns a matplotlib Figure.
    """
    passes = [timed for timed in TIMED if record.of(timed)]
    figure, grid = figure_with_axes(7.4, 2.4 * len(passes) + 0.4, len(passes), squeeze=False)
    for axes, timed in zip(grid[:, 0], passes):
        rows, title = record.of(timed), f"{TIMED[timed]}: {len(record.of(timed))} problems"
        for label, name, colour, marker in (
            ("SDPA", lambda row: BASELINE, GREY, "s"),
            ("the best of the others", lambda row: row.best_peer, BLUE, "o"),
        ):
            found = sorted((row.ratio(name(row)).median, row.fell_back) for row in rows)
            look = {"color": colour, "marker": marker, "markersize": 4, "linestyle": "none"}
            for hollow in (False, True):
                points = [(place, ratio) for place, (ratio, fell_back) in enumerate(found, 1) if fell_back is hollow]
                above = [(place, HIGHEST_RATIO) for place, ratio in points if ratio > HIGHEST_RATIO]
                points = points[: len(points) - len(above)]
                fill = {"markerfacecolor": "white"} if hollow else {}
                told = f"against {label}" + (", left to SDPA" if hollow else "")
                if points or above:
                    axes.plot(*(zip(*points) if points else ((), ())), label=told, **look, **fill)
                if above:
                    axes.plot(*zip(*above), **look | {"marker": "^", "markersize": 6}, **fill)
                    title += f"; triangles: above {HIGHEST_RATIO:g}, up to {found[-1][0]:.0f} against {label}"
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        ticks = [tick for tick in RATIO_TICKS if low <= tick <= high]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_yticks([], minor=True)
        axes.set_ylabel("times as fast")
        axes.set_title(title, loc="left", fontsize=9)
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    grid[-1, 0].set_xlabel("problems, sorted")
    figure.suptitle(f"{record.machine['name']}, {record.day}: steps.attention, problems from known models", fontsize=9)
    return figure


def tflops_by_length(runs: Sequence[Run]):
    """TFLOPS over sequence length: a panel a part, with SDPA, the best peer and the steps that matter most.

    The last step of a part, where its path leads, is drawn in blue, those before it in grey, and a step beside the path
    that is faster than all of it in orange. Of several GPUs, TFLOPS are those of one of them, and one GPU alone is
    drawn, too. Returns a matplotlib Figure.
    """
    runs = sorted(runs, key=lambda run: run.problem["seq_len_q"])
    pytorchs = PASSES[runs[0].direction].baseline
    peers = {m.name: m for run in runs for m in run.peers if m.tflops and _makes_a_line(m, runs)}
    peers = _that_differ(peers.values(), pytorchs, runs)
    found = {m.name: m for run in runs for m in run.steps if m.tflops}
    steps = {m.name: m for m in sorted(found.values(), key=lambda m: m.number or 0) if _makes_a_line(m, runs)}
    baseline = [steps[pytorchs]] if pytorchs in steps else []
    together = any(m.gpus > 1 for m in found.values())
    others = [*baseline, *peers[: PEERS_A_PANEL + together]]
    path = [m for m in steps.values() if m not in baseline and not _stands_aside(m, found)]
    panels, forks = [], []
    for part in _by_part(path) or [[]]:
        faster = _faster_beside(part, steps.values(), runs)
        panels.append(_that_matter(part, runs, LINES_A_PANEL - len(others) - len(faster)))
        forks.append(faster)
    figure, grid = figure_with_axes(8.0, 3.1 * len(panels), len(panels), sharex=True, sharey=True, squeeze=False)
    ticks = sorted({run.problem["seq_len_q"] for run in runs})
    shades = _shades(max(map(len, panels)) - 1)
    for axes, members, faster in zip(grid[:, 0], panels, forks):
        looks = [{"color": "black", "linestyle": "--", "linewidth": 2}] * len(baseline)
        looks += [{"color": "black", "linestyle": style} for style in (":", "-.")][: len(others) - len(looks)]
        looks += [{"color": shade} for shade in shades[: len(members) - 1]]
        looks += [{"color": colour, "linewidth": 2.5} for colour in (BLUE, ORANGE)]
        for n, (m, look) in enumerate(zip([*others, *members, *faster], looks)):
            points = [(run.problem["seq_len_q"], run.measurement(m.name)) for run in runs]
            points = [(length, at.tflops) for length, at in points if at is not None and at.tflops is not None]
            axes.plot(*zip(*points), marker=MARKERS[n % len(MARKERS)], markersize=5, label=m.label, **look)
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.set_ylabel("TFLOPS a GPU (median)" if together else "TFLOPS (median)")
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=8)
        axes.set_title(members[0].part if members else None, loc="left", fontsize=9)
    grid[-1, 0].set_ylim(bottom=0)  # shared, and fixed from here on
    grid[-1, 0].set_xlabel("sequence length")
    first = runs[0]
    figure.suptitle(f"{first.machine['name']}, {first.the_problem().family}, {days(runs)}", fontsize=9)
    return figure


def _makes_a_line(m: Measurement, runs: Sequence[Run]) -> bool:
    """Whether it was timed at two lengths, where there are two."""
    return sum(at is not None and at.tflops is not None for at in (run.measurement(m.name) for run in runs)) >= min(
        2, len(runs)
    )


def _shades(count: int) -> list[tuple[float, float, float]]:
    """Greys from light to dark."""
    return [(0.78 - 0.45 * n / max(1, count - 1),) * 3 for n in range(count)]


def _stands_aside(m: Measurement, steps: dict[str, Measurement]) -> bool:
    """Whether a step is beside the main path: a fork, or what is put to a step of another part without a new kernel."""
    before = steps.get(m.previous)
    return m.fork or (before is not None and before.part != m.part and not m.begins_a_skeleton)


def _ratio(m: Measurement, name: str, runs: Sequence[Run]) -> float:
    """How many times the TFLOPS of the contender of this name it reaches: the geometric mean over the runs of both."""
    pairs = [(run.measurement(m.name), run.measurement(name)) for run in runs]
    ratios = [mine.tflops / other.tflops for mine, other in pairs if mine and other and mine.tflops and other.tflops]
    return statistics.geometric_mean(ratios) if ratios else 0.0


def _that_differ(found, name: str, runs: Sequence[Run]) -> list[Measurement]:
    """The fastest first; without those that do what the contender of this name does."""
    ratios = {m.name: _ratio(m, name, runs) for m in found}
    return sorted((m for m in found if abs(ratios[m.name] - 1) >= NOISE), key=lambda m: -ratios[m.name])


def _faster_beside(path: Sequence[Measurement], steps, runs: Sequence[Run]) -> list[Measurement]:
    """The fastest fork of the path's part, if it is faster than every step of the path; else nothing."""
    forks = [m for m in steps if path and m.fork and m.part == path[-1].part]
    ahead = {m.name: min(_ratio(m, other.name, runs) for other in path) for m in forks}
    return [m for m in forks if ahead[m.name] == max(ahead.values()) and ahead[m.name] > 1 + NOISE]


def _that_matter(steps: Sequence[Measurement], runs: Sequence[Run], room: int) -> list[Measurement]:
    """At most ``room`` of the steps of a part: the first, the last, and of the others those that gained most."""
    gains = {now.name: _ratio(now, before.name, runs) for before, now in itertools.pairwise(steps[:-1])}
    most = sorted(gains, key=gains.get, reverse=True)[: max(0, room - 2)]
    return [m for m in steps if m.name in most or m in (steps[0], steps[-1])]


HATCHES = ("", "//", "..", "xx", "\\\\", "++", "--", "oo", "**", "||", "O", "..")


def hot_loop_by_kind(run: Run):
    """Instructions a K/V tile in the hot loop, stacked by what they do, a bar a step. Returns a matplotlib Figure."""
    found = [m for m in run.steps if m.resources and m.resources["hot_loop"]]
    loops = [m.resources["hot_loop"] for m in found]
    kinds = dict.fromkeys(kind for loop in loops for kind, count in loop.items() if count)  # AMD's are others
    made_by = dict.fromkeys(f"{m.resources.get('compiler')} for {m.resources['arch']}" for m in found)
    title = f"{run.the_problem().describe()}, {', '.join(made_by)}"
    figure, rows = _step_rows(found, title, legend=1.4)
    for axes, steps in rows:
        total = [0.0] * len(steps)
        for n, kind in enumerate(kinds):
            counts = [m.resources["hot_loop"].get(kind, 0) for m in steps]
            shade = {"color": f"C{n}", "hatch": HATCHES[n % len(HATCHES)], "edgecolor": "white", "linewidth": 0.5}
            axes.bar(range(len(steps)), counts, bottom=total, label=kind, **shade)
            total = [t + c for t, c in zip(total, counts)]
        for x, count in enumerate(total):
            axes.annotate(f"{count:.0f}", (x, count), (0, 2), textcoords="offset points", ha="center", fontsize=8)
        _label_steps(axes, steps)
        axes.set_ylabel("instructions per K/V tile,\nhot loop")
    axes.set_ylim(0, 1.1 * max(sum(loop.values()) for loop in loops))
    handles, labels = axes.get_legend_handles_labels()
    beside = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "frameon": False, "fontsize": 8}
    rows[0][0].legend(handles[::-1], labels[::-1], **beside)
    return figure


def predicted_and_measured(comparisons: Sequence, run: Run):
    """The least time the model allows beside the measured one, a pair of bars a step. Returns a matplotlib Figure.

    comparisons: ``tutorial_lib.limits.compare(run)``.
    """
    of = {c.measurement.name: c for c in comparisons}
    figure, rows = _step_rows([c.measurement for c in comparisons], provenance(run), one_scale=False)
    model = {"label": "least time (model)", "color": "white", "edgecolor": BLUE, "hatch": "//"}
    for axes, steps in rows:
        part = [of[m.name] for m in steps]
        low = [m.latency_ms.median - m.latency_ms.low for m in steps]
        high = [m.latency_ms.high - m.latency_ms.median for m in steps]
        measured = [1000 * c.measured for c in part]
        least = [1000 * c.limit.seconds for c in part]
        places = range(len(part))
        axes.bar([x - 0.2 for x in places], least, 0.4, **model)
        axes.bar([x + 0.2 for x in places], measured, 0.4, label="measured", color=BLUE, yerr=[low, high], capsize=3)
        for x, c in enumerate(part):
            share = f"{c.limit.seconds / c.measured:.0%}"
            axes.annotate(share, (x - 0.2, least[x]), (0, 2), textcoords="offset points", ha="center", fontsize=8)
        _label_steps(axes, steps)
        axes.set_ylabel("ms (median,\n10th to 90th percentile)")
        axes.set_ylim(0, 1.15 * max(measured))
    rows[0][0].legend(frameon=False, loc="upper right")
    return figure


def heat_table(survey):
    """Steps by architectures, darker for more. Returns a matplotlib Figure.

    Registers, spilled bytes and instructions of NVIDIA's; what Blackwell's take of tensor memory; what AMD's take. A
    cell is empty where there is no such kernel, or no figure. survey: a ``tutorial_lib.records.Survey``.
    """
    import matplotlib
    from matplotlib.figure import Figure

    from tutorial_lib.problem import Problem

    panels = []  # (title, steps, names of columns, columns that are compared with each other)
    for found in readings(survey):
        columns = [
            [[found.values(survey, step, arch)[n] for step in found.steps] for arch in found.architectures]
            for n in range(len(found.figures))
        ]
        names = ["\n".join(name.split()) for name in found.figures]
        if found.several:
            for title, group in zip(found.figures, columns):
                panels.append((title, found.steps, found.architectures, [group]))
        else:
            labels = [f"{name}\n{arch}" for name in names for arch in found.architectures]
            panels.append((found.title, found.steps, labels, columns))
    heights = [len(steps) for _, steps, _, _ in panels]
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(7.4, 1.0 + 0.6 * len(panels) + 0.14 * sum(heights)), layout="constrained")
        all_axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, (title, steps, labels, groups) in zip(all_axes, panels):
            _heat(axes, steps, labels, groups)
            axes.set_title(title, fontsize=8)
        figure.suptitle(f"{Problem(**survey.problem).describe()}\n{survey.compiler}, {survey.date[:10]}", fontsize=9)
    return figure


def _heat(axes, rows: Sequence[str], labels: Sequence[str], groups: Sequence[Sequence[Sequence[float | None]]]):
    """A table of numbers, each darker the nearer it is to the largest of its group of columns."""
    shades = []
    for group in groups:
        most = max([number for column in group for number in column if number is not None], default=0) or 1
        shades += [[float("nan") if number is None else number / most for number in column] for column in group]
    axes.imshow([list(row) for row in zip(*shades)], cmap="Greys", vmin=0, vmax=1.6, aspect="auto")
    for x, column in enumerate(column for group in groups for column in group):
        for y, number in enumerate(column):
            axes.text(x, y, "" if number is None else f"{number:.0f}", ha="center", va="center", fontsize=6)
    axes.set_xticks(range(len(labels)), labels, fontsize=6.5 if "\n" not in labels[0] else 6)
    axes.set_yticks(range(len(rows)), rows, fontsize=6.5)
