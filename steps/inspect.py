"""The compiler's evidence: ``python -m steps.inspect exp2 --against mma --arch sm_90,sm_121`` shows what a step became.

Needs no GPU. Shows registers, shared memory, spills and occupancy; instructions by what they do, for the whole kernel
and for one turn of the hot loop; what bounds it; the compiler's remarks; with ``--text``, Tile IR or SASS to page
through. With ``all`` for the step, the figures of every step for each architecture, which ``--output`` records.
Exit status: 0 done; 2 the request makes no sense, or the compiler is missing, too old or failed.
"""

from __future__ import annotations

import argparse
import linecache
import pydoc
import sys
from collections.abc import Sequence
from pathlib import Path

from tutorial_lib.command import BadRequest, OneLineParser, check_writable, make_console, whole_number


def make_parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="python -m steps.inspect", description=__doc__.split("\n\n")[0])
    parser.add_argument("step", help="number or name of a step, or all")
    parser.add_argument("--against", metavar="STEP", help="compare with this step")
    parser.add_argument("--arch", default="sm_90", help="architectures, such as sm_90,sm_121, or all (sm_90)")
    parser.add_argument("--seq-len", type=whole_number, default=4096, metavar="N", help="(4096)")
    parser.add_argument("--seq-len-kv", type=whole_number, metavar="N", help="(as --seq-len)")
    parser.add_argument("--head-dim", type=whole_number, default=128, metavar="N", help="(128)")
    parser.add_argument("--dtype", default="float16", choices=("float16", "bfloat16"), help="(float16)")
    parser.add_argument("--causal", action=argparse.BooleanOptionalAction, default=True, help="(on)")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="with all: write survey.json and its heat table here"
    )
    parser.add_argument("--text", choices=("tile-ir", "ptx", "sass"), help="page through the code instead")
    return parser


def run(options: argparse.Namespace) -> int:
    from steps import STEPS, get_step
    from steps.core.step import Unsupported
    from tutorial_lib.compiler import CUTILE_ARCHITECTURES, CompilerError, compiler_version
    from tutorial_lib.problem import Problem

    try:
        steps = [s for s in STEPS if s.backend != "torch"] if options.step == "all" else [get_step(options.step)]
        other = get_step(options.against) if options.against else None
        problem = Problem(
            batch=4,
            heads=32,
            seq_len_q=options.seq_len,
            seq_len_kv=options.seq_len_kv or options.seq_len,
            head_dim=options.head_dim,
            dtype=options.dtype,
            causal=options.causal,
        )
    except ValueError as error:
        raise BadRequest(str(error)) from None
    architectures = CUTILE_ARCHITECTURES if options.arch == "all" else options.arch.split(",")
    for arch in architectures:
        if arch not in CUTILE_ARCHITECTURES:
            raise BadRequest(f"argument --arch: must be all or some of {', '.join(CUTILE_ARCHITECTURES)}, got {arch!r}")
    if options.step == "all" and (options.against or options.text):
        raise BadRequest("arguments --against and --text: go with a single step, not with all")
    if options.output and options.step != "all":
        raise BadRequest("argument --output: goes with the step all")
    if options.output:
        check_writable("--output", options.output)
    for asked in filter(None, (*steps, other)):
        if asked.backend in ("torch", "peer"):
            raise BadRequest(f"step {asked.label} has no kernel of its own to compile: it calls PyTorch")
        reasons = [asked.unsupported(problem, arch) for arch in architectures]
        if all(reasons):  # what one of them cannot do is told beside what the others can
            raise BadRequest(f"step {asked.label}: {reasons[0]}")
    try:
        compiler_version()
    except CompilerError as error:
        raise BadRequest(str(error)) from None
    console = make_console()
    if options.step == "all":
        return survey(console, steps, architectures, problem, options.output)
    [step] = steps
    console.print(f"{step.label}: {step.change} Compiled for {problem.describe()}.")
    failed = False
    for arch in architectures:
        try:
            compiled = step.compile(problem, arch)
            before = other.compile(problem, arch) if other else None
        except (CompilerError, Unsupported) as error:
            print(f"steps.inspect: {arch}: {error}", file=sys.stderr)
            failed = True
            continue
        if options.text:
            show_text(compiled, options.text)
            continue
        show(console, step, compiled, other, before, problem)
    return 2 if failed else 0


def survey(console, steps: Sequence, architectures: Sequence[str], problem, output: Path | None) -> int:
    """The figures of every step for every architecture: shown, and with ``output`` recorded."""
    from datetime import UTC, datetime

    from rich.progress import track
    from rich.table import Table

    from steps.core.step import Unsupported
    from tutorial_lib import plots
    from tutorial_lib.compiler import CompilerError, compiler_version
    from tutorial_lib.files import write_whole
    from tutorial_lib.results import Survey

    found: dict[str, dict[str, dict | str]] = {step.label: {} for step in steps}
    pairs = [(step, arch) for step in steps for arch in architectures]
    failed = False
    for step, arch in track(pairs, description="compiling", console=console, transient=True):
        try:
            found[step.label][arch] = step.compile(problem, arch).as_dict()
        except Unsupported as error:
            found[step.label][arch] = str(error)
        except CompilerError as error:
            found[step.label][arch] = str(error)
            failed = True
    made_by = {c["compiler"] for made in found.values() for c in made.values() if isinstance(c, dict)}
    compilers = ", ".join(sorted(made_by)) or compiler_version()
    title = f"registers, spilled bytes, instructions: {problem.describe()}, {compilers}"
    table = Table("", *architectures, title=title, title_justify="left", show_lines=True)
    for label, made in found.items():
        cells = [made[arch] for arch in architectures]
        keys = ("registers", "spilled_bytes", "instructions")
        shown = ["\n".join(text(c[key]) for key in keys) if isinstance(c, dict) else "none" for c in cells]
        table.add_row(label, *shown)
    console.print(table)
    reasons = [(label, arch, c) for label, made in found.items() for arch, c in made.items() if isinstance(c, str)]
    unread = sorted(
        {
            arch
            for made in found.values()
            for arch, c in made.items()
            if isinstance(c, dict) and c["instructions"] is None
        }
    )
    if unread:
        console.print(f"Instructions: the disassembler in Triton's wheel does not know {', '.join(unread)}.")
    for label, arch, reason in reasons:
        print(f"steps.inspect: {label}, {arch}: {reason}", file=sys.stderr)
    if output:
        record = Survey(
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            compiler=compilers,
            problem=problem.as_dict(),
            architectures=list(architectures),
            steps=list(found),
            compiled=found,
        )
        write_whole(output / "survey.json", record.model_dump_json(by_alias=True, indent=1) + "\n")
        plots.save(plots.heat_table(record), output, "survey")
        console.print(f"Written: {output / 'survey.json'}")
    return 2 if failed else 0


def show_text(compiled, which: str) -> None:
    texts = {
        "tile-ir": compiled.tile_ir,
        "ptx": compiled.ptx or "There is no PTX: the compiler goes from Tile IR to machine code without it.",
        "sass": compiled.sass or f"The disassembler in Triton's wheel does not know {compiled.arch}.",
    }
    pydoc.pager(texts[which])


def show(console, step, compiled, other, before, problem) -> None:
    """One architecture: figures, instructions by kind, the limit, the comparison and the remarks."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    columns = [(other.label, before)] if other else []
    columns.append((step.label, compiled))
    console.rule(f"{compiled.arch}, {compiled.compiler}")
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("")
    for label, _ in columns:
        table.add_column(label, justify="right")
    if other:
        table.add_column("change", justify="right")
    for name, figures in figure_rows([c for _, c in columns]):
        cells = [text(value) for value in figures]
        if other:
            cells.append(difference(*figures))
        if any(cell not in ("0", "–", "") for cell in cells[: len(columns)]):
            table.add_row(name, *cells)
    console.print(table)
    if not compiled.sass:
        console.print(
            f"The disassembler in Triton's wheel does not know {compiled.arch}: its instructions are not shown."
        )
    elif other:
        console.print("The same code." if compiled.same_code(before) else "Different code.", style="bold")
    show_limit(console, compiled, problem)
    for remark in compiled.remarks:
        source = linecache.getline(str(Path(__file__).with_name(remark.file)), remark.line).strip()
        console.print(f"  {remark.file}:{remark.line}  {source}", soft_wrap=True, markup=False)
        console.print(f"      {remark.text}", soft_wrap=True, markup=False)


def figure_rows(compiled: Sequence) -> list[tuple[str, list]]:
    """(name, one value for each) of everything that is compared."""
    from tutorial_lib.sass import ALL_KINDS

    def each(name, get):
        return name, [get(c) for c in compiled]

    rows = [
        each("registers a thread", lambda c: c.registers),
        each("threads a block", lambda c: c.threads),
        each("shared memory, bytes", lambda c: c.shared_bytes),
        each("stack and spills, bytes", lambda c: c.spilled_bytes),
        each("blocks an SM", lambda c: c.occupancy and c.occupancy[0]),
        each("occupancy, % of the warps an SM holds", lambda c: c.occupancy_percent),
        each("limited by", lambda c: c.occupancy and c.occupancy[1]),
        each("instructions, whole kernel", lambda c: c.instructions),
    ]
    rows += [each(f"  {kind}", lambda c, kind=kind: c.kinds and c.kinds[kind]) for kind in ALL_KINDS]
    rows.append(each("instructions a K/V tile, hot loop", lambda c: c.hot_loop_instructions))
    rows += [each(f"  {kind} ", lambda c, kind=kind: c.hot_loop and c.hot_loop[kind]) for kind in ALL_KINDS]
    return rows


def text(value) -> str:
    return "–" if value is None else f"{value:g}" if isinstance(value, (int, float)) else str(value)


def difference(before, now) -> str:
    """What became of a figure: nothing, appeared, vanished, or by how much it changed."""
    if before == now or not isinstance(before, (int, float)) or not isinstance(now, (int, float)):
        return ""
    if not before:
        return "appeared"
    return "vanished" if not now else f"{100 * (now / before - 1):+z.0f} %"


def show_limit(console, compiled, problem) -> None:
    from tutorial_lib.architectures import REFERENCE_GPUS
    from tutorial_lib.limits import floor, limit

    gpu = REFERENCE_GPUS.get(compiled.arch)
    if gpu is None:
        console.print(f"Limit: no source states the rates of {compiled.arch}.")
        return
    least, own = floor(problem, gpu), limit(problem, compiled.as_dict(), gpu)
    console.print(f"Floor of the problem on {gpu.name}: {times(least.units)}.")
    if own:
        console.print(f"This kernel: {times(own.units)}; {1000 * own.seconds:.3g} ms at least. {own.advice}.")


def times(units: dict[str, float]) -> str:
    return ", ".join(f"{unit} {1000 * seconds:.3g} ms" for unit, seconds in units.items())


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        return run(make_parser().parse_args(arguments))
    except BadRequest as error:
        print(f"steps.inspect: {error}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, BrokenPipeError):
        return 130


if __name__ == "__main__":
    sys.exit(main())
