"""A step as a program of its own: ``python -m steps.export epilogue_overlap --head-dim 64 --output fmha.py``.

Writes one file that needs PyTorch, and Triton or cuTile, and nothing of this project: the kernel, the code that
launches it, and, where the file is started, a check and a benchmark. ``--all`` writes those that ``steps/kernels/``
holds. Needs no GPU. Exit status: 0 done; 2 the request makes no sense.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tutorial_lib.command import BadRequest, as_command, check_file, check_one_of, parser_of, whole_number
from tutorial_lib.problem import DTYPES, FP8


def make_parser() -> argparse.ArgumentParser:
    parser = parser_of("steps.export", __doc__)
    parser.add_argument("step", nargs="?", help="number or name of a step")
    parser.add_argument("--all", action="store_true", help="write the chosen ones to steps/kernels/")
    parser.add_argument("--head-dim", type=whole_number, metavar="N", help="(as the step's own problem, as all below)")
    parser.add_argument("--seq-len", type=whole_number, metavar="N", help="query length")
    parser.add_argument("--seq-len-kv", type=whole_number, metavar="N", help="key and value length (as --seq-len)")
    parser.add_argument("--dtype", choices=(*DTYPES, FP8))
    parser.add_argument("--causal", action=argparse.BooleanOptionalAction, help="causal mask")
    parser.add_argument("--window", type=whole_number, metavar="N", help="sliding window")
    parser.add_argument("--lse", action="store_const", const=True, help="return each query's log-sum-exp, too")
    parser.add_argument("--arch", help="architecture (the step's own, such as sm_90)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the program here")
    return parser


def run(options: argparse.Namespace) -> int:
    from dataclasses import replace

    from steps import get_step
    from steps.core.ladder import program_file
    from steps.exporting.standalone import chosen, standalone
    from tutorial_lib.compiler import AMD_ARCHITECTURES, CUTILE_ARCHITECTURES
    from tutorial_lib.files import write_whole

    others = {name: value for name, value in vars(options).items() if name not in ("all", "step") and value is not None}
    if options.all and (options.step or others):
        raise BadRequest("argument --all: takes no step and no other argument")
    if not (options.all or options.step):
        raise BadRequest("name a step, or ask for --all")
    if options.all:
        for step in chosen():
            path = program_file(step)
            write_whole(path, standalone(step, step.default_problem))
            print(path)
        return 0
    check_one_of("--arch", options.arch, (*CUTILE_ARCHITECTURES, *AMD_ARCHITECTURES))
    try:
        step = get_step(options.step)
        asked = {"head_dim": options.head_dim, "dtype": options.dtype, "causal": options.causal}
        asked |= {"window": options.window, "seq_len_q": options.seq_len}
        asked["seq_len_kv"] = options.seq_len_kv or options.seq_len
        problem = replace(step.default_problem, **{name: value for name, value in asked.items() if value is not None})
        text = standalone(step, problem, options.arch, bool(options.lse))
    except ValueError as error:
        raise BadRequest(str(error)) from None
    if not options.output:
        print(text, end="")
        return 0
    check_file("--output", options.output)
    write_whole(options.output, text)
    print(options.output)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    return as_command("steps.export", lambda: run(make_parser().parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
