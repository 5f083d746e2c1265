"""What a program would have otherwise for other problems: the constants, the boxes of TMA and the statements.

It is found out, not written down: the step's kernel for a problem with another head_dim, dtype or mask, or with lengths
that do not fill tiles, is read as the program's own is, and the two are compared.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import replace

from steps.core.step import Step, Unsupported
from steps.writing.program import Program
from steps.writing.trees import LINE_LENGTH, code
from steps.writing.values import is_layout
from tutorial_lib.problem import Problem

RAGGED = 4001  # keys, which fill no tile


def for_other_problems(step: Step, problem: Problem, arch: str, launch_of: Callable, kept: set[str]) -> str:
    """A paragraph of the header: which command writes the other programs, and what would be otherwise in each.

    launch_of: what tells of a launch (``launches.launch_of``). kept: names of constants and
    functions that the program has.
    """
    head_dim = 128 if problem.head_dim == 64 else 64
    dtype = "bfloat16" if problem.dtype == "float16" else "float16"
    others = {
        f"--head-dim {head_dim}": {"head_dim": head_dim},
        f"--dtype {dtype}": {"dtype": dtype},
        "--no-causal" if problem.causal else "--causal": {"causal": not problem.causal},
        f"--seq-len-kv {RAGGED}": {"seq_len_kv": RAGGED},
    }
    own = _made(step, problem, arch, launch_of)
    lines = []
    for option, changes in others.items():
        try:
            other = replace(problem, **changes)
            if step.unsupported(other, arch):
                continue
            told = _compared(own, _made(step, other, arch, launch_of), kept)
            told += ", and other checks" * ("dtype" in changes)
        except (Unsupported, ValueError):  # no such program, or no such problem
            continue
        lines.append(textwrap.fill(f"{option}: {told}", LINE_LENGTH, initial_indent="  ", subsequent_indent="    "))
    begin = f"For other problems `python -m steps.export {step.name}` writes other programs. This one would have, with"
    return "\n".join([textwrap.fill(begin, LINE_LENGTH), *lines]) if lines else ""


def _made(step: Step, problem: Problem, arch: str, launch_of: Callable) -> tuple[dict, dict, dict]:
    """(constants, boxes of TMA, functions) of the kernel that a step runs for a problem."""
    launch = launch_of(step.configured(problem, arch), problem, arch)
    program = Program(*launch.kernels["kernel"])
    program.fold()
    functions = {name: code(tree) for name, tree in program.spell().items()}
    return program.constants, launch.boxes, functions


def _compared(own: tuple[dict, dict, dict], other: tuple[dict, dict, dict], kept: set[str]) -> str:
    """What another kernel has otherwise, in words. kept: the names to tell of."""
    constants, boxes, functions = other
    changed = {name: value for name, value in constants.items() if name in kept and own[0].get(name) != value}
    layouts = [name for name, value in changed.items() if is_layout(value)]
    told = [f"{name} {value}" for name, value in changed.items() if name not in layouts]
    told += [f"other layouts {', '.join(layouts)}"] if layouts else []
    told += [f"boxes of {name} {list(box)}" for name, box in boxes.items() if own[1].get(name) != box]
    differ = {name for name in {*functions, *own[2]} if functions.get(name) != own[2].get(name)}
    if differ:
        named = sorted(differ & kept)
        where = f" in {', '.join(named)}{' and elsewhere' * bool(differ - kept)}" if named else ""
        told.append(f"other statements{where}")
    return "; ".join(told) or "the same kernel"
