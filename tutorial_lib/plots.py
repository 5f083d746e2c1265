"""Figures, drawn from results alone. Every one can be read in greyscale."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from tutorial_lib.results import Measurement, Run, write_whole
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

    paths = []
    for suffix in ("png", "svg"):
        buffer = io.BytesIO()
        with matplotlib.rc_context(SETTINGS):
            metadata = {"Date": None} if suffix == "svg" else None  # the same results give the same file
            figure.savefig(buffer, format=suffix, dpi=110, metadata=metadata)
        path = Path(folder, f"{name}.{suffix}")
        write_whole(path, buffer.getvalue())
        paths.append(path)
    return paths


def _axes(width: float, height: float):
    import matplotlib
    from matplotlib.figure import Figure  # not pyplot: no window, no global state

    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots()


def _label_steps(axes, measurements: Sequence[Measurement]) -> None:
    axes.set_xticks(range(len(measurements)))
    axes.set_xticklabels([m.label.replace(" ", "\n", 1).replace("_", "\n") for m in measurements], fontsize=8)


def tflops_by_step(run: Run):
    """A bar a step with its 10th to 90th percentile; SDPA as a line. Returns a matplotlib Figure."""
    measured = [m for m in run.steps if m.tflops is not None]
    figure, axes = _axes(7.2, 3.9)
    median = [m.tflops for m in measured]
    flops = [m.tflops * m.latency_ms.median for m in measured]
    low = [t - f / m.latency_ms.high for t, f, m in zip(median, flops, measured)]
    high = [f / m.latency_ms.low - t for t, f, m in zip(median, flops, measured)]
    colours = [GREY if m.number == 0 else BLUE for m in measured]
    axes.bar(range(len(measured)), median, color=colours, yerr=[low, high], capsize=3)
    for x, (value, above) in enumerate(zip(median, high)):
        axes.annotate(f"{value:.0f}", (x, value + above), (0, 2), textcoords="offset points", ha="center", fontsize=8)
    if (baseline := run.measurement("sdpa")) and baseline.tflops:
        axes.axhline(baseline.tflops, color=ORANGE, linestyle="--")
        text = {"textcoords": "offset points", "ha": "center", "color": ORANGE, "fontsize": 8}
        axes.annotate("SDPA", (1, baseline.tflops), (0, 3), **text)
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
    figure, axes = _axes(7.2, 3.9)
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
        text = f"{gain:+.1f} %\n{m.speedup_vs_previous.verdict}"
        axes.annotate(text, at, (0, 3), textcoords="offset points", ha="center", fontsize=8)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.margins(y=0.2)
    _label_steps(axes, compared)
    axes.set_ylabel("gain over the previous step, %\n(median, 10th to 90th percentile)")
    beyond = "".join(f"\nnot drawn: {m.label}, {m.speedup_vs_previous.median:.3g} times the previous" for m in leaps)
    axes.set_title(provenance(run) + beyond, fontsize=9)
    return figure


def tflops_by_length(runs: Sequence[Run]):
    """TFLOPS over sequence length, a line for each step and peer. Returns a matplotlib Figure."""
    runs = sorted(runs, key=lambda run: run.problem["seq_len_q"])
    figure, axes = _axes(8.4, 4.8)
    labels = {m.name: m.label for run in runs for m in [*run.steps, *run.peers] if m.tflops is not None}
    for n, (name, label) in enumerate(labels.items()):
        points = [(run.problem["seq_len_q"], run.measurement(name)) for run in runs]
        points = [(length, m) for length, m in points if m is not None and m.tflops is not None]
        lengths = [length for length, _ in points]
        peer = points[0][1].number is None
        axes.plot(
            lengths,
            [m.tflops for _, m in points],
            marker=MARKERS[n % len(MARKERS)],
            linestyle=":" if peer else STYLES[n % 2],
            color=GREY if peer else f"C{n}",
            markerfacecolor="white" if peer else None,
            markersize=5,
            label=label,
        )
    axes.set_xscale("log", base=2)
    ticks = sorted({run.problem["seq_len_q"] for run in runs})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("sequence length")
    axes.set_ylabel("TFLOPS (median)")
    first = runs[0]
    axes.set_title(f"{first.machine['name']}, {first.the_problem().family}, {first.day}", fontsize=9)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=8)
    return figure
