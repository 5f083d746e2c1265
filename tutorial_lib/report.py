"""Reports, drawn from what was read of a results.json; ``python -m steps.report PATH...`` draws them again.

For every run: report.md, results.csv, and figures. For several runs that differ in sequence length alone, a line plot
beside their folders. What is said of the ladder as a whole is in ``steps.report``.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Sequence, Set
from pathlib import Path

from tutorial_lib import plots, tables, timing
from tutorial_lib.files import RESULTS, write_whole
from tutorial_lib.passes import PASSES
from tutorial_lib.records import Trace, traces_in
from tutorial_lib.results import Measurement, Run, best_of, folder_name, of_every_part

ROOT = RESULTS.parent


def write_report(run: Run, folder: Path, recorded: Run | None = None, linked: bool = True) -> None:
    """report.md, results.csv and, for a timed run, figures/ into ``folder``.

    recorded: a run of the same problem on a GPU, whose timings stand, marked, where ``run`` has none. linked: whether
    the report shows its figures; where they are not to stay beside it, they are drawn as PNG alone.
    """
    from tutorial_lib import limits

    folder = Path(folder)
    figures = {}
    if run.timed:
        figures["tflops"] = plots.tflops_by_step(run)
        if any(m.speedup_vs_previous for m in run.steps):
            figures["gain"] = plots.gain_by_step(run)
        if linked and (found := path_of(run)):
            figures["path"] = plots.path(*found)
        if compared := limits.compare(run):
            figures["limits"] = plots.predicted_and_measured(compared, run)
        for trace in traces_in(folder):
            from tutorial_lib import pictures

            figures[f"trace_{trace.step}"] = pictures.measured_timeline(trace)
    if any((m.resources or {}).get("hot_loop") for m in run.steps):
        figures["hot_loop"] = plots.hot_loop_by_kind(run)
    for name, figure in figures.items():
        plots.save(figure, folder / "figures", name, svg=linked)
    write_whole(folder / "results.csv", as_csv(run))
    write_whole(folder / "report.md", as_markdown(run, folder, recorded, linked))


def path_of(run: Run, part: str = "") -> tuple[list[Measurement], Measurement, list[Measurement]] | None:
    """(timed steps with a number, the baseline, other libraries) of a run, or None without a baseline or steps.

    part: of this one alone.
    """
    baseline = run.measurement(PASSES[run.direction].baseline)
    steps = [m for m in run.steps if m.tflops and m is not baseline and part in ("", m.part)]
    others = [m for m in run.peers if m.tflops and m.name.startswith("flash_attn")]
    return (steps, baseline, others) if baseline and baseline.tflops and steps else None


def make_ready() -> None:
    """Import what a report is drawn with, and look for its fonts: seconds, which a thread may spend in advance."""
    import pandas  # noqa: F401

    figure, _ = plots.figure_with_axes(1, 1)
    plots.png(figure)


def as_csv(run: Run) -> str:
    """One line a step, what is inside one, and peer; nested values in columns such as ``latency_ms.median``."""
    import pandas

    records = [m.model_dump() for m in run.everybody]
    for record in records:
        record["key_changes"] = "; ".join(record["key_changes"])
        record["kernels"] = "; ".join(record["kernels"] or [])
    return pandas.json_normalize(records).to_csv(index=False)


def link(text: str, file: str | None, folder: Path | None) -> str:
    """``text``, linked from a document in ``folder`` to a file of the repository; plain where there is no way there."""
    if file is None or folder is None or not Path(folder).resolve().is_relative_to(ROOT):
        return text
    return f"[{text}]({Path(os.path.relpath(ROOT / file, Path(folder).resolve())).as_posix()})"


def as_markdown(run: Run, folder: Path | None = None, recorded: Run | None = None, linked: bool = True) -> str:
    """The report of one run, which stands in ``folder``; recorded and linked: see ``write_report``."""
    columns = tables.columns(run, recorded)
    columns[1] = ("name", lambda m: link(tables.titled(m), m.file, folder))
    headers = [header for header, _ in columns]
    figures = folder if linked else None
    parts = [f"# {tables.subject(run)}, step by step: {tables.provenance(run)}", ""]
    if not run.timed:
        parts += ["Nothing was timed here: the kernels ran on the CPU, interpreted or simulated.", ""]
        if recorded:
            parts += [f"Columns marked «recorded» were measured elsewhere: {tables.provenance(recorded)}.", ""]
    if run.steps:
        parts += [tables.markdown(headers, tables.rows(run.steps, columns)), ""]
    if run.inside:
        parts += [
            f"What steps were put together from, and what else was tried on them{_in_rounds(run.inside)}:",
            "",
            _inside(run, folder),
            "",
        ]
    if run.peers:
        peer_columns = [column for column in columns if not column[0].startswith("vs previous")]
        cells = [line[1:] for line in tables.rows(run.peers, peer_columns)]  # without the step's number
        parts += [f"Peers{_in_rounds(run.peers)}:", ""]
        parts += [tables.markdown([header for header, _ in peer_columns[1:]], cells), ""]
    if reasons := tables.reasons(run.everybody):
        parts += [*(f"- {line}" for line in reasons), ""]
    if run.ceiling:
        parts += [f"The ceiling: {tables.ceiling_told(run, spread=True)}, in the same rounds.", ""]
    if run.sustained:
        parts += ["## In a load that goes on", "", HOW_SUSTAINED, ""]
        parts += [tables.markdown(*tables.sustained(run)), ""]
        if (c := run.ceiling) and c.sustained:
            parts += [f"The ceiling there: {c.sustained.tflops:.0f} TFLOPS.", ""]
    parts += [f"{note}\n" for note in run.told]
    for m in run.everybody:
        if m.kernels:
            parts += [f"GPU kernels of {m.label}: {', '.join(f'`{kernel}`' for kernel in m.kernels)}.", ""]
    parts += _figures(figures, "path", "tflops", "gain")
    traces = traces_in(folder) if folder and run.timed else []
    parts += _evidence(run, figures, {trace.step for trace in traces})
    parts += _traces(traces, figures)
    kind = PASSES[run.direction]
    parts += ["## How it was measured", "", kind.worded(HOW_TIMED if run.timed else HOW_CHECKED), ""]
    parts += [kind.explained, ""] if kind.explained else []
    if run.ranks > 1:
        parts += [HOW_TOGETHER, ""]
    if any(m.cosine for m in run.everybody):
        parts += [HOW_NEAR, ""]
    if any(m.repeat_difference is not None for m in run.everybody):
        parts += [HOW_REPEATED, ""]
    if run.timed:
        parts += [HOW_CLOCKED if any(m.clock_ghz for m in run.everybody) else NO_CLOCK, ""]
    parts += ["Settings: " + ", ".join(f"{k} {v}" for k, v in run.settings.items()) + ".", ""]
    parts += ["Machine: " + ", ".join(f"{k} {v}" for k, v in run.machine.items() if v is not None) + ".", ""]
    parts += ["Versions: " + ", ".join(f"{k} {v}" for k, v in run.versions.items()) + ".", ""]
    parts += ["What each step changes is in its file; every figure, the latencies of every round and the clocks are in"]
    parts += ["results.json." if linked else "results.json. `make report` draws figures beside it.", ""]
    return "\n".join(parts)


def _in_rounds(measurements: Sequence[Measurement]) -> str:
    """Whether all of them were in the rounds of the record; if not, a note of the report says who was not."""
    together = any(m.latency_ms for m in measurements) and not any(m.earlier for m in measurements)
    return ", in the same rounds" if together else ""


def _inside(run: Run, folder: Path | None) -> str:
    """A table of the variants inside steps, each beside its predecessor and the whole step."""

    def versus_step(m: Measurement) -> str:
        owner = run.measurement(m.inside) if m.inside else None
        return tables.ratio(run.speedup(m, owner)) if m.tflops and owner and owner.tflops else tables.NOTHING

    columns = [
        ("inside", lambda m: m.inside or ""),
        ("name", lambda m: m.name),
        ("title", lambda m: link(tables.titled(m), m.file, folder)),
        ("TFLOPS", tables.tflops),
        ("vs its predecessor (p10–p90)", tables.vs_previous),
        ("vs the step (p10–p90)", versus_step),
        *tables.CHECKING,
    ]
    headers = [PASSES[run.direction].worded(header) for header, _ in columns]
    return tables.markdown(headers, [[text(m) for _, text in columns] for m in run.inside])


def _figures(folder: Path | None, *names: str) -> list[str]:
    """Links to the figures among these that are there."""
    parts = []
    for name in names:
        if folder and Path(folder, "figures", f"{name}.png").exists():
            parts += [f"![{name}](figures/{name}.png)", ""]
    return parts


def _evidence(run: Run, folder: Path | None, traced: Set[str] = frozenset()) -> list[str]:
    """What the compiler made of the steps, what the counters say, and what the model of the limit expects."""
    from tutorial_lib import limits

    label = [tables.NUMBER, ("name", lambda m: m.title)]
    compiled = [m for m in (*run.steps, *run.inside) if m.resources]
    if not compiled:
        return []

    def table(columns, measurements):
        columns = label + columns
        return [tables.markdown([header for header, _ in columns], tables.rows(measurements, columns)), ""]

    made = sorted({f"{m.resources.get('compiler') or 'the compiler'} for {m.resources['arch']}" for m in compiled})
    parts = ["## The evidence", "", f"What {', '.join(made)} made of the steps:", "", *table(tables.COMPILED, compiled)]
    parts += _figures(folder, "hot_loop")
    survey = Path("..", "..", "compiled", run.the_problem().slug, "survey.png")
    if folder and (Path(folder) / survey).exists():
        parts += ["The same steps for every architecture that the compiler knows:", "", f"![survey]({survey})", ""]
    if counted := [m for m in run.everybody if m.counters]:
        parts += ["Counters, read by ncu with the clock left alone:", "", *table(tables.counted(counted), counted)]
    if compared := limits.compare(run):
        clocked = all(c.measurement.clock_ghz for c in compared)
        unit = "million cycles" if clocked else "ms"
        headers = ["step", f"least {unit}", "bound by", f"measured {unit}", "least / measured"]

        def told(c: limits.Comparison, share: float) -> str:
            """A share of what was measured, in cycles where they are known."""
            return f"{share * (c.measurement.cycles / 1e6 if clocked else 1000 * c.measured):.3g}"

        cells = [
            [
                c.measurement.label,
                told(c, c.limit.seconds / c.measured),
                c.limit.bound if c.limit.overlapped else f"{c.limit.bound}, then softmax",
                told(c, 1),
                f"{c.limit.seconds / c.measured:.2f}",
            ]
            for c in compared
        ]
        parts += ["What the model of the limit (`tutorial_lib/limits.py`) expects at least, and what was measured:", ""]
        parts += [tables.markdown(headers, cells), "", *_figures(folder, "limits")]
        told_why = [(c.explanation(c.measurement.name in traced), c.measurement.label) for c in compared]
        for why, found in _grouped(told_why).items():
            parts += [f"- {', '.join(found)}: {why}."]
        parts.append("")
    return parts


def _traces(traces: Sequence[Trace], folder: Path | None) -> list[str]:
    """What the stamps inside the kernels tell, where steps were traced on this problem."""
    parts = ["## Inside the kernels", "", HOW_TRACED, ""] if traces else []
    for trace in traces:
        headers, rows = tables.trace_table(trace)
        parts += [f"{trace.step}: {tables.about_trace(trace)}", "", tables.markdown(headers, rows), ""]
        parts += _figures(folder, f"trace_{trace.step}")
    return parts


def _grouped(pairs: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return groups


HOW_TIMED = (
    "Each sample is enough launches in a row to keep the GPU busy for some tens of milliseconds, between two CUDA "
    "events, after a rest; a load that goes on for long may run slower. All steps, peers "
    "and the ceiling are sampled in turn, round after round, in an order shuffled for every round; ratios are taken "
    "inside a round. Shown are the median and the 10th and 90th percentile over rounds. A step is «faster» or «slower» "
    "than the previous one when that whole range lies on one side of 1 and the median is "
    f"{100 * timing.NOISE:.0f} % away, else «same»: "
    "the same machine code, timed twice, differs by nearly as much. Where it is known that two steps are the very same "
    "machine code, «same code» stands there, whatever the rounds say. TFLOPS count 4·B·H·Sq·Skv·D "
    "operations, half of that for a causal square. The error is the largest difference from attention in float64 on "
    "the same inputs, beside SDPA's own; a step is correct when it is at most twice SDPA's plus one rounding step."
)
HOW_TOGETHER = (
    "The sequence is shared out over several ranks, processes with a GPU each where there are GPUs. Of every sample "
    "the slowest rank counts, and TFLOPS are those of one GPU. «Of ideal» is the share of the speed that so many GPUs "
    "would have without each other: that of one GPU alone with the whole sequence, in the same rounds, times their "
    "number. MB sent are those of a rank in a call. The sending was also timed alone; *longer by* is how much longer a "
    "call takes than the same call that sends nothing, in ms."
)
HOW_NEAR = (
    "The cosine is that of the angle between an output and float64's, each as one long vector. Others publish it; it "
    "hides an error in few rows."
)
HOW_REPEATED = (
    "Every step was also called several times with the same inputs. «Same bits» tells whether all gradients were equal "
    "to the last bit, or else the largest difference between two calls."
)
HOW_CLOCKED = (
    "GHz is the SMs' own clock during the sample, from their cycle counters, read on the device before and after; "
    "cycles are it times the latency. Where the power limit lowers the clock, a kernel that does the same in fewer "
    "cycles may run at a lower clock: the last column of the gain tells both. Host µs is the time in which the host "
    "makes an eager call."
)
NO_CLOCK = (
    "The SMs' clock was not read in this run. NVML tells what it was set to, and the SMs may have run slower: nothing "
    "here tells how much of a gain is fewer cycles."
)
HOW_SUSTAINED = (
    f"Every contender in turn, without rest: {timing.SETTLE_S:g} s to settle, and then {timing.SUSTAINED_S:g} s that "
    "are measured. Energy is what the GPU's own counter says, the memory included."
)
HOW_TRACED = (
    "`python -m steps.trace STEP` compiles stamps of the SM's clock into a kernel, wherever a role has waited or is "
    "about to wait. Shown is what each role of the first blocks spent its time on: as many blocks as the GPU has SMs. "
    "The stamps slow the kernel down, and the compiler may order the rest otherwise because of them. A stamp takes "
    "time, too: a wait for something that is there already shows as some hundred clocks."
)
HOW_CHECKED = (
    "The kernels' own source ran on the CPU, operation by operation, and was compared with attention in float64; "
    "SDPA's error on the same inputs stands beside it. A step is correct when its error is at most twice "
    "SDPA's plus one rounding step. Registers, spills and instructions are those of the code that a compiler "
    "made for the architecture named."
)


def write_length_plots(runs: Sequence[tuple[Path, Run]]) -> list[Path]:
    """A line plot for every group of timed runs that differ in sequence length alone, beside their folders."""
    groups: dict[tuple, list[Run]] = defaultdict(list)
    for folder, run in runs:
        if run.timed:
            groups[Path(folder).parent, folder_name(run.the_problem().family, run.direction)].append(run)
    written = []
    for (parent, family), its in groups.items():
        if len(members := of_every_part(its)) > 1:
            written += plots.save(plots.tflops_by_length(members), parent, f"by_length-{family}")
    return written


def best_by_problem(
    runs: Sequence[Run], rival: str, linked: Callable[[Measurement], str] = lambda m: m.label
) -> tuple[str, list[tuple[float, float]]]:
    """A table of the best step of every problem, and for each how many times as fast as SDPA and as a rival it is.

    A cell holds the step, as ``linked`` writes it, its TFLOPS and those two factors. What is the best says ``best_of``.
    Left out are runs without the rival, and those that do not know the best: without any step of a part that holds the
    best of the runs of that kind with most parts, unless an earlier run of the problem found that part slower. Of a
    kind are runs with the same head_dim, with or without a window and the like, with bytes or operations that decide.
    The factors are of plain attention alone, where operations decide. For a window SDPA has no kernel, and computes
    what it hides. In decoding all are near what device memory can do.
    """
    known = [(run, best_of(run, run.by_speed())) for run in runs if _is_timed(run, rival)]
    known = [(run, best) for run, best in known if run.together(best, run.measurement(rival))]
    cells, factors = [], []
    for run, best in known:
        if _best_parts([(at, other) for at, other in known if _kind(at) == _kind(run)]) <= _parts(run):
            ahead = best.speedup_vs_baseline.median, run.speedup(best, run.measurement(rival)).median
            cells.append((run, f"{linked(best)}: {tables.tflops(best)} ({ahead[0]:.2f}×, {ahead[1]:.2f}×)"))
            if not run.the_problem().features and not PASSES[run.direction].by_bytes(run.the_problem()):
                factors.append(ahead)
    return tables.by_problem(cells, filled=0.5), factors


def _parts(run: Run) -> set[str]:
    """Of which parts steps were measured: in its rounds, or earlier, and slower than its fastest.

    But for everyday problems: each of those steps is for a few.
    """
    return {m.part for m in run.known()} - {"everyday"}


def _best_parts(known: Sequence[tuple[Run, Measurement]]) -> set[str]:
    """The parts of the best steps, each given with its run, of those runs that hold most parts."""
    most = max(len(_parts(run)) for run, _ in known)
    return {best.part for run, best in known if len(_parts(run)) == most} - {"everyday"}


def _kind(run: Run) -> tuple:
    """What decides which kernels a problem is for: see ``best_by_problem``."""
    problem = run.the_problem()
    return problem.head_dim, problem.features, PASSES[run.direction].by_bytes(problem)


def _is_timed(run: Run, rival: str) -> bool:
    """Whether a run holds timings of SDPA, of the rival and of a step that is right."""
    other = run.measurement(rival)
    return bool(other and other.tflops and any(m.speedup_vs_baseline for m in run.by_speed()))
