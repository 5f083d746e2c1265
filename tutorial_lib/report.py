"""Reports, drawn from results.json alone: ``python -m tutorial_lib.report PATH...`` draws them again.

For every run: report.md, results.csv, and figures. For several runs that differ in sequence length alone, a line plot
beside their folders. With ``--readme FILE``, the tables between FILE's markers as well.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from tutorial_lib import plots, tables, timing
from tutorial_lib.command import OneLineParser
from tutorial_lib.files import write_whole
from tutorial_lib.results import Measurement, ResultsError, Run, read_run


def write_report(run: Run, folder: Path, recorded: Run | None = None) -> None:
    """report.md, results.csv and, for a timed run, figures/ into ``folder``.

    recorded: a run of the same problem on a GPU, whose timings stand, marked, where ``run`` has none.
    """
    from tutorial_lib import limits

    folder = Path(folder)
    if run.timed:
        plots.save(plots.tflops_by_step(run), folder / "figures", "tflops")
        if any(m.speedup_vs_previous for m in run.steps):
            plots.save(plots.gain_by_step(run), folder / "figures", "gain")
        if limits.compare(run):
            plots.save(plots.predicted_and_measured(limits.compare(run), run), folder / "figures", "limits")
    if any((m.resources or {}).get("hot_loop") for m in run.steps):
        plots.save(plots.hot_loop_by_kind(run), folder / "figures", "hot_loop")
    write_whole(folder / "results.csv", as_csv(run))
    write_whole(folder / "report.md", as_markdown(run, folder, recorded))


def as_csv(run: Run) -> str:
    """One line a step and peer; nested values in columns such as ``latency_ms.median``."""
    import pandas

    records = [m.model_dump() for m in [*run.steps, *run.peers]]
    for record in records:
        record["key_changes"] = "; ".join(record["key_changes"])
        record["kernels"] = "; ".join(record["kernels"] or [])
    return pandas.json_normalize(records).to_csv(index=False)


def as_markdown(run: Run, folder: Path | None = None, recorded: Run | None = None) -> str:
    """The report of one run."""
    columns = tables.columns(run, recorded)
    headers = [header for header, _ in columns]
    parts = [f"# Attention, step by step: {tables.provenance(run)}", ""]
    if not run.timed:
        parts += ["Nothing was timed here: the kernels ran on the CPU, in the interpreter.", ""]
        if recorded:
            parts += [f"Columns marked «recorded» were measured elsewhere: {tables.provenance(recorded)}.", ""]
    parts += [tables.markdown(headers, tables.rows(run.steps, columns)), ""]
    if run.peers:
        peer_columns = [column for column in columns if not column[0].startswith("vs previous")]
        cells = [line[1:] for line in tables.rows(run.peers, peer_columns)]  # without the step's number
        parts += ["Peers, in the same rounds:", ""]
        parts += [tables.markdown([header for header, _ in peer_columns[1:]], cells), ""]
    parts += [f"- {line}" for line in tables.reasons([*run.steps, *run.peers])] + [""]
    if run.ceiling:
        c = run.ceiling
        parts += [f"The ceiling: {c.what}, {c.tflops:.0f} TFLOPS ({c.low:.0f}–{c.high:.0f}), in the same rounds.", ""]
    parts += [f"{note}\n" for note in run.notes]
    parts += _figures(folder, "tflops", "gain")
    parts += _evidence(run, folder)
    parts += ["## The steps", ""]
    for m in [*run.steps, *run.peers]:
        parts += _details(m)
    parts += ["## How it was measured", "", HOW_TIMED if run.timed else HOW_CHECKED, ""]
    parts += ["Settings: " + ", ".join(f"{k} {v}" for k, v in run.settings.items()) + ".", ""]
    parts += ["Machine: " + ", ".join(f"{k} {v}" for k, v in run.machine.items() if v is not None) + ".", ""]
    parts += ["Versions: " + ", ".join(f"{k} {v}" for k, v in run.versions.items()) + ".", ""]
    if any(r.sm_clock_mhz is not None for r in run.rounds):
        parts += [
            "| round | SM clock MHz | power W | temperature °C | throttled by |",
            "| --- | --- | --- | --- | --- |",
        ]
        for n, r in enumerate(run.rounds, 1):
            why = ", ".join(r.throttled_by) or "nothing"
            parts.append(f"| {n} | {r.sm_clock_mhz:.0f} | {r.power_w:.0f} | {r.temperature_c:.0f} | {why} |")
        parts.append("")
    return "\n".join(parts)


def _figures(folder: Path | None, *names: str) -> list[str]:
    """Links to the figures among these that are there."""
    parts = []
    for name in names:
        if folder and Path(folder, "figures", f"{name}.png").exists():
            parts += [f"![{name}](figures/{name}.png)", ""]
    return parts


def _evidence(run: Run, folder: Path | None) -> list[str]:
    """What the compiler made of the steps, what the counters say, and what the model of the limit expects."""
    from tutorial_lib import limits

    label = [tables.NUMBER, ("name", lambda m: m.title)]
    compiled = [m for m in run.steps if m.resources]
    if not compiled:
        return []

    def table(columns, measurements):
        columns = label + columns
        return [tables.markdown([header for header, _ in columns], tables.rows(measurements, columns)), ""]

    made = sorted({f"{m.resources.get('compiler', 'the compiler')} for {m.resources['arch']}" for m in compiled})
    parts = ["## The evidence", "", f"What {', '.join(made)} made of the steps:", "", *table(tables.COMPILED, compiled)]
    parts += _figures(folder, "hot_loop")
    survey = Path("..", "..", "compiled", run.the_problem().slug, "survey.png")
    if folder and (Path(folder) / survey).exists():
        parts += ["The same steps for every architecture that the compiler knows:", "", f"![survey]({survey})", ""]
    if counted := [m for m in run.steps if m.counters]:
        parts += ["Counters, read by ncu with the clock left alone:", "", *table(tables.COUNTED, counted)]
    if compared := limits.compare(run):
        headers = ["step", "least ms", "bound by", "measured ms", "least / measured", "why"]
        cells = [
            [
                c.measurement.label,
                f"{1000 * c.limit.seconds:.3g}",
                c.limit.bound if c.limit.overlapped else f"{c.limit.bound}, then softmax",
                f"{1000 * c.measured:.3g}",
                f"{c.limit.seconds / c.measured:.2f}",
                c.explanation,
            ]
            for c in compared
        ]
        parts += ["What the model of the limit (`tutorial_lib/limits.py`) expects at least, and what was measured:", ""]
        parts += [tables.markdown(headers, cells), "", *_figures(folder, "limits")]
    return parts


HOW_TIMED = (
    "Each sample is enough launches in a row to keep the GPU busy for some tens of milliseconds, between two CUDA "
    "events, after a rest in which its clock recovers; a load that goes on for long may run slower. All steps, peers "
    "and the ceiling are sampled in turn, round after round, in an order shuffled for every round; ratios are taken "
    "inside a round. Shown are the median and the 10th and 90th percentile over rounds. A step is «faster» or «slower» "
    "than the previous one when that whole range lies on one side of 1 and the median is "
    f"{100 * timing.NOISE:.0f} % away, else «same»: "
    "the same machine code, timed twice, differs by nearly as much. TFLOPS count 4·B·H·Sq·Skv·D "
    "operations, half of that for a causal square. The error is the largest difference from attention in float64 on "
    "the same inputs, beside SDPA's own; a step is correct when it is at most twice SDPA's plus one rounding step."
)
HOW_CHECKED = (
    "The kernels' own source ran on the CPU, operation by operation, and was compared with attention in float64; the "
    "error of PyTorch's SDPA on the same inputs stands beside it. A step is correct when its error is at most twice "
    "SDPA's plus one rounding step. Registers, spills and instructions are those of the code that cuTile's compiler "
    "made for the architecture named."
)


def _details(m: Measurement) -> list[str]:
    lines = [f"### {m.label}: {m.title}", "", m.change, ""]
    if m.number is not None:
        lines += [f"- {change}" for change in m.key_changes if change != m.change]
    lines.append(f"- status: {tables.outcome(m)}")
    if m.latency_ms:
        lines.append(
            f"- latency {tables.milliseconds(m)} ms over {m.latency_ms.rounds} rounds, {tables.tflops(m)} TFLOPS"
        )
    if m.sm_clock_mhz:
        lines.append(f"- SM clock while it ran: {m.sm_clock_mhz:.0f} MHz (median)")
    if m.kernels:
        lines.append("- GPU kernels: " + ", ".join(f"`{kernel}`" for kernel in m.kernels))
    return [*lines, ""]


def write_length_plots(runs: Sequence[tuple[Path, Run]]) -> list[Path]:
    """A line plot for every group of timed runs that differ in sequence length alone, beside their folders."""
    groups: dict[tuple, list[Run]] = defaultdict(list)
    for folder, run in runs:
        if run.timed:
            groups[Path(folder).parent, run.the_problem().family].append(run)
    written = []
    for (parent, family), members in groups.items():
        if len(members) > 1:
            written += plots.save(plots.tflops_by_length(members), parent, f"by_length-{family}")
    return written


def ladder(runs: Sequence[Run], root: str = "", families: int | None = None) -> str:
    """Tables: TFLOPS and speedup over SDPA of every step and peer, a column for each sequence length.

    One table for each machine and family of problems, most lengths, then most steps first; families: how many of them,
    None for all.
    root: the way from the document to the repository's root, for links to the steps.
    """
    groups: dict[tuple, list[Run]] = defaultdict(list)
    for run in runs:
        if run.timed:
            groups[run.machine["name"], run.the_problem().family].append(run)
    parts = []
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), -sum(len(run.steps) for run in item[1]), item[0]))
    for (machine, family), members in ordered[:families]:
        members.sort(key=lambda run: run.problem["seq_len_q"])
        days = sorted({run.day for run in members})
        title = f"{machine}, {family}, measured {' to '.join(dict.fromkeys((days[0], days[-1])))}"
        names = {m.name: m for run in members for m in [*run.steps, *run.peers]}
        cells = []
        for name, m in names.items():
            found = [run.measurement(name) for run in members]
            if any(f and f.tflops for f in found):
                cells.append([*_ladder_label(m, root), *map(_ladder_cell, found)])
        ceilings = [f"{run.ceiling.tflops:.0f}" if run.ceiling else tables.NOTHING for run in members]
        cells.append(["", "*a large matrix product*", *ceilings])
        table = tables.markdown(["step", "TFLOPS", *(f"S={run.problem['seq_len_q']}" for run in members)], cells)
        parts += [f"**{title}**", "", table, ""]
    return "\n".join(parts).rstrip()


STEP_FILE = "steps/step{number:02}_{name}.py"
RIVAL = "flash_attn_4"  # the peer that the fastest steps are set beside, next to SDPA


def fastest(runs: Sequence[Run], link: str = STEP_FILE) -> str:
    """The fastest step of every problem, and the geometric mean of what it gains over SDPA and flash-attn-4.

    A cell holds the step, its TFLOPS and its speed relative to SDPA and to flash-attn-4. Left out are runs that do not
    know the fastest: without flash-attn-4, or without one of the steps that are the fastest in some run of the newest.
    link: where a step is found.
    """
    runs = [run for run in runs if (rival := run.measurement(RIVAL)) and rival.tflops]
    newest = max((m.number for run in runs for m in run.steps), default=None)
    ranked = [(run, run.by_speed()) for run in runs]
    candidates = {steps[0].name for _, steps in ranked if any(m.number == newest for m in steps)}
    cells, over_sdpa, over_rival = [], [], []
    for run, steps in ranked:
        if candidates and candidates <= {m.name for m in steps}:
            best = steps[0]
            ahead = timing.speedup(*([x.latency_ms[name] for x in run.rounds] for name in (RIVAL, best.name))).median
            over_sdpa.append(best.speedup_vs_baseline.median)
            over_rival.append(ahead)
            step = f"[{best.number}]({link.format(number=best.number, name=best.name)})"
            cells.append((run, f"{step}: {tables.tflops(best)} ({over_sdpa[-1]:.2f}×, {ahead:.2f}×)"))
    if not cells:
        return "No record holds both the newest step and flash-attn-4."
    means = [statistics.geometric_mean(ratios) for ratios in (over_sdpa, over_rival)]
    return (
        f"{tables.by_problem(cells)}\n\nIn the geometric mean over these {len(cells)} problems the fastest step is "
        f"{means[0]:.2f} times as fast as SDPA and {means[1]:.2f} times as fast as flash-attn-4."
    )


def _ladder_label(m: Measurement, root: str) -> tuple[str, str]:
    if m.number is None:
        return "", m.title
    return str(m.number), f"[{m.title}]({root}{STEP_FILE.format(number=m.number, name=m.name)})"


def _ladder_cell(m: Measurement | None) -> str:
    if m is None or m.tflops is None:
        return tables.NOTHING
    return f"{tables.tflops(m)} ({tables.factor(m.speedup_vs_baseline)})"


def teaching_report(runs: Sequence[Run], folder: Path) -> str:
    """The whole ladder in one document, for teaching: tables, figures, and every step's change and what it brought."""
    timed = sorted((run for run in runs if run.timed), key=lambda run: run.the_problem().order)
    if not timed:
        raise ResultsError("there is no run with timings to report")
    where = " and ".join(sorted({f"{run.machine['name']}, {run.day}" for run in timed}))
    parts = ["# Fused attention, step by step", "", f"Measured on {where}.", "", HOW_TIMED, ""]
    parts += [
        "## The ladder",
        "",
        "TFLOPS, and in brackets the speed relative to SDPA.",
        "",
        ladder(timed, "../"),
        "",
        "## The fastest step",
        "",
        "TFLOPS, and in brackets the speed relative to SDPA and to flash-attn-4.",
        "",
        fastest(timed, f"../{STEP_FILE}"),
        "",
    ]
    for figure in sorted(folder.glob("*/by_length-*.png")):
        parts += [f"![TFLOPS over sequence length]({figure.relative_to(folder).as_posix()})", ""]
    for figure in sorted(folder.glob("compiled/*/survey.png")):
        parts += ["## Every architecture", "", f"![survey]({figure.relative_to(folder).as_posix()})", ""]
    parts += ["## The steps", ""]
    for step in sorted({m.name: m for run in timed for m in run.steps}.values(), key=lambda m: m.number):
        parts += [f"### {step.label}: {step.title}", "", step.change, ""]
        parts += [f"- {change}" for change in step.key_changes if change != step.change] + [""]
        found = [(run, m) for run in timed if (m := run.measurement(step.name)) and m.tflops]
        cells = [
            [
                run.the_problem().describe(),
                *(text(m) for _, text in tables.TIMING),
                *(text(m) for _, text in tables.RESOURCES),
            ]
            for run, m in found
        ]
        headers = ["problem", *(header for header, _ in [*tables.TIMING, *tables.RESOURCES])]
        parts += [tables.markdown(headers, cells), ""] if cells else []
    return "\n".join(parts)


def write_teaching_report(runs: Sequence[Run], folder: Path) -> list[Path]:
    """ladder.md and ladder.html into ``folder``; the page holds its figures and needs no network."""
    import nbformat

    from tutorial_lib.notebooks import as_html

    text = teaching_report(runs, folder)
    paths = [folder / "ladder.md", folder / "ladder.html"]
    write_whole(paths[0], text)
    document = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)])
    write_whole(paths[1], as_html(document, "Fused attention, step by step", folder))
    return paths


README_PARTS = {  # what stands between which markers of the README
    ("<!-- ladder: made by `make report` from results/ -->", "<!-- end of ladder -->"): lambda runs: ladder(
        runs, families=1
    ),
    ("<!-- fastest: made by `make report` from results/ -->", "<!-- end of fastest -->"): fastest,
}


def update_readme(path: Path, runs: Sequence[Run]) -> None:
    """Replace what stands between the README's markers: the ladder over most lengths, and the fastest steps.

    Raises ValueError when markers are missing.
    """
    text = Path(path).read_text()
    for (begin, end), made in README_PARTS.items():
        if begin not in text or end not in text:
            raise ValueError(f"{path} must hold the lines '{begin}' and '{end}', between which the tables go")
        head, rest = text.split(begin, 1)
        text = f"{head}{begin}\n\n{made(runs)}\n\n{end}{rest.split(end, 1)[1]}"
    write_whole(path, text)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = OneLineParser(prog="python -m tutorial_lib.report", description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="results.json files, or folders of them")
    parser.add_argument("--readme", type=Path, metavar="FILE", help="also write the ladder between FILE's markers")
    parser.add_argument(
        "--teach", type=Path, metavar="DIR", help="also write DIR/ladder.md and ladder.html, all in one"
    )
    try:
        options = parser.parse_args(arguments)
        found = []
        for path in options.paths:
            files = sorted(path.rglob("results.json")) if path.is_dir() else [path]
            if not files:
                raise ResultsError(f"no results.json under {path}")
            found += [(file.parent, read_run(file)) for file in files]
        for folder, run in found:
            write_report(run, folder)
            print(folder / "report.md")
        for path in write_length_plots(found):
            print(path)
        if options.teach:
            for path in write_teaching_report([run for _, run in found], options.teach):
                print(path)
        if options.readme:
            update_readme(options.readme, [run for _, run in found])
            print(options.readme)
    except (ValueError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
