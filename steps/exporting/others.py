"""What a program would have otherwise for another head_dim: constants and functions.

It is found out, not written down: the program for the other head_dim is made as well, and compared.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field, replace

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


@dataclass
class _Parts:
    """What a program is made of, in words that do not depend on how it is laid out. said: the docstrings."""

    constants: dict[str, ast.expr] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)


def _parts(text: str) -> _Parts:
    parts = _Parts()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name not in CHECKS:
            if said := ast.get_docstring(node):
                parts.said[node.name] = " ".join(said.split("\n\n")[0].split()).split(". ")[0].rstrip(".")
                del node.body[: len(node.body) > 1]
            parts.functions[node.name] = ast.unparse(node)
        elif isinstance(node, ast.Assign):
            parts.constants |= _constants(node)
    return parts


def _constants(node: ast.Assign) -> dict[str, ast.expr]:
    """What an assignment defines: ``A = B = gl.constexpr(...)``, or ``A, B = map(gl.constexpr, (1, 2))``."""
    value = node.value
    if isinstance(node.targets[0], ast.Tuple):
        values = value.args[-1].elts if isinstance(value, ast.Call) else value.elts
        return {target.id: its for target, its in zip(node.targets[0].elts, values, strict=True)}
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "gl.constexpr":
        value = value.args[0]
    return {target.id: value for target in node.targets}


def _compared(own: _Parts, other: _Parts) -> str:
    """What another program has otherwise, and which functions only one of the two has.

    Constants that only the other has are left out: nothing here tells what they are for.
    """
    new = {name: its for name, its in other.constants.items() if name in own.constants}
    new = {name: its for name, its in new.items() if ast.unparse(its) != ast.unparse(own.constants[name])}
    said = {name: its for name, its in new.items() if not isinstance(getattr(its, "value", None), str)}
    told = [f"{name} {ast.unparse(its)}" for name, its in said.items() if not isinstance(its, ast.Call | ast.Name)]
    layouts = [name for name, value in new.items() if isinstance(value, ast.Call) and name.isupper()]
    told += [f"other layouts {', '.join(layouts)}"] if layouts else []
    both = [name for name in own.functions if name in other.functions]
    changed = [name for name in both if own.functions[name] != other.functions[name]]
    told += [f"other lines in {', '.join(changed)}"] if changed else []
    less = [name for name in own.functions if name not in both]
    told += [f"not as functions of their own: {', '.join(less)}"] if less else []
    more = [name for name in other.functions if name not in both]
    told += [f"also {name}" + (f" ({other.said[name]})" if name in other.said else "") for name in more]
    return "; ".join(told) or "the same kernel and launch"
