"""What a program would have otherwise for other problems: constants and statements.

It is found out, not written down: the programs of a step for another head_dim, dtype or mask, and for lengths that do
not fill tiles, are made as well, and compared with its own.
"""

from __future__ import annotations

import ast
import textwrap
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from steps.core.step import Step, Unsupported
from steps.writing.trees import LINE_LENGTH
from tutorial_lib.problem import Problem

RAGGED = 4001  # keys, which fill no tile
QUOTED, WIDEST = 4, 100  # statements that are told in full, and characters of one
LAUNCHES = ("attention", "gradients", "paged")  # functions that launch kernels
CHECKS = ("check", "exact", "main", "hidden", "pytorch")  # functions that launch nothing
TOLD = (
    "With other options it writes other programs, which differ in checks and in this (quoted: statements that are new):"
)


def for_other_problems(step: Step, problem: Problem, text: str, make: Callable[[Problem], str]) -> str:
    """Lines of the header, behind the command that writes the program: what other options of it change.

    text: of the program. make: gives that for another problem, and may raise Unsupported.
    """
    head_dim = 128 if problem.head_dim == 64 else 64
    dtype = "bfloat16" if problem.dtype == "float16" else "float16"
    others = {
        f"--head-dim {head_dim}": {"head_dim": head_dim},
        f"--dtype {dtype}": {"dtype": dtype},
        "--no-causal" if problem.causal else "--causal": {"causal": not problem.causal},
        f"--seq-len-kv {RAGGED}": {"seq_len_kv": RAGGED},
    }
    own, lines = _parts(text), []
    for option, changes in others.items():
        try:
            other = _parts(make(replace(problem, **changes)))
        except (Unsupported, ValueError):  # no such program, or no such problem
            continue
        told = _compared(own, other)
        lines.append(textwrap.fill(f"{option}: {told}", LINE_LENGTH, initial_indent="  ", subsequent_indent="    "))
    return "\n".join([TOLD, *lines]) if lines else ""


def _parts(text: str) -> tuple[dict[str, ast.expr], dict[str, list[str]]]:
    """(constants, the statements of each function) of a program, in words that do not depend on how it is laid out."""
    constants, functions = {}, {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name not in CHECKS:
            if ast.get_docstring(node) and len(node.body) > 1:
                del node.body[0]
            lines = [line.strip() for part in node.body for line in ast.unparse(part).splitlines()]
            functions[node.name] = [line for line in lines if not line.startswith("expect(")]
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = node.value
            if isinstance(value, ast.Call) and ast.unparse(value.func) == "gl.constexpr":
                value = value.args[0]
            constants |= {target.id: value for target in node.targets}
    return constants, functions


def _compared(own: tuple[dict, dict], other: tuple[dict, dict]) -> str:
    """What another program has otherwise: statements are quoted where they are few; else those of the launch alone."""
    (constants, functions), (its_constants, its_functions) = own, other
    new = {name: value for name, value in its_constants.items() if not _same(value, constants.get(name))}
    told = [f"{name} {ast.unparse(value)}" for name, value in new.items() if not isinstance(value, ast.Call | ast.Name)]
    layouts = [name for name, value in new.items() if _is_layout(value) or _is_layout(constants.get(name))]
    changed = {}
    for name in [name for name in functions if name in its_functions]:
        before, now = Counter(functions[name]), Counter(its_functions[name])
        if before != now:
            new, gone = [*(now - before).elements()], [*(before - now).elements()]
            targets = {line.partition(" = ")[0] for line in new}
            changed[name] = (new, [line for line in gone if line.partition(" = ")[0] not in targets])
    apart = functions.keys() ^ its_functions.keys()
    whole = not changed and not apart and all(len(ast.unparse(new[name])) <= WIDEST for name in layouts)
    if layouts:  # in full, where that is all to be changed
        told += (
            [f"{name} {ast.unparse(new[name])}" for name in layouts]
            if whole
            else [f"other layouts {', '.join(layouts)}"]
        )
    several = sum(len(new) + len(gone) for new, gone in changed.values()) > QUOTED
    if names := [name for name in changed if several and name not in LAUNCHES]:
        told.append(f"other lines in {', '.join(names)}")
    for name, (new, gone) in changed.items():
        if name not in names:
            told.append(f"in {name} {_quoted(new)}{', ' * bool(new and gone)}{'not ' * bool(gone)}{_quoted(gone)}")
    if names := [name for name in its_functions if name not in functions]:
        told.append(f"also has {', '.join(names)}")
    if names := [name for name in functions if name not in its_functions]:
        told.append(f"has no {', '.join(names)}")
    return "; ".join(told) or "the same kernel and launch"


def _quoted(lines: list[str]) -> str:
    return " and ".join(f"`{textwrap.shorten(line, WIDEST, placeholder=' ...')}`" for line in dict.fromkeys(lines))


def _same(value: ast.expr, before: ast.expr | None) -> bool:
    return before is not None and ast.unparse(value) == ast.unparse(before)


def _is_layout(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func).endswith("Layout")
