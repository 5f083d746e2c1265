"""The compiler's evidence: ``python -m steps.inspect exp2 --against mma --arch sm_90,sm_121`` shows what a step became.

Needs no GPU. Shows registers, shared memory, spills and occupancy; instructions by what they do, for the whole kernel
and for one iteration of the hot loop; what bounds it; the compiler's remarks; with ``--text``, Tile IR or SASS to page
through. With ``all`` for the step, the figures of every step for each architecture, which ``--output`` records.
Exit status: 0 done; 2 the request makes no sense, or the compiler is missing, too old or failed.
"""

from __future__ import annotations

import argparse
import hashlib
import linecache
import pydoc
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from tutorial_lib.command import BadRequest, as_command, check_writable, make_console, parser_of, whole_number
from tutorial_lib.compiled import Compiled, from_fields
from tutorial_lib.compiler import AMD_ARCHITECTURES, CUTILE_ARCHITECTURES, CompilerError, keep, read_kept
from tutorial_lib.problem import SHORT_DTYPES, Problem

if TYPE_CHECKING:
    from steps.core.step import Step

DEFAULT = "sm_90"  # of all steps together
WARP, WAVE = 32, 64  # threads
ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("cuda-tile", "nvidia-cuda-tileiras", "triton")  # whose versions decide what a kernel becomes


def make_parser() -> argparse.ArgumentParser:
    parser = parser_of("steps.inspect", __doc__)
    parser.add_argument("step", help="number or name of a step, a file that steps.show wrote, or all")
    parser.add_argument("--against", metavar="STEP", help="compare with this step")
    archs = "such as sm_90,sm_121 or gfx950; all: NVIDIA's or AMD's, as the step is, or both (the step's own)"
    parser.add_argument("--arch", metavar="ARCHS", help=archs)
    own = "(4096; a file, and a step that does not take that: its own)"
    parser.add_argument("--seq-len", type=whole_number, default=4096, metavar="N", help=own)
    parser.add_argument("--seq-len-kv", type=whole_number, metavar="N", help="(as --seq-len)")
    parser.add_argument("--head-dim", type=whole_number, default=128, metavar="N", help="(128)")
    parser.add_argument("--dtype", default="float16", choices=tuple(SHORT_DTYPES), help="(float16)")
    parser.add_argument("--causal", action=argparse.BooleanOptionalAction, default=True, help="(on)")
    pages = "of a step that reads pages: its own problem, with pages of so many keys"
    parser.add_argument("--page-size", type=whole_number, metavar="N", help=pages)
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="with all: write survey.json and its heat table here"
    )
    parser.add_argument("--text", choices=("tile-ir", "ptx", "sass"), help="page through the code instead")
    return parser


@dataclass(frozen=True)
class Examined:
    """What the compiler made of a step for each architecture, and of the step that it is compared with.

    compiled: architecture -> (the step's, the other's or None), or why there is nothing. launches: architecture -> how
    the step is launched there.
    """

    label: str
    change: str
    other: str | None
    problem: Problem
    direction: str
    compiled: dict[str, tuple[Compiled, Compiled | None] | str]
    launches: dict[str, str]


def run(options: argparse.Namespace) -> int:
    known = (*CUTILE_ARCHITECTURES, *AMD_ARCHITECTURES)
    architectures = options.arch.split(",") if options.arch not in (None, "all") else []  # none: the step's own
    for arch in architectures:
        if arch not in known:
            raise BadRequest(f"argument --arch: must be all or some of {', '.join(known)}, got {arch!r}")
    if options.step == "all" and (options.against or options.text):
        raise BadRequest("arguments --against and --text: go with a single step, not with all")
    if options.against and options.text:
        raise BadRequest("argument --against: goes without --text, which shows the code of one step")
    if options.output and options.step != "all":
        raise BadRequest("argument --output: goes with the step all")
    if options.output:
        check_writable("--output", options.output)
    console = make_console()
    if options.step == "all":
        architectures = architectures or (known if options.arch else [DEFAULT])
        steps, _, problem = asked(options, architectures)
        return survey(console, steps, architectures, problem, options.output)
    examined = remembered(options) or examine(options, architectures)
    console.print(f"{examined.label}: {examined.change} Compiled for {examined.problem.describe()}.")
    failed = False
    for arch, found in examined.compiled.items():
        if isinstance(found, str):
            print(f"steps.inspect: {arch}: {found}", file=sys.stderr)
            failed = True
        elif options.text:
            show_text(found[0], options.text)
        else:
            show(console, examined, *found)
            console.print(examined.launches[arch], soft_wrap=True, markup=False)
    return 2 if failed else 0


def asked(options: argparse.Namespace, architectures: Sequence[str]) -> tuple[list, Step | None, Problem]:
    """(the steps, the one to compare with, the problem); raises BadRequest for what makes no sense."""
    from steps.core.ladder import kernels_of
    from tutorial_lib.compiler import compiler_version

    try:
        steps = surveyed(kernels_of("forward"), architectures) if options.step == "all" else [find(options.step)]
        other = find(options.against) if options.against else None
        written = [step.written_for for step in steps if hasattr(step, "written_for")]
        problem = written[0] if written else asked_problem(options, None if options.step == "all" else steps[0])
        if options.step == "all":  # of a part for other architectures nothing is to be told
            able = [step for step in steps if any(step.unsupported(problem, a) is None for a in architectures)]
            steps = able or steps
    except ValueError as error:
        raise BadRequest(str(error)) from None
    for step in filter(None, (*steps, other)):
        if step.backend in ("torch", "peer"):
            raise BadRequest(f"step {step.label} has no kernel of its own to compile: it calls PyTorch")
        reasons = [step.unsupported(problem, arch) for arch in architectures]
        if all(reasons):  # what one of them cannot do is told beside what the others can
            raise BadRequest(f"step {step.label}: {reasons[0]}")
    try:
        compiler_version()
    except CompilerError as error:
        raise BadRequest(str(error)) from None
    return steps, other, problem


def examine(options: argparse.Namespace, architectures: Sequence[str]) -> Examined:
    """Compile, or find on disk; what nothing went wrong with is kept for ``remembered``."""
    from steps import Unsupported

    try:
        own = find(options.step).made_for
        of_maker = AMD_ARCHITECTURES if own in AMD_ARCHITECTURES else CUTILE_ARCHITECTURES
        architectures = architectures or (of_maker if options.arch else [own])
    except ValueError as error:
        raise BadRequest(str(error)) from None
    [step], other, problem = asked(options, architectures)
    compiled, launches = {}, {}
    for arch in architectures:
        try:
            compiled[arch] = step.compile(problem, arch), other.compile(problem, arch) if other else None
            launches[arch] = launch_of(step, problem, arch, compiled[arch][0])
            if not hasattr(step, "base"):  # a file is its own source
                launches[arch] += f"\n{code_of(step, problem, arch)}"
        except (CompilerError, Unsupported) as error:
            compiled[arch] = str(error)
    examined = Examined(step.label, step.change, other and other.label, problem, step.direction, compiled, launches)
    if not any(isinstance(found, str) for found in compiled.values()):
        found = {arch: [c and c.fields() for c in pair] for arch, pair in compiled.items()}
        keep(identity(options), vars(examined) | {"problem": asdict(problem), "compiled": found})
    return examined


def launch_of(step, problem: Problem, arch: str, compiled: Compiled) -> str:
    """A line: launch rule, tile, warps, stages and blocks; and which warps get how many registers by setmaxnreg."""
    _, constants = getattr(step, "base", step).entry(problem, arch)
    variant, warp = constants.get("variant"), WAVE if arch in AMD_ARCHITECTURES else WARP
    named = step.choices(problem, arch)
    rules = [name for name in named if not name.startswith("Own_")]  # so begins that of a tile which no rule gives
    told = [f"rule {', '.join(rules)}"] if rules else []
    if tile := getattr(variant, "tile", None):
        size = f"{tile.query} queries and {tile.key} keys"
        told.append(f"tile of {size}" if rules else f"tile of its own ({size})")
    told.append(f"{compiled.threads // warp} warps")
    if stages := getattr(variant, "stages", None):
        told.append(f"{stages} stages")
    told += [f"{compiled.blocks:,} blocks"] if compiled.blocks else []
    line = f"Launch: {', '.join(told)}."
    budgets = getattr(variant, "budgets", ())
    if budgets and "setmaxnreg" in (compiled.ptx or ""):
        first, given = variant.warps, []
        for warps, registers in zip(variant.workers, budgets):
            given.append(f"{registers} to {f'warps {first} to {first + warps - 1}' if warps > 1 else f'warp {first}'}")
            first += warps
        line += " Registers are those of a thread at launch: setmaxnreg then gives "
        line += f"{', '.join(given)}, and what is left to warps 0 to {variant.warps - 1}."
    return line


def code_of(step, problem: Problem, arch: str) -> str:
    """A line: in which file, and line, what a launch runs stands."""
    from steps.writing.written import parts_of

    parts = ", ".join(f"{what} {where}" for what, where in parts_of(step, problem, arch).items())
    return f"Code: {parts}. All that the kernel calls: python -m steps.show {step.name} --where"


def remembered(options: argparse.Namespace) -> Examined | None:
    """The answer to the same question about the same source, found without loading a compiler."""
    try:
        fields = read_kept(identity(options))
        pairs = fields["compiled"].items()
        compiled = {arch: tuple(found and from_fields(found) for found in pair) for arch, pair in pairs}
        return Examined(**{**fields, "problem": Problem(**fields["problem"]), "compiled": compiled})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def identity(options: argparse.Namespace) -> bytes:
    """What an answer depends on: the question, this project's source and the compilers' versions."""
    question = {name: value for name, value in vars(options).items() if name not in ("text", "output")}
    files = [*ROOT.glob("steps/**/*.py"), *ROOT.glob("steps/core/*.toml"), *ROOT.glob("tutorial_lib/*.py")]
    files += [Path(name) for name in (options.step, options.against) if name and name.endswith(".py")]
    sources = [(str(path), path.read_bytes()) for path in sorted(files) if path.exists()]
    versions = [version(package) for package in PACKAGES]
    return repr((question, versions)).encode() + hashlib.sha256(repr(sources).encode()).digest()


OF_THE_PROBLEM = ("seq_len", "seq_len_kv", "head_dim", "dtype", "causal")


def asked_problem(options: argparse.Namespace, step: Step | None = None):
    """The problem that the options describe; raises ValueError.

    Where they describe none, that of a step which is for other problems is its own; so is what pages are asked of.
    """
    from dataclasses import replace

    from steps.core.problems import standard

    given = [name for name in OF_THE_PROBLEM if getattr(options, name) != make_parser().get_default(name)]
    if options.page_size:
        if step is None or "page_size" not in step.takes or given:
            raise ValueError("--page-size goes with a step that reads pages, such as paged, and no other problem")
        return replace(step.default_problem, page_size=options.page_size)
    problem = standard(options.seq_len, options.head_dim, options.causal)
    problem = replace(
        problem, heads=32, kv_heads=32, dtype=options.dtype, seq_len_kv=options.seq_len_kv or options.seq_len
    )
    for_others = step is not None and step.default_problem and step.unsupported(problem, step.made_for)
    return step.default_problem if for_others and not given else problem


def surveyed(steps: Sequence[Step], architectures: Sequence[str]) -> list[Step]:
    """The steps with a kernel of their own, but for those made for AMD where only NVIDIA's are asked for, and back."""
    wanted = {arch.startswith("gfx") for arch in architectures}
    return [step for step in steps if step.backend != "torch" and step.made_for.startswith("gfx") in wanted]


def find(name: str):
    """A step by its number or name, or the kernel in a file that ``steps.show`` wrote; raises ValueError."""
    from steps import get_step

    if not name.endswith(".py"):
        return get_step(name)
    from steps.writing.written import read_step

    return read_step(Path(name))


def survey(console, steps: Sequence, architectures: Sequence[str], problem, output: Path | None) -> int:
    """The figures of every step for every architecture: shown, and with ``output`` recorded."""
    from rich.progress import track
    from rich.table import Table

    from steps.core.recorded import labelled
    from tutorial_lib import plots, tables
    from tutorial_lib.compiler import CompilerError, compiler_version
    from tutorial_lib.files import write_whole
    from tutorial_lib.records import Survey
    from tutorial_lib.results import as_json, now

    found: dict[str, dict[str, dict | str]] = {step.name: {} for step in steps}
    pairs = [(step, arch) for step in steps for arch in architectures]
    failed = False
    for step, arch in track(pairs, description="compiling", console=console, transient=True):
        try:
            refused = step.unsupported(problem, arch)
            found[step.name][arch] = refused or step.compile(problem, arch).as_dict()
        except CompilerError as error:
            found[step.name][arch] = str(error)
            failed = True
    made_by = {c["compiler"] for made in found.values() for c in made.values() if isinstance(c, dict)}
    parts = dict.fromkeys(part for made in sorted(made_by) for part in made.split(", "))
    compilers = ", ".join(parts) or compiler_version()
    by_name = Survey(
        date=now(),
        compiler=compilers,
        problem=problem.as_dict(),
        architectures=list(architectures),
        steps=list(found),
        compiled=found,
    )
    record = labelled(by_name)
    for of in tables.readings(record):
        title = f"{', '.join(of.figures)}: {problem.describe()}, {compilers}"
        table = Table("", *of.architectures, title=title, title_justify="left", show_lines=True)
        for label in of.steps:
            each = [of.values(record, label, arch) for arch in of.architectures]
            table.add_row(label, *("\n".join(map(text, values)) if any(values) else "none" for values in each))
        console.print(table)
    found = record.compiled
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
        write_whole(output / "survey.json", as_json(by_name))
        plots.save(plots.heat_table(record), output, "survey")
        console.print(f"Written: {output / 'survey.json'}")
    return 2 if failed else 0


def show_text(compiled, which: str) -> None:
    unread = f"The disassembler in Triton's wheel does not know {compiled.arch}."
    texts = {
        "tile-ir": compiled.tile_ir,
        "ptx": compiled.ptx or "There is no PTX: the compiler goes from Tile IR to machine code without it.",
        "sass": compiled.assembly or compiled.sass or unread,
    }
    pydoc.pager(texts[which])


def show(console, examined: Examined, compiled: Compiled, before: Compiled | None) -> None:
    """One architecture: figures, instructions by kind, the limit, the comparison and the remarks."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    other = examined.other
    columns = [(other, before)] if other else []
    columns.append((examined.label, compiled))
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
    if compiled.instructions is None:
        console.print(
            f"The disassembler in Triton's wheel does not know {compiled.arch}: its instructions are not shown."
        )
    elif other:
        same = compiled.same_code(before)
        console.print("The same code." if same else "Different code.", style="bold")
        if not same:
            console.print(compiled.differs_from(before), soft_wrap=True, markup=False)
    show_limit(console, compiled, examined.problem, examined.direction)
    for remark in compiled.remarks:
        source = linecache.getline(str(Path(__file__).parent / remark.file), remark.line).strip()
        console.print(f"  {remark.file}:{remark.line}  {source}", soft_wrap=True, markup=False)
        console.print(f"      {remark.text}", soft_wrap=True, markup=False)


NAMED = ("tensor core", "bulk copy", "tensor memory")  # kinds whose instructions are told one by one on Blackwell
OF_A_CLUSTER = ("UCGABAR", "UTCBAR")  # of what synchronises, its barrier and what products tell, in clusters
OF_AMD = {
    "  of the registers, AGPRs": "agprs",
    "scalar registers a wave": "sgprs",
    "vector registers spilled": "spilled_vgprs",
    "scalar registers spilled": "spilled_sgprs",
    "waves per SIMD, as registers allow": "occupancy",
}


def figure_rows(compiled: Sequence) -> list[tuple[str, list]]:
    """(name, one value for each) of everything that is compared."""
    every_kind = list(dict.fromkeys(kind for c in compiled for kind in c.all_kinds))

    def each(name, get):
        return name, [get(c) for c in compiled]

    rows = [
        each("registers per thread", lambda c: c.registers),
        each("threads per block", lambda c: c.threads),
        *([each("blocks per cluster", lambda c: c.ctas)] if any(c.ctas > 1 for c in compiled) else []),
        each("shared memory, bytes", lambda c: c.shared_bytes),
        each("tensor memory, columns", lambda c: c.tensor_columns),
        each("stack and spills, bytes", lambda c: c.spilled_bytes),
        each("blocks per SM", lambda c: c.occupancy and c.occupancy[0]),
        each("occupancy, % of the warps an SM holds", lambda c: c.occupancy_percent),
        each("limited by", lambda c: c.occupancy and c.occupancy[1]),
        *(each(name, lambda c, field=field: c.amd and getattr(c.amd, field)) for name, field in OF_AMD.items()),
        each("instructions, whole kernel", lambda c: c.instructions),
    ]
    for kind in every_kind:
        rows.append(each(f"  {kind}", lambda c, kind=kind: c.kinds and c.kinds.get(kind)))
        told = kind in NAMED and any(c.tensor_columns for c in compiled)
        of_a_cluster = kind == "synchronisation" and any(c.ctas > 1 for c in compiled)
        if told or of_a_cluster:
            for opcode in sorted({opcode for c in compiled for opcode in c.opcodes(kind)}):
                if of_a_cluster and not opcode.startswith(OF_A_CLUSTER):
                    continue
                rows.append(each(f"    {opcode}", lambda c, kind=kind, name=opcode: c.opcodes(kind)[name]))
    rows.append(each("instructions per K/V tile, hot loop", lambda c: c.hot_loop_instructions))
    rows += [each(f"  {kind} ", lambda c, kind=kind: c.hot_loop and c.hot_loop.get(kind)) for kind in every_kind]
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


def show_limit(console, compiled, problem, direction: str) -> None:
    from tutorial_lib.architectures import AMD_GPUS, REFERENCE_GPUS
    from tutorial_lib.limits import floor, limit
    from tutorial_lib.passes import PASSES

    gpu = (REFERENCE_GPUS | AMD_GPUS).get(compiled.arch)
    if gpu is None:
        console.print(f"Limit: no source states the rates of {compiled.arch}.")
        return
    kind = PASSES[direction]
    least, own = floor(problem, gpu, kind), limit(problem, compiled.as_dict(), gpu, kind)
    console.print(f"Floor of the problem on {gpu.name}: {times(least.units)}.")
    if "exponentials" not in least.units:
        console.print("Exponentials are not in it: no source states their rate.")
    if own:
        console.print(f"This kernel: {times(own.units)}; {1000 * own.seconds:.3g} ms at least. {own.advice}.")


def times(units: dict[str, float]) -> str:
    return ", ".join(f"{unit} {1000 * seconds:.3g} ms" for unit, seconds in units.items())


def main(arguments: Sequence[str] | None = None) -> int:
    return as_command("steps.inspect", lambda: run(make_parser().parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
