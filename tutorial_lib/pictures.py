"""Pictures that explain an idea, drawn from the numbers of a problem, a kernel or a GPU; all are Figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tutorial_lib.passes import FORWARD
from tutorial_lib.plots import BLUE, GREY, HATCHES, MARKERS, ORANGE, STYLES, figure_with_axes
from tutorial_lib.problem import Problem
from tutorial_lib.records import Trace
from tutorial_lib.results import Run
from tutorial_lib.tracing import WINDOW, Traced

SKY = "#56B4E9"


def tiles_of(problem: Problem, query: int, key: int):
    """Which tiles of the score matrix are computed whole, which with a mask, which never."""
    from matplotlib.patches import Patch, Rectangle

    rows, columns = -(-problem.seq_len_q // query), -(-problem.seq_len_kv // key)
    figure, axes = figure_with_axes(4.6, 3.4)
    looks = {"whole": (SKY, ""), "masked": ("white", "//"), "never computed": ("#eeeeee", "")}
    for i in range(rows):
        for j in range(columns):
            hidden = problem.causal and j * key >= (i + 1) * query
            cut = (problem.causal and (j + 1) * key - 1 > i * query) or (j + 1) * key > problem.seq_len_kv
            if problem.window:
                hidden = hidden or (j + 1) * key - 1 <= i * query - problem.window
                cut = cut or j * key <= (i + 1) * query - 1 - problem.window
            colour, hatch = looks["never computed" if hidden else "masked" if cut else "whole"]
            style = {"facecolor": colour, "hatch": hatch, "edgecolor": GREY, "linewidth": 0.8}
            axes.add_patch(Rectangle((j * key, i * query), key, query, **style))
    axes.set(xlim=(0, columns * key), ylim=(rows * query, 0), xlabel="key", ylabel="query")
    axes.set_xticks(range(0, columns * key + 1, key))
    axes.set_yticks(range(0, rows * query + 1, query))
    handles = [Patch(facecolor=c, hatch=h, edgecolor=GREY, label=name) for name, (c, h) in looks.items()]
    axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    axes.set_title(f"{query} × {key} tiles; a block owns a row of them", fontsize=9)
    return figure


def online_softmax(scores: Sequence[float], tile: int):
    """One row of scores, taken a tile at a time: the weights so far, each relative to the largest score so far."""
    steps = range(tile, len(scores) + 1, tile)
    figure, grid = figure_with_axes(2.2 * len(steps), 2.7, 1, len(steps), sharey=True)
    largest = -math.inf
    for axes, seen in zip(grid, steps):
        before, largest = largest, max(scores[:seen])
        correction = math.exp(before - largest)
        weights = [math.exp(score - largest) for score in scores[:seen]]
        colours = [BLUE if n >= seen - tile else SKY for n in range(seen)]
        bars = axes.bar(range(seen), weights, color=colours)
        for bar in bars[: seen - tile]:
            bar.set_hatch("//")
        axes.set(xlim=(-0.6, len(scores) - 0.4), ylim=(0, 1.08), xticks=[])
        older = f"older sum × {correction:.2f}" if seen > tile else "no older sum"
        axes.set_xlabel(f"maximum {largest:.1f}\n{older}\nsum {sum(weights):.2f}", fontsize=8)
        axes.set_title(f"after {seen} keys", fontsize=9)
    grid[0].set_ylabel("weight, exp(score - maximum)")
    return figure


def sinks(scores: Sequence[float], sinks: Sequence[float | None]):
    """The weights of one row of scores beside each of these sinks, whose own weight is dropped; None: without one."""
    figure, grid = figure_with_axes(2.2 * len(sinks), 2.5, 1, len(sinks), sharey=True)
    for axes, sink in zip(grid, sinks):
        beside = [] if sink is None else [sink]
        weights = [math.exp(score - max(*scores, *beside)) for score in (*scores, *beside)]
        shares = [weight / sum(weights) for weight in weights]
        axes.bar(range(len(scores)), shares[: len(scores)], color=SKY)
        axes.bar(range(len(scores), len(shares)), shares[len(scores) :], color=ORANGE, hatch="//")
        axes.set(xlim=(-0.6, len(scores) + 0.6), ylim=(0, 1), xticks=[])
        axes.set_xlabel(f"keys have {sum(shares[: len(scores)]):.0%}", fontsize=8)
        axes.set_title("no sink" if sink is None else f"sink {sink:g}", fontsize=9)
    grid[0].set_ylabel("weight")
    return figure


def units(kernels: Sequence[tuple[str, object, float | None]]):
    """The least time of every unit, kernel by kernel. kernels: label, ``limits.Limit``, measured seconds or None."""
    names = list(dict.fromkeys(name for _, limit, _ in kernels for name in limit.units))
    figure, axes = figure_with_axes(6.4, 0.9 + 0.42 * len(names) * max(1, 0.7 * len(kernels)))
    height = 0.8 / len(kernels)
    for n, (label, limit, measured) in enumerate(kernels):
        places = [y + (n - (len(kernels) - 1) / 2) * height for y in range(len(names))]
        times = [1000 * limit.units.get(name, 0) for name in names]  # shared memory is not known of every kernel
        look = {"color": (SKY, BLUE)[n % 2], "hatch": HATCHES[n], "edgecolor": "white"}
        axes.barh(places, times, 0.9 * height, label=f"{label}: least time", **look)
        if measured is not None:
            look = {"color": ORANGE, "linestyle": STYLES[n % len(STYLES)]}
            axes.axvline(1000 * measured, label=f"{label}: measured", **look)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=8)
    return figure


Span = tuple[int, str, float, float, dict]  # of a lane: its number, a label, begin, end, how the bar looks


def _lanes(panels: Mapping[str, Sequence[Span]], lanes: Sequence[str], xlabel: str, each: float = 0.5):
    """What goes on in lanes, one below the other; each: inches of a lane. panels: by what stands in front of their end.

    A hatched bar has its label on white.
    """
    counts = [min(len(lanes), 1 + max(lane for lane, *_ in spans)) for spans in panels.values()]
    figure, grid = figure_with_axes(
        6.8, each * sum(counts) + 0.45 * len(panels), len(panels), sharex=True, squeeze=False, height_ratios=counts
    )
    for axes, count, (title, spans) in zip(grid[:, 0], counts, panels.items()):
        for lane, label, begin, end, look in spans:
            axes.barh(lane, end - begin, 0.8, left=begin, edgecolor=BLUE, **look)
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1} if look.get("hatch") else None
            axes.text((begin + end) / 2, lane, label, ha="center", va="center", fontsize=7, bbox=box)
        axes.set_yticks(range(count), lanes[:count], fontsize=8)
        axes.invert_yaxis()
        axes.set_title(title.format(max(end for _, _, _, end, _ in spans)), fontsize=9, loc="left")
    grid[-1, 0].set_xlim(left=0)
    grid[-1, 0].set_xlabel(xlabel, fontsize=8)
    return figure


def ahead(copy: Sequence[float], compute: Sequence[float], stages: Sequence[int]):
    """When tiles are copied and used, a panel a number of stages; each tile takes its own times."""
    panels = {}
    for number in stages:
        spans, copied, used = [], 0.0, []
        for j, (load, work) in enumerate(zip(copy, compute, strict=True)):
            begin = max(used[j - number] if j >= number else 0.0, copied)  # the buffer's last user is done
            copied = begin + load
            spans.append((0, str(j), begin, copied, {"color": "white", "hatch": "//"}))
            begin = max(copied, used[-1] if used else 0.0)
            used.append(begin + work)
            spans.append((1, str(j), begin, used[-1], {"color": SKY}))
        panels[f"{number} stage{'s' * (number > 1)}: ends at {{:g}}"] = spans
    return _lanes(panels, ("copied", "used"), "time (an example); numbers: the tile", 0.55)


def ranks(panels: Mapping[str, Sequence[tuple[int, int, float, float]]], unit: str = "ms"):
    """When ranks compute. panels: title -> (rank, iteration, begin, end) of everything that is computed."""
    drawn = {
        f"{title}: {{:.3g}} {unit}": [
            (rank, str(iteration), begin, end, {"color": "white" if iteration % 2 else SKY})
            for rank, iteration, begin, end in found
            if end > begin
        ]
        for title, found in panels.items()
    }
    most = 1 + max(rank for found in panels.values() for rank, *_ in found)
    told = f"{unit}, by the model; numbers: the iteration; no bar: nothing to compute, or waiting"
    return _lanes(drawn, [f"rank {rank}" for rank in range(most)], told, 0.3)


def iterations(panels: Mapping[str, bool], product: float = 2.0, softmax: float = 4.0, tiles: int = 4):
    """Who uses what when in one warpgroup. panels: title -> whether a softmax runs under the PV product before it.

    A model of two units: tensor cores, and everything that the softmax needs; times are an example's.
    """
    drawn = {
        f"{title}: {{:.3g}} units of time": _iterations(overlap, product, softmax, tiles)
        for title, overlap in panels.items()
    }
    told = "time (an example)\nQ: QK product, S: softmax, P: PV product, of tile 0, 1, ..."
    return _lanes(drawn, ("tensor cores", "softmax"), told, 0.6)


def _iterations(overlap: bool, product: float, softmax: float, tiles: int) -> list[Span]:
    """Every operation of one warpgroup."""
    spans = []

    def run(unit: int, label: str, begin: float, length: float) -> float:
        spans.append((unit, label, begin, begin + length, {"color": SKY}))
        return begin + length

    now = 0.0
    for n in range(tiles):
        scores = run(0, f"Q{n}", now, product)
        output = run(0, f"P{n - 1}", scores, product) if overlap and n else scores
        now = max(output, run(1, f"S{n}", scores, softmax))
        if not overlap or n == tiles - 1:
            now = run(0, f"P{n}", now, product)
    return spans


def shares(dealings: Mapping[str, Sequence[int]], ylabel: str):
    """How much each block has to do, from the one with most: a curve a way of dealing."""
    figure, axes = figure_with_axes(6.4, 2.8)
    for n, (label, loads) in enumerate(dealings.items()):
        look = {"color": f"C{n}", "linestyle": STYLES[n % len(STYLES)]}
        axes.step(range(len(loads)), sorted(loads, reverse=True), where="mid", label=label, **look)
    axes.set(xlabel="blocks, the busiest first", ylabel=ylabel)
    most = max(max(loads) for loads in dealings.values())
    axes.set_ylim(0, 1.1 * most)  # room above the highest line, which else lies on the frame
    axes.legend(loc="lower left", frameon=False, fontsize=8)
    return figure


def multiprocessor(kernels: Sequence[tuple[str, dict]], registers: int, shared_bytes: int):
    """How blocks fill an SM's registers and shared memory. kernels: label, ``Compiled.as_dict()``."""
    figure, grid = figure_with_axes(6.4, 0.8 + 0.55 * len(kernels), 1, 2, sharey=True)
    for axes, total, unit, of in (
        (grid[0], registers / 1024, "registers, in units of 1,024", lambda r: r["registers"] * r["threads"] / 1024),
        (grid[1], shared_bytes / 1024, "shared memory, KiB", lambda r: r["shared_bytes"] / 1024 + 1),
    ):
        for y, (_, resources) in enumerate(kernels):
            each = of(resources)
            for block in range(resources["blocks_per_sm"]):
                axes.barh(y, each, 0.7, left=block * each, color=SKY, hatch=HATCHES[block], edgecolor=BLUE)
                axes.text((block + 0.5) * each, y, f"block {block}", ha="center", va="center", fontsize=7)
        axes.axvline(total, color=ORANGE, linestyle="--")
        axes.set_xlim(0, 1.05 * total)
        axes.set_xlabel(unit)
    grid[0].set_yticks(range(len(kernels)), [label for label, _ in kernels])
    grid[0].invert_yaxis()
    figure.suptitle("What fits on one SM (dashed: all there is)", fontsize=9)
    return figure


def bars(values: Mapping[str, float], ylabel: str, form: str = "{:.3g}"):
    """One bar a name."""
    figure, axes = figure_with_axes(max(4.2, 0.9 + 1.05 * len(values)), 2.8)
    axes.bar(range(len(values)), list(values.values()), 0.6, color=BLUE)
    for x, value in enumerate(values.values()):
        axes.annotate(form.format(value), (x, value), (0, 2), textcoords="offset points", ha="center", fontsize=8)
    axes.set_xticks(range(len(values)), [name.replace(", ", ",\n") for name in values], fontsize=8)
    axes.margins(y=0.15)
    axes.set_ylabel(ylabel)
    return figure


def exponential_wall(gpu, points: Mapping[str, Sequence[tuple[int, float]]]):
    """What tensor cores and exponentials allow over head_dim, and what was measured: label -> (head_dim, TFLOPS)."""
    from tutorial_lib.limits import floor

    head_dims = (32, 64, 128, 256)
    walls: dict[str, list] = {"tensor cores alone": [], "exponentials alone": [], "one after the other": []}
    for head_dim in head_dims:
        problem = Problem(batch=1, heads=1, seq_len_q=4096, seq_len_kv=4096, head_dim=head_dim)
        least = floor(problem, gpu).units
        tera = FORWARD.operations(problem) / 1e12
        walls["tensor cores alone"].append((head_dim, tera / least["tensor cores"]))
        walls["exponentials alone"].append((head_dim, tera / least["exponentials"]))
        walls["one after the other"].append((head_dim, tera / (least["tensor cores"] + least["exponentials"])))
    figure, axes = figure_with_axes(6.8, 3.6)
    for n, (label, wall) in enumerate(walls.items()):
        axes.plot(*zip(*wall), color="black", linestyle=STYLES[n], label=label)
    looks = [{"marker": "o", "color": BLUE}, {"marker": "s", "markersize": 11, "color": ORANGE, "fillstyle": "none"}]
    for (label, measured), look in zip(
        points.items(), looks
    ):  # the second goes round the first where both are the same
        axes.plot(*zip(*measured), linestyle="none", label=label, **look)
    axes.set_xscale("log", base=2)
    axes.set_xticks(head_dims, [str(d) for d in head_dims])
    axes.set_ylim(0, 1.15 * walls["tensor cores alone"][0][1])
    axes.set(xlabel="head_dim", ylabel="TFLOPS")
    axes.set_title(f"{gpu.name} at {gpu.clock / 1e9:.2f} GHz", fontsize=9)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=8)
    return figure


# Kind of what a block does -> colour, hatch, and its name in the legend. What shares a lane differs in lightness
# or by a hatch: who prints in grey can tell them apart, too.
NAVY = "#00507E"
SIMULATED = {
    "wgmma": (NAVY, "", "tensor cores"),
    "tcgen05": (NAVY, "", "tensor cores"),
    "tensor cores": (NAVY, "", "tensor cores"),  # products that hold their warps
    "mufu": (ORANGE, "", "exponentials"),
    "alu": ("#D0D0D0", "", "arithmetic"),
    "smem": ("#DA8BB5", "", "shared memory"),
    "tmem": ("#3D0A24", "", "tensor memory"),
    "load": ("#009E73", "..", "loads"),
    "store": (SKY, "\\\\\\\\", "stores"),
    "reduction": ("#F0E442", "xxx", "additions"),
    "wait": ("white", "////", "waiting"),
    "stage": ("#EEEEEE", "", "a stage of the waves"),
    "stage first": ("#EEEEEE", "||||", "a stage with priority"),
}
OF_AMD = {"tensor cores": "MFMA", "shared memory": "LDS"}  # what AMD calls it
MACHINERY = ("tensor cores", "TMA", "copies", "stages")  # lanes that stand below those of the roles


MEASURED = {  # kind of a segment between two stamps -> likewise
    "product": (NAVY, "", "waiting for a product"),
    "softmax": (ORANGE, "", "softmax"),
    "issue": (SKY, "", "issuing products"),
    "other": ("#E4E4E4", "", "other work"),
    "store": ("#DA8BB5", "\\\\\\\\", "waiting for a store"),
    "wait": ("white", "////", "waiting for a barrier"),
}


def cycles_and_clock(run: Run):
    """Steps and peers by cycles and clock, after a rest and in a sustained load; dotted: the same time."""
    figure, axes = figure_with_axes(8, 4.2)
    found = [m for m in run.everybody if m.clock_ghz and m.cycles < 2 * min(x.cycles for x in run.steps if x.cycles)]
    regimes = {"after a rest": lambda m: (m.cycles, m.clock_ghz)}
    if run.sustained:
        regimes["in a sustained load"] = lambda m: m.sustained and (m.sustained.cycles, m.sustained.clock_ghz)
    points, named = [], []
    for (label, place), colour, marker in zip(regimes.items(), (BLUE, ORANGE), MARKERS):
        known = [(m, at) for m in found if (at := place(m)) and None not in at]
        axes.scatter([c / 1e6 for _, (c, _) in known], [g for _, (_, g) in known], c=colour, marker=marker, label=label)
        points += [(c / 1e6, g) for _, (c, g) in known]
        for m, (c, g) in known:
            places = BESIDE if m.part and m.number is None else BESIDE + FURTHER  # of variants, and of all others
            named.append((m.label.split()[0] if m.part else m.title, (c / 1e6, g), colour, places))
    axes.margins(0.08)
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    slowest, fastest = max(c / g for c, g in points), min(c / g for c, g in points)
    for n in range(5):
        ms = fastest + (slowest - fastest) * n / 4
        ends = [max(left, ms * low), min(right, ms * high)]
        axes.plot(ends, [x / ms for x in ends], ":", color=GREY, linewidth=0.8, zorder=0)
        axes.annotate(f"{ms:.2f} ms", (ends[1], ends[1] / ms), fontsize=6, color=GREY, ha="right", va="top")
    axes.set(xlim=(left, right), ylim=(low, high), xlabel="million cycles", ylabel="GHz")
    axes.set_title(f"{run.the_problem().describe()}, {run.machine['name']}: steps by number", fontsize=9)
    axes.legend(loc="lower right", frameon=False, fontsize=8)
    _name(axes, sorted(named, key=lambda one: -len(one[-1])), points)  # variants last
    return figure


BESIDE = [(7, 3), (7, -3), (-7, 3), (-7, -3)]  # of a point, in points of 1/72 inch: where its name begins or ends
FURTHER = [(x, y) for far in (18, 30) for y in (far, -far) for x in (far, -far, far // 3, -far // 3)]  # by a line


def _name(axes, named: Sequence[tuple], points: Sequence[tuple[float, float]]) -> None:
    """Write every (name, its point, colour, places) in the first place where it covers no point and no other name.

    A name for which there is no such place is left out.
    """
    from matplotlib.transforms import Bbox

    axes.figure.draw_without_rendering()  # its layout decides where everything is
    near = 4 * axes.figure.dpi / 72
    taken = [Bbox.from_extents(x - near, y - near, x + near, y + near) for x, y in axes.transData.transform(points)]
    for name, at, colour, places in named:
        for away in places:
            sides = {"ha": "left" if away[0] > 0 else "right", "va": "bottom" if away[1] > 0 else "top"}
            text = axes.annotate(name, at, away, textcoords="offset points", fontsize=8, color=colour, **sides)
            box = text.get_window_extent().padded(2)
            if axes.bbox.containsx(box.x0) and axes.bbox.containsx(box.x1) and not any(map(box.overlaps, taken)):
                taken.append(box)
                if away in FURTHER:
                    line = {"arrowstyle": "-", "color": colour, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 0}
                    axes.annotate("", at, away, textcoords="offset points", arrowprops=line)
                break
            text.remove()


def simulated_timeline(run, title: str, measured: Trace | None = None):
    """Who does what when in the longest block of a simulated launch, a ``simulator.run.Run`` with its trace.

    measured: drawn below it, where one is recorded.
    """
    events = [event[1:] for event in run.trace if event[0] == run.longest]
    lanes = sorted({event[0] for event in events}, key=lambda lane: (lane in MACHINERY, lane))
    words = OF_AMD if run.machine.amd else {}
    looks = {kind: (colour, hatch, words.get(name, name)) for kind, (colour, hatch, name) in SIMULATED.items()}
    simulated = lanes, events, looks, "simulated clocks", f"simulated: {title}"
    return _timelines(simulated, *([_measured(measured)] if measured else []))


def measured_timeline(trace: Trace, at_end: bool = False, simulated: Traced | None = None):
    """Who waited when in the longest block that was traced, by the SM's clock; at_end: in its last iterations.

    simulated: the same stamps from the simulator, drawn below.
    """
    panels = [_measured(trace, at_end)]
    if simulated:
        title = "simulated, the same stamps, with fewer heads"
        panels.append((list(trace.shares), _window(simulated.events, at_end), MEASURED, "simulated clocks", title))
    return _timelines(*panels)


def _measured(trace: Trace, at_end: bool = False) -> tuple:
    title = f"measured, with stamps: step {trace.step}, {trace.the_problem().describe()}, {trace.machine['name']}"
    return list(trace.shares), _window(trace.events, at_end), MEASURED, "clocks of the SM", title


def _window(events: Sequence[tuple], at_end: bool) -> list[tuple]:
    """The part of a block's events that is drawn: its first clocks, or its last."""
    begin = max(event[4] for event in events) - WINDOW if at_end else 0
    cut = [(role, kind, label, max(a, begin), min(b, begin + WINDOW)) for role, kind, label, a, b in events]
    return [event for event in cut if event[4] > event[3]]


def _timelines(*panels: tuple):
    """One below the other, each of them the arguments of ``_timeline`` behind the axes."""
    heights = [0.6 + 0.45 * len(lanes) for lanes, *_ in panels]
    figure, rows = figure_with_axes(9, sum(heights), len(panels), squeeze=False, height_ratios=heights)
    for [axes], panel in zip(rows, panels, strict=True):
        _timeline(axes, *panel)
    return figure


def _timeline(axes, lanes: Sequence[str], events: Sequence[tuple], looks: dict, unit: str, title: str) -> None:
    """A bar for every event (lane, kind, label, begin, end). looks: kind -> colour, hatch, and its name."""
    from matplotlib.patches import Patch

    def look(colour: str, hatch: str) -> dict:
        edge = ("#999999" if lightness(colour) > 0.8 else "white") if hatch else colour  # a hatch has the edge's colour
        return {"facecolor": colour, "hatch": hatch, "edgecolor": edge, "linewidth": 0.3}

    for lane, kind, _, begin, end in events:
        axes.barh(lanes.index(lane), end - begin, left=begin, height=0.7, **look(*looks[kind][:2]))
    axes.set_yticks(range(len(lanes)), lanes)
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    axes.set_xlabel(unit)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_title(title, fontsize=9)
    kinds = {event[1] for event in events}
    shown = dict.fromkeys(its for kind, its in looks.items() if kind in kinds)
    marks = [Patch(label=name, **look(colour, hatch)) for colour, hatch, name in shown]
    axes.legend(handles=marks, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=8)


def lightness(colour: str) -> float:
    """Of a colour in grey, from 0 for black to 1 for white (ITU-R BT.601, as Pillow converts)."""
    from matplotlib.colors import to_rgb

    return sum(weight * part for weight, part in zip((0.299, 0.587, 0.114), to_rgb(colour), strict=True))


HELD = {"scores": SKY, "weights": "#B35C00", "output": "#DDDDDD"}  # what lies in tensor memory -> colour


def tensor_memory(columns: Sequence[tuple], block: tuple[int, int, int], title: str, until: float):
    """What lies in which columns when, in a block of a simulated launch, from ``Run.columns``; until: the last clock.

    Scores and weights are drawn until they are read for the last time, and an output until the block ends.
    """
    from matplotlib.patches import Patch, Rectangle

    events = sorted((event[1:] for event in columns if event[0] == block), key=lambda event: event[4])
    widest = max(event[2] + event[3] for event in events)
    figure, axes = figure_with_axes(9, 4.0)
    for n, (what, written, first, count, begin, end) in enumerate(events):
        touching = [e for e in events[n + 1 :] if e[2] < first + count and first < e[2] + e[3]]
        if held := {"product": "scores", "store of 16 bits": "weights", "first sum": "output"}.get(what):
            over = next((e[4] for e in touching if e[1] and (held != "output" or e[0] == what)), math.inf)
            reads = [e[5] for e in touching if not e[1] and e[4] < over]
            gone = max([end, *reads]) if held != "output" else over
            look = {"facecolor": HELD[held], "linewidth": 0}
            axes.add_patch(Rectangle((begin, first), min(gone, until) - begin, count, **look))
        look = {"facecolor": "black" if written else "none", "edgecolor": "black", "linewidth": 0.4, "zorder": 2}
        axes.add_patch(Rectangle((begin, first), end - begin, count, hatch="" if written else "/////", **look))
    axes.set(
        xlim=(events[0][4] - 200, until), ylim=(widest, 0), xlabel="simulated clocks", ylabel="columns of tensor memory"
    )
    axes.set_yticks(range(0, widest + 1, 64))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_title(title, fontsize=9)
    marks = [Patch(facecolor=colour, label=name) for name, colour in HELD.items()]
    marks += [Patch(facecolor="black", label="being written")]
    marks += [Patch(facecolor="none", edgecolor="black", hatch="/////", label="being read")]
    axes.legend(handles=marks, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=8)
    return figure
