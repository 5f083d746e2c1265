"""A step's whole kernel to read: ``python -m steps.show epilogue_overlap --against lpt_scheduler --head-dim 256``.

Prints the kernel that the step runs on this problem as one plain piece of Python, without any branch that it does not
take, and marks what differs from the step that it stands on, or from ``--against``. ``--where`` tells file and line of
the step, its launch rule, constants, launch and kernel, what its holes are for and what fills them, and where the
functions stand that the kernel calls. ``best`` is the step that is recorded as the fastest for the problem: ``python -m
steps.show best --where`` tells which code runs for the headline's. Piped, or with ``--output FILE``, it is the Python
alone: ``python -m steps.inspect FILE --against epilogue_overlap`` compiles such a file, edited or not. Needs no GPU.
Exit status: 0 done; 2 the request makes no sense.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tutorial_lib.command import BadRequest, as_command, check_file, check_one_of, make_console, parser_of, whole_number

BEST = "best"  # in place of a step


def make_parser() -> argparse.ArgumentParser:
    parser = parser_of("steps.show", __doc__)
    parser.add_argument("step", help="number or name of a step, or best: the fastest recorded")
    parser.add_argument("--against", metavar="STEP", help="mark what differs from this step (the one it stands on)")
    own = "(as the step's own problem, as all below; of best the headline's)"
    parser.add_argument("--head-dim", type=whole_number, metavar="N", help=own)
    parser.add_argument("--seq-len", type=whole_number, metavar="N", help="query length")
    parser.add_argument("--seq-len-kv", type=whole_number, metavar="N", help="key and value length (as --seq-len)")
    parser.add_argument("--dtype", choices=("float16", "bfloat16"))
    parser.add_argument("--causal", action=argparse.BooleanOptionalAction, help="causal mask")
    parser.add_argument("--window", type=whole_number, metavar="N", help="sliding window")
    arch = "architecture (the step's own, such as sm_90; of best this machine's, or sm_90)"
    parser.add_argument("--arch", help=arch)
    parser.add_argument("--where", action="store_true", help="list where each part and each function stands")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the kernel's module here")
    return parser


def run(options: argparse.Namespace) -> int:
    from dataclasses import replace

    from steps import Unsupported, best, get_step
    from steps.core.problems import HEADLINE
    from steps.writing.written import meanings, parts_of, places, shown, without_title
    from tutorial_lib.compiler import AMD_ARCHITECTURES, CUTILE_ARCHITECTURES
    from tutorial_lib.files import write_whole

    check_one_of("--arch", options.arch, (*CUTILE_ARCHITECTURES, *AMD_ARCHITECTURES, "cpu"))
    asked = {"head_dim": options.head_dim, "dtype": options.dtype, "causal": options.causal}
    asked["window"] = options.window
    if options.seq_len:
        asked |= {"seq_len_q": options.seq_len, "seq_len_kv": options.seq_len}
    asked |= {"seq_len_kv": options.seq_len_kv} if options.seq_len_kv else {}
    asked = {name: value for name, value in asked.items() if value is not None}
    arch, why = options.arch, None
    try:
        if options.step == BEST:
            arch, problem = arch or here(), replace(HEADLINE, **asked)
            choice = best(problem, arch)
            step, why = choice.step, choice.why
        else:
            step = get_step(options.step)
            problem = replace(step.default_problem, **asked)
        other = get_step(options.against) if options.against else step.previous
        text = step.source() if step.several else shown(step, problem, arch)
    except ValueError as error:
        raise BadRequest(str(error)) from None
    if options.where:
        if options.output or options.against:
            raise BadRequest("argument --where: takes neither --output nor --against")
        if step.several:
            raise BadRequest(f"argument --where: step {step.label} computes over several GPUs; its file is its source")
        print(f"Step {step.label}, for {problem.describe()}:")
        if why:
            print(why)
        for what, where in parts_of(step, problem, arch).items():
            print(f"  {what:<26} {where}")
        print("Its holes, which evolve fills otherwise:")
        told = meanings(step)
        for name, filling in step.filled(problem).items():
            print(f"  {name:<26} {filling}", *([f"      {told[name]}"] if name in told else []), sep="\n")
        print(f"{step.shown}, callers first. A name behind = is the one that the code calls the function by.")
        for name, where, said in places(step, problem, arch):
            print(f"{where:<48}{name}", f"{'':<6}{said}" if said else "", sep="\n" if said else "")
        return 0
    if options.output:
        check_file("--output", options.output)
        write_whole(options.output, text)
        print(options.output)
        return 0
    before = None
    try:
        if step.several:
            if options.against and not other.several:
                raise BadRequest(
                    f"argument --against: step {other.label} does not compute over several GPUs, as {step.label} does"
                )
            before = other.source() if other and other.several else None
        else:
            before = shown(other, problem, arch) if other else None
    except Unsupported as error:
        if options.against:
            raise BadRequest(str(error)) from None
    if sys.stdout.isatty() or options.against:
        plain = str if step.several else without_title
        show(plain(text), before and plain(before), other)
    else:
        print(text, end="")
    return 0


def here() -> str:
    """The architecture of this machine's GPU; without one, what is compiled for."""
    import torch

    from steps.core.step import DEFAULT_ARCH, target_of

    return target_of(torch.device("cuda")) if torch.cuda.is_available() else DEFAULT_ARCH


def show(text: str, before: str | None, other) -> None:
    """The text highlighted; in front of a line + where it is new, and - in front of what went."""
    from rich.syntax import Syntax

    from tutorial_lib.display import marked_lines

    console = make_console()
    coloured = Syntax("", "python", background_color="default").highlight

    def markup(program: str) -> str:
        return "\n".join(line.markup for line in coloured(program).split("\n", allow_blank=True))

    styles = {" ": "", "+": "on #12361b", "-": "on #3d1414"}
    if before is None:
        console.print(markup(text), soft_wrap=True)
        return
    for mark, line in marked_lines(before, text, markup):
        console.print(f"{mark} {line}", style=styles[mark], soft_wrap=True)
    console.print(f"+ new, - gone, against step {other.label}.", style="bold")


def main(arguments: Sequence[str] | None = None) -> int:
    return as_command("steps.show", lambda: run(make_parser().parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
