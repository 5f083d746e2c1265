"""Figures, drawn from results alone. Every one can be read in greyscale."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from tutorial_lib.files import write_whole
from tutorial_lib.results import Measurement, Run
from tutorial_lib.tables import provenance

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"  # Okabe and Ito's palette for the colour-blind, plus grey
MARKERS = "osD^vP*X<>hpd"
STYLES = ("-", "--", "-.", ":")
STEPS_A_ROW = 14  # bars whose names can be read on a page
LEAP = 3  # a step this many times faster or slower than its predecessor is no matter of percent
SETTINGS = {"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "fmha", "axes.spines.top": False}
SETTINGS["axes.spines.right"] = False


def save(figure, folder: Path, name: str) -> list[Path]:
    """Write ``figure`` as PNG and SVG into ``folder``; returns the two paths."""
    import matplotlib

    svg = io.BytesIO()
    with matplotlib.rc_context(SETTINGS):
        figure.savefig(svg, format="svg", metadata={"Date": None})  # the same results give the same file
    paths = [Path(folder, f"{name}.png"), Path(folder, f"{name}.svg")]
    write_whole(paths[0], png(figure))
    write_whole(paths[1], svg.getvalue())
    return paths


def png(figure, dpi: int = 110) -> bytes:
    """``figure`` as a PNG of few colours."""
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context(SETTINGS):
        figure.savefig(buffer, format="png", dpi=dpi)
    return _with_few_colours(buffer)


def _with_few_colours(png: io.BytesIO) -> bytes:
    """The same picture from 64 of its own colours, each pixel the nearest: a fraction of the bytes.

    The next colour taken is the one that lacks most, over all its pixels: those of lines and areas come before the
    blends at their edges. Pillow's ways make new colours of several, and a line took that of another.
    """
    import numpy as np
    from PIL import Image

    red, green, blue = np.moveaxis(np.asarray(Image.open(png).convert("RGB"), dtype=np.int32), -1, 0)
    found, where, counts = np.unique(red << 16 | green << 8 | blue, return_inverse=True, return_counts=True)
    colours = np.stack([found >> 16, found >> 8 & 255, found & 255], axis=1)
    taken, nearest = [], np.zeros(len(found), dtype=np.uint8)
    lacks = np.full(len(found), 1 << 20)  # squared distance to the nearest one taken; more than any before there is one
    while len(taken) < 64 and lacks.any():
        taken.append(np.argmax(lacks * counts))
        away = np.square(colours - colours[taken[-1]]).sum(axis=1)
        nearest[away < lacks] = len(taken) - 1
        lacks = np.minimum(lacks, away)
    picture = Image.fromarray(nearest[where].reshape(red.shape), mode="P")
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


def _step_rows(steps: Sequence, title: str, legend: float = 0, one_scale: bool = True):
    """A figure, and axes with a place for each of their steps: rows one below the other, to one scale or their own.

    legend: inches for one at the right. Returns (figure, [(axes, steps of the row), …]).
    """
    rows = max(1, -(-len(steps) // STEPS_A_ROW))
    longest = -(-len(steps) // rows)
    width = max(6.4, 0.8 + 0.66 * longest) + legend
    figure, grid = figure_with_axes(width, 3.9 if rows == 1 else 3.4 * rows, rows, squeeze=False, sharey=one_scale)
    figure.suptitle(title, fontsize=9)
    parts = [steps[n * longest : (n + 1) * longest] for n in range(rows)]
    for axes in grid[:, 0]:
        axes.set_xlim(-0.6, max(longest, 1) - 0.4)
    return figure, list(zip(grid[:, 0], parts))


def _label_steps(axes, measurements: Sequence[Measurement]) -> None:
    axes.set_xticks(range(len(measurements)))
    axes.set_xticklabels([m.label.replace(" ", "\n", 1).replace("_", "\n") for m in measurements], fontsize=8)


def tflops_by_step(run: Run):
    """A bar a step with its 10th to 90th percentile; SDPA as a line. Returns a matplotlib Figure."""
    measured = [m for m in run.steps if m.tflops is not None]
    figure, rows = _step_rows(measured, provenance(run))
    baseline = run.measurement("sdpa")
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}  # no line strikes a figure through
    for axes, steps in rows:
        median = [m.tflops for m in steps]
        flops = [m.tflops * m.latency_ms.median for m in steps]
        low = [t - f / m.latency_ms.high for t, f, m in zip(median, flops, steps)]
        high = [f / m.latency_ms.low - t for t, f, m in zip(median, flops, steps)]
        colours = [GREY if m.number == 0 else BLUE for m in steps]
        axes.bar(range(len(steps)), median, color=colours, yerr=[low, high], capsize=3)
        text = {"textcoords": "offset points", "ha": "center", "fontsize": 8, "bbox": box}
        for x, (value, above) in enumerate(zip(median, high)):
            axes.annotate(f"{value:.0f}", (x, value + above), (0, 2), **text)
        if baseline and baseline.tflops:
            axes.axhline(baseline.tflops, color=ORANGE, linestyle="--")
            text = {"xycoords": ("axes fraction", "data"), "va": "center", "color": ORANGE, "fontsize": 8}
            axes.annotate("SDPA", (1.01, baseline.tflops), **text)  # beside the bars, whose figures stand on top
        _label_steps(axes, steps)
        axes.set_ylabel("TFLOPS\n(median, 10th to 90th percentile)")
    axes.set_ylim(0, 1.12 * max(m.tflops for m in measured))
    return figure


def gain_by_step(run: Run):
    """What every step gained over the one before it, in percent, with its spread. Returns a matplotlib Figure.

    A step that is several times its predecessor would flatten all others; it is named in the title instead.
    """
    compared = [m for m in run.steps if m.speedup_vs_previous is not None]
    leaps = [m for m in compared if not 1 / LEAP < m.speedup_vs_previous.median < LEAP]
    compared = [m for m in compared if m not in leaps]
    beyond = ", ".join(f"{m.label} {m.speedup_vs_previous.median:.2g}×" for m in leaps)
    title = provenance(run) + (f"\nnot drawn: {beyond}" if beyond else "")
    figure, rows = _step_rows(compared, title, one_scale=False)
    looks = {"faster": (BLUE, ""), "same": ("white", "///"), "slower": (ORANGE, "xxx")}
    for axes, steps in rows:
        ratios = [m.speedup_vs_previous for m in steps]
        gains = [100 * (ratio.median - 1) for ratio in ratios]
        low = [100 * (ratio.median - ratio.low) for ratio in ratios]
        high = [100 * (ratio.high - ratio.median) for ratio in ratios]
        bars = axes.bar(range(len(steps)), gains, yerr=[low, high], capsize=3)
        for bar, m, gain, above in zip(bars, steps, gains, high):
            colour, hatch = looks[m.speedup_vs_previous.verdict]
            bar.set(facecolor=colour, hatch=hatch, edgecolor=BLUE if colour == "white" else "black")
            at = (bar.get_x() + bar.get_width() / 2, max(gain + above, 0))
            text = f"{gain:+z.1f} %\n{m.verdict}".replace(" than ", "\nthan ").replace(" as ", "\nas ")
            axes.annotate(text, at, (0, 3), textcoords="offset points", ha="center", fontsize=8)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.margins(y=0.25)
        _label_steps(axes, steps)
        axes.set_ylabel("gain over the previous step, %\n(median, 10th to 90th percentile)")
    return figure


def _by_skeleton(steps: Sequence[Measurement]) -> list[list[Measurement]]:
    """Steps in the order of their numbers, those of a skeleton together; what stands before all kernels goes first."""
    begun: dict[str, list[Measurement]] = {}
    where: dict[str, list[Measurement]] = {}
    for m in steps:
        panel = where.get(m.previous)
        if panel is None or (m.begins_a_skeleton and any(other.resources for other in panel)):
            panel = begun.setdefault(m.name, [])
        panel.append(m)
        where[m.name] = panel
    return list(begun.values())


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
        flops = run.the_problem().flops / 1e9
        middle = [m.tflops for _, m in timed]
        spread = [
            [m.tflops - flops / m.latency_ms.high for _, m in timed],
            [flops / m.latency_ms.low - m.tflops for _, m in timed],
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
    figure.suptitle(f"{runs[0].machine['name']}, {runs[0].day}", fontsize=9)
    return figure


def tflops_by_length(runs: Sequence[Run]):
    """TFLOPS over sequence length, SDPA and peers in a panel for each skeleton. Returns a matplotlib Figure."""
    runs = sorted(runs, key=lambda run: run.problem["seq_len_q"])
    found = {m.name: m for run in runs for m in [*run.steps, *run.peers] if m.tflops is not None}
    steps = sorted((m for m in found.values() if m.number), key=lambda m: m.number)
    others = [m for m in found.values() if not m.number]  # SDPA and the peers are in every panel
    panels = _by_skeleton(steps)
    figure, grid = figure_with_axes(8.4, 4.2 * len(panels), len(panels), sharex=True, sharey=True, squeeze=False)
    ticks = sorted({run.problem["seq_len_q"] for run in runs})
    for axes, members in zip(grid[:, 0], panels):
        for n, m in enumerate([*others, *members]):
            points = [(run.problem["seq_len_q"], run.measurement(m.name)) for run in runs]
            points = [(length, at.tflops) for length, at in points if at is not None and at.tflops is not None]
            other = m in others
            axes.plot(
                *zip(*points),
                marker=MARKERS[n % len(MARKERS)],
                linestyle=":" if other else STYLES[n % 2],
                color="black" if m.number == 0 else GREY if other else f"C{n - len(others)}",
                markerfacecolor="white" if other else None,
                markersize=5,
                label=m.label,
            )
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.set_ylabel("TFLOPS (median)")
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=8)
    grid[-1, 0].set_ylim(bottom=0)  # shared, and fixed from here on
    grid[-1, 0].set_xlabel("sequence length")
    first = runs[0]
    figure.suptitle(f"{first.machine['name']}, {first.the_problem().family}, {first.day}", fontsize=9)
    return figure


def latency_by_round(run: Run, names: Sequence[str]):
    """Every round's latency, relative to the contender's median, and the SM clock. Returns a matplotlib Figure."""
    figure, grid = figure_with_axes(6.6, 3.6, 2, 1, sharex=True, gridspec_kw={"height_ratios": [2, 1]})
    numbers = range(1, len(run.rounds) + 1)
    for n, name in enumerate(names):
        m = run.measurement(name)
        if m and m.latency_ms:
            relative = [100 * (r.latency_ms[name] / m.latency_ms.median - 1) for r in run.rounds]
            grid[0].plot(numbers, relative, marker=MARKERS[n], linestyle=STYLES[n % len(STYLES)], label=m.label)
    grid[0].axhline(0, color="black", linewidth=0.8)
    grid[0].set_ylabel("latency, %\nfrom its median")
    grid[0].legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=8)
    if all(r.sm_clock_mhz is not None for r in run.rounds):
        grid[1].plot(numbers, [r.sm_clock_mhz for r in run.rounds], color=GREY, marker="o")
    grid[1].set_ylabel("SM clock, MHz")
    grid[1].set_xlabel("round")
    figure.suptitle(provenance(run), fontsize=9)
    return figure


HATCHES = ("", "//", "..", "xx", "\\\\", "++", "--", "oo", "**", "||", "O", "..")


def hot_loop_by_kind(run: Run):
    """Instructions a K/V tile in the hot loop, stacked by what they do, a bar a step. Returns a matplotlib Figure."""
    found = [m for m in run.steps if m.resources and m.resources["hot_loop"]]
    kinds = [kind for kind in found[0].resources["hot_loop"] if any(m.resources["hot_loop"][kind] for m in found)]
    made_by = dict.fromkeys(f"{m.resources.get('compiler')} for {m.resources['arch']}" for m in found)
    title = f"{run.the_problem().describe()}, {', '.join(made_by)}"
    figure, rows = _step_rows(found, title, legend=1.4)
    for axes, steps in rows:
        total = [0.0] * len(steps)
        for n, kind in enumerate(kinds):
            counts = [m.resources["hot_loop"][kind] for m in steps]
            shade = {"color": f"C{n}", "hatch": HATCHES[n % len(HATCHES)], "edgecolor": "white", "linewidth": 0.5}
            axes.bar(range(len(steps)), counts, bottom=total, label=kind, **shade)
            total = [t + c for t, c in zip(total, counts)]
        for x, count in enumerate(total):
            axes.annotate(f"{count:.0f}", (x, count), (0, 2), textcoords="offset points", ha="center", fontsize=8)
        _label_steps(axes, steps)
        axes.set_ylabel("instructions a K/V tile, hot loop")
    axes.set_ylim(0, 1.1 * max(sum(m.resources["hot_loop"].values()) for m in found))
    handles, labels = axes.get_legend_handles_labels()
    beside = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "frameon": False, "fontsize": 8}
    rows[0][0].legend(handles[::-1], labels[::-1], **beside)
    return figure


def predicted_and_measured(comparisons: Sequence, run: Run):
    """The least time the model allows beside the measured one, a pair of bars a step. Returns a matplotlib Figure.

    comparisons: ``tutorial_lib.limits.compare(run)``.
    """
    figure, rows = _step_rows(comparisons, provenance(run), one_scale=False)
    model = {"label": "least time (model)", "color": "white", "edgecolor": BLUE, "hatch": "//"}
    for axes, part in rows:
        steps = [c.measurement for c in part]
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
        axes.set_ylabel("ms\n(median, 10th to 90th percentile)")
        axes.set_ylim(0, 1.15 * max(measured))
    rows[0][0].legend(frameon=False, loc="upper right")
    return figure


def heat_table(survey):
    """Steps by architectures: registers, spilled bytes and instructions, darker for more. Returns a matplotlib Figure.

    survey: a ``tutorial_lib.results.Survey``.
    """
    import matplotlib
    from matplotlib.figure import Figure

    from tutorial_lib.problem import Problem

    def number(made: dict | str, key: str) -> float:
        return made[key] if isinstance(made, dict) and made[key] is not None else float("nan")

    figures = {
        "registers": "registers a thread",
        "spilled_bytes": "spilled bytes a thread",
        "instructions": "instructions",
    }
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(10, 1.0 + 0.95 * len(survey.steps)), layout="constrained")
        for axes, (key, title) in zip(figure.subplots(len(figures), 1), figures.items()):
            values = [[number(survey.compiled[s][arch], key) for arch in survey.architectures] for s in survey.steps]
            numbers = [value for row in values for value in row if value == value]
            axes.imshow(values, cmap="Greys", vmin=0, vmax=1.6 * max([*numbers, 1]), aspect="auto")
            for y, row in enumerate(values):
                for x, value in enumerate(row):
                    axes.text(x, y, f"{value:.0f}" if value == value else "none", ha="center", va="center", fontsize=7)
            axes.set_xticks(range(len(survey.architectures)), survey.architectures, fontsize=7)
            axes.set_yticks(range(len(survey.steps)), survey.steps, fontsize=7)
            axes.set_title(title, fontsize=8)
        figure.suptitle(f"{Problem(**survey.problem).describe()}, {survey.compiler}, {survey.date[:10]}", fontsize=9)
    return figure
