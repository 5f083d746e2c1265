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
    """The same picture from a palette of 64 colours: a third of the bytes, and these figures need no more."""
    from PIL import Image

    smaller = io.BytesIO()
    Image.open(png).convert("RGB").quantize(64).save(smaller, format="png", optimize=True)
    return smaller.getvalue()


def figure_with_axes(width: float, height: float, rows: int = 1, columns: int = 1, **kwargs):
    import matplotlib
    from matplotlib.figure import Figure  # not pyplot: no window, no global state

    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots(rows, columns, **kwargs)


def _step_axes(steps: int, legend: float = 0):
    """Axes for so many steps side by side, wide enough for their names; legend: inches for one at the right."""
    return figure_with_axes(max(6.4, 0.8 + 0.66 * steps) + legend, 3.9)


def _label_steps(axes, measurements: Sequence[Measurement]) -> None:
    axes.set_xticks(range(len(measurements)))
    axes.set_xticklabels([m.label.replace(" ", "\n", 1).replace("_", "\n") for m in measurements], fontsize=8)


def tflops_by_step(run: Run):
    """A bar a step with its 10th to 90th percentile; SDPA as a line. Returns a matplotlib Figure."""
    measured = [m for m in run.steps if m.tflops is not None]
    figure, axes = _step_axes(len(measured))
    median = [m.tflops for m in measured]
    flops = [m.tflops * m.latency_ms.median for m in measured]
    low = [t - f / m.latency_ms.high for t, f, m in zip(median, flops, measured)]
    high = [f / m.latency_ms.low - t for t, f, m in zip(median, flops, measured)]
    colours = [GREY if m.number == 0 else BLUE for m in measured]
    axes.bar(range(len(measured)), median, color=colours, yerr=[low, high], capsize=3)
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}  # no line strikes a figure through
    text = {"textcoords": "offset points", "ha": "center", "fontsize": 8, "bbox": box}
    for x, (value, above) in enumerate(zip(median, high)):
        axes.annotate(f"{value:.0f}", (x, value + above), (0, 2), **text)
    if (baseline := run.measurement("sdpa")) and baseline.tflops:
        axes.axhline(baseline.tflops, color=ORANGE, linestyle="--")
        text = {"xycoords": ("axes fraction", "data"), "va": "center", "color": ORANGE, "fontsize": 8}
        axes.annotate("SDPA", (1.01, baseline.tflops), **text)  # beside the bars, whose figures stand on top
    axes.set_ylim(0, 1.12 * max(median))
    _label_steps(axes, measured)
    axes.set_ylabel("TFLOPS (median, 10th to 90th percentile)")
    axes.set_title(provenance(run), fontsize=9)
    return figure


def gain_by_step(run: Run):
    """What every step gained over the one before it, in percent, with its spread. Returns a matplotlib Figure.

    A step that is several times its predecessor would flatten all others; it is named in the title instead.
    """
    compared = [m for m in run.steps if m.speedup_vs_previous is not None]
    leaps = [m for m in compared if not 1 / LEAP < m.speedup_vs_previous.median < LEAP]
    compared = [m for m in compared if m not in leaps]
    figure, axes = _step_axes(len(compared))
    gains = [100 * (m.speedup_vs_previous.median - 1) for m in compared]
    low = [100 * (m.speedup_vs_previous.median - m.speedup_vs_previous.low) for m in compared]
    high = [100 * (m.speedup_vs_previous.high - m.speedup_vs_previous.median) for m in compared]
    bars = axes.bar(range(len(compared)), gains, yerr=[low, high], capsize=3)
    looks = {"faster": (BLUE, ""), "same": ("white", "///"), "slower": (ORANGE, "xxx")}
    for bar, m, gain, above in zip(bars, compared, gains, high):
        colour, hatch = looks[m.speedup_vs_previous.verdict]
        bar.set(facecolor=colour, hatch=hatch, edgecolor=BLUE if colour == "white" else "black")
        top = max(gain + above, 0)
        at = (bar.get_x() + bar.get_width() / 2, top)
        text = f"{gain:+.1f} %\n{m.verdict}"
        axes.annotate(text, at, (0, 3), textcoords="offset points", ha="center", fontsize=8)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.margins(y=0.2)
    _label_steps(axes, compared)
    axes.set_ylabel("gain over the previous step, %\n(median, 10th to 90th percentile)")
    beyond = ", ".join(f"{m.label} {m.speedup_vs_previous.median:.2g}×" for m in leaps)
    axes.set_title(provenance(run) + (f"\nnot drawn: {beyond}" if beyond else ""), fontsize=9)
    return figure


def _by_skeleton(steps: Sequence[Measurement]) -> list[list[Measurement]]:
    """Steps in the order of their numbers, those of a skeleton together; what stands before all kernels goes first."""
    begun: dict[str, list[Measurement]] = {}
    where: dict[str, list[Measurement]] = {}
    for m in steps:
        panel = where.get(m.previous)
        if panel is None or (m.begins_a_skeleton and any(other.begins_a_skeleton for other in panel)):
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
        axes.set_ylim(bottom=0)
        axes.set_ylabel("TFLOPS (median)")
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=8)
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
    steps = [m for m in run.steps if m.resources and m.resources["hot_loop"]]
    kinds = [kind for kind in steps[0].resources["hot_loop"] if any(m.resources["hot_loop"][kind] for m in steps)]
    figure, axes = _step_axes(len(steps), legend=1.4)
    bottom = [0.0] * len(steps)
    for n, kind in enumerate(kinds):
        counts = [m.resources["hot_loop"][kind] for m in steps]
        shade = {"color": f"C{n}", "hatch": HATCHES[n % len(HATCHES)], "edgecolor": "white", "linewidth": 0.5}
        axes.bar(range(len(steps)), counts, bottom=bottom, label=kind, **shade)
        bottom = [b + c for b, c in zip(bottom, counts)]
    for x, total in enumerate(bottom):
        axes.annotate(f"{total:.0f}", (x, total), (0, 2), textcoords="offset points", ha="center", fontsize=8)
    axes.set_ylim(0, 1.1 * max(bottom))
    _label_steps(axes, steps)
    axes.set_ylabel("instructions a K/V tile, hot loop")
    made_by = dict.fromkeys(f"{m.resources.get('compiler')} for {m.resources['arch']}" for m in steps)
    axes.set_title(f"{run.the_problem().describe()}, {', '.join(made_by)}", fontsize=9)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=8)
    return figure


def predicted_and_measured(comparisons: Sequence, run: Run):
    """The least time the model allows beside the measured one, a pair of bars a step. Returns a matplotlib Figure.

    comparisons: ``tutorial_lib.limits.compare(run)``.
    """
    steps = [c.measurement for c in comparisons]
    figure, axes = _step_axes(len(steps))
    measured = [1000 * c.measured for c in comparisons]
    low = [m.latency_ms.median - m.latency_ms.low for m in steps]
    high = [m.latency_ms.high - m.latency_ms.median for m in steps]
    positions = range(len(steps))
    least = [1000 * c.limit.seconds for c in comparisons]
    axes.bar(
        [x - 0.2 for x in positions], least, 0.4, label="least time (model)", color="white", edgecolor=BLUE, hatch="//"
    )
    axes.bar([x + 0.2 for x in positions], measured, 0.4, label="measured", color=BLUE, yerr=[low, high], capsize=3)
    for x, c in enumerate(comparisons):
        text = f"{c.limit.seconds / c.measured:.0%}"
        axes.annotate(text, (x - 0.2, least[x]), (0, 2), textcoords="offset points", ha="center", fontsize=8)
    axes.set_ylim(0, 1.15 * max(measured))
    axes.legend(frameon=False, loc="upper right")
    _label_steps(axes, steps)
    axes.set_ylabel("ms (median, 10th to 90th percentile)")
    axes.set_title(provenance(run), fontsize=9)
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
