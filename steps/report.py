"""``python -m steps.report [PATH...]``: draws everything that is made from the recorded runs again, from them alone.

Every run's report, results.csv and figures; the figures of the survey and of the sweep; ladder.md, which tells the
whole ladder in one document; the README's table. Without a PATH, or with ``results``, all of it; else
the reports of the runs under each PATH, and for a folder its own ladder. Exit status: 0 done; 2 bad request.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from steps.core import ladder
from steps.core.grids import GRIDS
from steps.core.ladder import PARTS, Part, module_file, part_of
from steps.core.problems import FULL, HEADLINE
from steps.core.recorded import read_run, read_survey, recorded_sweeps
from tutorial_lib import plots, tables
from tutorial_lib.command import as_command, parser_of
from tutorial_lib.files import RESULTS, write_whole
from tutorial_lib.records import Sweep
from tutorial_lib.report import HOW_TIMED, best_by_problem, link, path_of, write_length_plots, write_report
from tutorial_lib.results import Measurement, ResultsError, Run, best_of, of_most_problems, of_one_machine

README = RESULTS.parent / "README.md"
RIVAL = "flash_attn_4"  # the peer that the best steps are set beside, next to SDPA
RIVALS = {"flash_attn_3": "FlashAttention-3", RIVAL: "flash-attn-4"}
COMPARED = ("cutile", "gluon", "hopper")  # parts whose best steps are set beside each other

# The problems whose figures are committed, and linked from reports; .gitignore names their folders.
HEADLINES = (HEADLINE, FULL)
SHARP = 160  # dots an inch of figures for slides, print and the README, where others have 80
FIGURE = "How many times as fast steps.attention is, problem by problem"
OTHER_DAY = "°"  # of a figure that is not of the rounds of its problem's record

NOT_TIMED = "Compiled, simulated, not timed: {}. `python -m steps.run` times these steps on a GPU they are made for."

BEGIN, END = "<!-- best: made by `make report` from results/ -->", "<!-- end of best -->"


def write_all(found: Sequence[tuple[Path, Run]]) -> list[Path]:
    """The reports and figures of runs, and what was drawn of several lengths; returns what to look at."""
    with ProcessPoolExecutor() as pool:  # drawing takes seconds a run
        list(pool.map(_write_one, *zip(*found)))
    return [folder / "report.md" for folder, _ in found] + write_length_plots(found)


def read_all(paths: Sequence[Path]) -> list[tuple[Path, Run]]:
    """Every run at or under these paths, with its folder; raises ResultsError."""
    found = []
    for path in paths:
        files = sorted(path.rglob("results.json")) if path.is_dir() else [path]
        if not files:
            raise ResultsError(f"no results.json under {path}")
        found += [(file.parent, read_run(file)) for file in files]
    return found


def _write_one(folder: Path, run: Run) -> None:
    write_report(run, folder, linked=run.the_problem() in HEADLINES)


def write_parts(runs: Sequence[Run], folder: Path) -> list[Path]:
    """For slides: a bar a step of every part that was timed, on the problem where most of its steps were.

    Of several such problems it is the one that a step of the part is for.
    """
    made = []
    for part in PARTS:
        own = {step.default_problem for step in _steps(part)}
        found = [(run, drawn) for run in runs if (drawn := path_of(run, part.name))]
        if found:
            run, drawn = max(found, key=lambda pair: (len(pair[1][0]), pair[0].the_problem() in own))
            place = folder / run.machine["slug"]
            made += plots.save(plots.path(*drawn), place, f"path-{part.name}", svg=False, dpi=SHARP)
    return made


def write_survey(path: Path) -> list[Path]:
    """The figure of a survey, beside its file; raises ResultsError."""
    try:
        survey = read_survey(path)
    except ValueError as error:
        raise ResultsError(f"{path} is not a survey: {str(error).splitlines()[0]}") from None
    return plots.save(plots.heat_table(survey), path.parent, "survey")


def readme_table(runs: Sequence[Run], sweeps: Sequence[Sweep] = ()) -> str:
    """SDPA, its rivals and the best step of each part on the headline problems, of one machine.

    Then what the newest sweep with timed rows comes to; without one, what the records come to over all.
    """
    timed = of_one_machine([run for run in runs if run.timed])
    if not timed:
        raise ResultsError("there is no run with timings to show")
    shown = [next((run for run in timed if run.the_problem() == problem), None) for problem in HEADLINES]
    rows = [
        [title, *(_cell(run and run.measurement(name)) for run in shown)]
        for name, title in {"sdpa": "SDPA", **RIVALS}.items()
    ]
    for part in PARTS:
        if part.name in COMPARED:
            best = [run and best_of_part(run, part.name) for run in shown]
            rows.append([f"best of {part.title.split(':')[0]}", *(_cell(m, named=True) for m in best)])
    headers = ["TFLOPS, times SDPA's", *("causal mask" if problem.causal else "no mask" for problem in HEADLINES)]
    problem = dataclasses.replace(HEADLINE, causal=False).describe().removesuffix(" full")
    days = f", measured {tables.days([run for run in shown if run])}" if any(shown) else ""
    told = f"{timed[0].machine['name']}, {problem}{days}. {_swept(sweeps) or _in_the_mean(of_most_problems(runs))}"
    return f"{tables.markdown(headers, rows)}\n\n{told}"


def _swept(sweeps: Sequence[Sweep]) -> str:
    """What the first sweep with timed rows comes to, and its figure; empty where there is none."""
    for record in sweeps:
        if told := tables.swept_in_words(record):
            return f"{told} ![{FIGURE}](results/{record.machine['slug']}/sweep.png)"
    return ""


def best_of_part(run: Run, part: str) -> Measurement | None:
    """The best step of a part in a run, in an earlier one where the run leaves the part out, or None without one."""
    if candidates := [m for m in run.by_speed() if m.part == part]:
        return best_of(run, candidates)
    before = [m for m in (*run.steps, *run.inside) if m.part == part and m.earlier and m.tflops and m.correct]
    return max(before, key=lambda m: m.tflops, default=None)


def _cell(m: Measurement | None, named: bool = False) -> str:
    if m is None or m.tflops is None:
        return tables.NOTHING
    told = f"{tables.tflops(m)} ({tables.factor(m.speedup_vs_baseline)})"
    return f"{told} {link(m.name, m.file, README.parent)}" if named else told


def _in_the_mean(runs: Sequence[Run]) -> str:
    _, factors = best_by_problem(runs, RIVAL)
    if not factors:
        return "No record holds SDPA, flash-attn-4 and the best step."
    sdpa, rival = (statistics.geometric_mean(values) for values in zip(*factors))
    return (
        f"In the geometric mean over {len(factors)} recorded problems of plain attention, decoding left out, the best "
        f"step is {sdpa:.2f} times as fast as SDPA and {rival:.2f} times as fast as flash-attn-4."
    )


def update_readme(path: Path, runs: Sequence[Run], sweeps: Sequence[Sweep] = ()) -> None:
    """Replace what stands between the README's markers; raises ResultsError when they are missing."""
    text = Path(path).read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ResultsError(f"{path} must hold the lines '{BEGIN}' and '{END}' once, between which the table goes")
    head, rest = text.split(BEGIN)
    write_whole(path, f"{head}{BEGIN}\n\n{readme_table(runs, sweeps)}\n\n{END}{rest.split(END)[1]}")


def ladder_report(runs: Sequence[Run], folder: Path) -> str:
    """The whole ladder in one document, which stands in ``folder``: what every step changes, and what it brought.

    Of the machine on which most problems were timed; others have reports of their own.
    """
    timed = sorted(of_most_problems([run for run in runs if run.timed]), key=lambda run: run.the_problem().order)
    if not timed:
        raise ResultsError("there is no run with timings to report")
    where = f"{timed[0].machine['name']}, {tables.days(timed)}"
    parts = ["# Fused attention, step by step", "", f"Measured on {where}.", "", *_path(timed, folder), _contents(), ""]
    parts += ["## How it is measured", "", HOW_TIMED, ""]
    parts += [
        "A cell holds TFLOPS, in brackets the speed relative to SDPA, and how many times as fast as its predecessor a "
        "step is, in bold where that is more than noise. Spreads, errors, what the compiler made of a step and what "
        "the counters say are in the report of each problem, `<machine>/<problem>/report.md`; `make report` makes "
        "those that are not committed. A *fork* stands beside the main path; what has no number is inside the step "
        "above it: a piece of it, or what else was tried on it. Behind TFLOPS, "
        f"{OTHER_DAY} says that they are of another day than the rounds of that problem's record, and do not compare "
        "with figures without it. A step's table holds the standard problems where it was measured on them; the best "
        "steps are named for all.",
        "",
        "## The best steps",
        "",
    ]
    table, _ = best_by_problem(timed, RIVAL, lambda m: link(m.name, m.file, folder))
    parts += [
        "The best step, its TFLOPS, and in brackets its speed relative to SDPA and to flash-attn-4.",
        "",
        table or "No record holds SDPA, flash-attn-4 and the best step.",
        "",
        _in_the_mean(timed),
        "",
    ]
    for problem in HEADLINES:
        machine = timed[0].machine["slug"]
        parts += _pictures(folder, f"{machine}/by_length-{problem.family}.png", "TFLOPS over the sequence length")
    parts += _pictures(folder, "compiled/*/survey.png", "what the compiler makes of every step for every architecture")
    for part in filter(_steps, PARTS):
        parts += _part(part, timed, folder)
    return "\n".join(parts).rstrip() + "\n"


def _path(timed: Sequence[Run], folder: Path) -> list[str]:
    """The steps of the headline problem, one below the other: what each changes, and what that brought."""
    run = next((run for run in timed if run.the_problem() == HEADLINE), None)
    if run is None:
        return []
    rows = [
        [
            m.label,
            m.change,
            tables.tflops(m),
            tables.vs_previous(m) or tables.NOTHING,
            tables.factor(m.speedup_vs_baseline),
        ]
        for m in run.steps
        if m.tflops
    ]
    headers = ["step", "what it changes", "TFLOPS", "times as fast as the one it stands on", "as SDPA"]
    slug = run.machine["slug"]
    return [
        "## The path",
        "",
        f"Every step on {tables.origin(run)}.",
        "",
        *_pictures(folder, f"{slug}/{HEADLINE.slug}/figures/path.png", "TFLOPS of every step, beside SDPA's"),
        tables.markdown(headers, rows),
        "",
    ]


def _contents() -> str:
    titles = ["The path", "How it is measured", "The best steps"]
    lines = [f"- [{title}](#{_anchor(title)})" for title in titles]
    for part in filter(_steps, PARTS):
        steps = [f"[{step.label}](#{_anchor(_heading(step))})" for step in _steps(part)]
        lines.append(f"- [{part.title}](#{_anchor(part.title)}): {', '.join(steps)}")
    return "\n".join(lines)


def _anchor(heading: str) -> str:
    """What a heading is linked by, as GitHub makes it."""
    return "".join(c for c in heading.lower().replace(" ", "-") if c.isalnum() or c in "-_")


def _heading(step) -> str:
    return f"{step.label}: {step.title}" + (" (fork)" if step.fork else "")


def _steps(part: Part) -> list:
    return [step for step in ladder.STEPS if part_of(step.number) is part]


def _inside(step) -> list:
    return [other for other in ladder.INSIDE if other.inside == step.name]


def _part(part: Part, runs: Sequence[Run], folder: Path) -> list[str]:
    """A part: all its steps on the headline problems, then each of them on all problems.

    Of a part that no GPU could run there are the steps, and what they change.
    """
    if not part.timed and not any(run.measurement(step.name) for run in runs for step in _steps(part)):
        told = [line for step in _steps(part) for line in (f"### {_heading(step)}", "", *_told(step, runs))]
        return [f"## {part.title}", "", NOT_TIMED.format(part.untimed), "", *told]
    shown = [next((run for run in runs if run.the_problem() == problem), None) for problem in HEADLINES]
    rows = []
    for step in _steps(part):
        for one in (step, *_inside(step)):
            number = str(one.number) if one is step else "inside"
            name = link(one.name, module_file(one), folder)
            title = f"{one.title} (fork)" if one.fork else one.title
            rows.append([number, name, title, *(_found(run and run.measurement(one.name)) for run in shown)])
    headers = ["step", "name", "title", *(problem.describe() for problem in HEADLINES)]
    parts = [f"## {part.title}", "", tables.markdown(headers, rows), ""]
    for step in _steps(part):
        parts += [f"### {_heading(step)}", "", *_told(step, runs)]
        for one in _inside(step):
            parts += [f"Inside it, **{one.name}**: {one.title}.", "", *_told(one, runs)]
    return parts


def _told(step, runs: Sequence[Run]) -> list[str]:
    """What a step changes, and a table of what it brought: a row for each family of problems, a column a length.

    The table is of the standard problems; of a step that was measured on none of them, of all.
    """
    against = f" Against {step.previous.label}:" if step.previous else ""
    changes = [f"- {change}" for change in step.key_changes() if change != step.change]
    parts = [f"{step.change}{against}", "", *changes, *([""] if changes else [])]
    cells = [(run, _found(m)) for run in runs if (m := run.measurement(step.name)) and m.tflops]
    standard = [(run, cell) for run, cell in cells if run.the_problem() in GRIDS["standard"].problems]
    return [*parts, tables.by_problem(standard or cells), ""] if cells else parts


def _found(m: Measurement | None) -> str:
    """TFLOPS, the factor over SDPA and that over the predecessor."""
    if m is None or m.tflops is None:
        return tables.NOTHING
    told = f"{tables.tflops(m)}{OTHER_DAY if m.earlier else ''} ({tables.factor(m.speedup_vs_baseline)})"
    ratio = m.speedup_vs_previous
    if ratio is None:
        return told
    brought = f"{ratio.median:.2f}×"
    return (
        f"{told} same code" if ratio.same_code else f"{told} {brought if ratio.verdict == 'same' else f'**{brought}**'}"
    )


def _pictures(folder: Path, pattern: str, title: str) -> list[str]:
    found = sorted(path.relative_to(folder).as_posix() for path in folder.glob(pattern))
    return [line for path in found for line in (f"![{title}]({path})", "")]


def run(options: argparse.Namespace) -> int:
    found = read_all(options.paths)
    # For the ladder's and the README's tables; a run over several GPUs has its own report.
    forward = [(place, run) for place, run in found if run.direction == "forward" and run.ranks == 1]
    for path in write_all(found):
        print(path)
    for folder in filter(Path.is_dir, options.paths):
        for survey in sorted(folder.rglob("survey.json")):
            print(*write_survey(survey), sep="\n")
        for record in recorded_sweeps(folder):
            if tables.swept_in_words(record):
                print(*plots.save(plots.sweep(record), folder / record.machine["slug"], "sweep", svg=False))
        timed = of_one_machine([run for place, run in found if place.is_relative_to(folder) and run.timed])
        print(*write_parts(timed, folder), sep="\n")
        runs = [run for place, run in forward if place.is_relative_to(folder)]
        write_whole(folder / "ladder.md", ladder_report(runs, folder))
        print(folder / "ladder.md")
    if any(path.resolve() == RESULTS for path in options.paths):
        for place, shown in found:
            same = shown.the_problem() == HEADLINE and shown.direction == "forward" and shown in timed
            if same and (drawn := path_of(shown)):
                plots.save(plots.path(*drawn), place / "figures", "path", svg=False, dpi=SHARP)
        update_readme(README, [run for _, run in forward], recorded_sweeps(RESULTS))
        print(README)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of("steps.report", __doc__)
    paths = "results.json files, or folders of them (results)"
    parser.add_argument("paths", nargs="*", type=Path, default=[RESULTS], metavar="PATH", help=paths)
    return as_command("steps.report", lambda: run(parser.parse_args(arguments)), wrong=(ValueError, OSError))


if __name__ == "__main__":
    sys.exit(main())
