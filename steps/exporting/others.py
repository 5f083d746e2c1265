"""What a program would have otherwise for another head_dim: constants and functions.

It is found out, not written down: the program for the other head_dim is made as well, and compared.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable
from dataclasses import replace

from steps.core.step import Step, Unsupported
from steps.writing.trees import LINE_LENGTH
from tutorial_lib.problem import Problem

CHECKS = ("exact", "main", "hidden", "pytorch")  # functions that launch nothing


def for_another_head_dim(step: Step, problem: Problem, text: str, make: Callable[[Problem], str]) -> str:
    """What ``--head-dim`` changes, for the header; "" where there is no other program.

    text: of the program. make: gives that for another problem, and may raise Unsupported.
    """
    head_dim = 128 if problem.head_dim == 64 else 64
    try:
        other = _parts(make(replace(problem, head_dim=head_dim)))
    except (Unsupported, ValueError):  # no such program, or no such problem
        return ""
    told = f"With --head-dim {head_dim} it writes: {_compared(_parts(text), other)}."
    return textwrap.fill(told, LINE_LENGTH)


def _parts(text: str) -> tuple[dict[str, ast.expr], dict[str, str]]:
    """(constants, functions) of a program, in words that do not depend on how it is laid out."""
    constants, functions = {}, {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name not in CHECKS:
            if ast.get_docstring(node) and len(node.body) > 1:
                del node.body[0]
            functions[node.name] = ast.unparse(node)
        elif isinstance(node, ast.Assign):
            constants |= _constants(node)
    return constants, functions


def _constants(node: ast.Assign) -> dict[str, ast.expr]:
    """What an assignment defines: ``A = B = gl.constexpr(...)``, or ``A, B = map(gl.constexpr, (1, 2))``."""
    value = node.value
    if isinstance(node.targets[0], ast.Tuple):
        values = value.args[-1].elts if isinstance(value, ast.Call) else value.elts
        return {target.id: its for target, its in zip(node.targets[0].elts, values, strict=True)}
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "gl.constexpr":
        value = value.args[0]
    return {target.id: value for target in node.targets}


def _compared(own: tuple[dict, dict], other: tuple[dict, dict]) -> str:
    """What another program has otherwise."""
    (constants, functions), (its_constants, its_functions) = own, other
    new = {name: value for name, value in its_constants.items() if not _same(value, constants.get(name))}
    said = {name: value for name, value in new.items() if not isinstance(getattr(value, "value", None), str)}
    told = [f"{name} {ast.unparse(its)}" for name, its in said.items() if not isinstance(its, ast.Call | ast.Name)]
    layouts = [name for name, value in new.items() if isinstance(value, ast.Call) and name.isupper()]
    told += [f"other layouts {', '.join(layouts)}"] if layouts else []
    changed = [name for name in functions | its_functions if functions.get(name) != its_functions.get(name)]
    told += [f"other lines in {', '.join(changed)}"] if changed else []
    return "; ".join(told) or "the same kernel and launch"


def _same(value: ast.expr, before: ast.expr | None) -> bool:
    return before is not None and ast.unparse(value) == ast.unparse(before)
