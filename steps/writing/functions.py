"""Other functions in place of a kernel's: exercises and trials say by name which functions of a step they replace.

A name outlives changes of a kernel's text that a quoted piece of it would not.
"""

from __future__ import annotations

import dataclasses
import re

import libcst as cst

from steps.core.fused import FusedStep
from steps.writing.trees import call_site, code, matched, parameters, with_arguments
from steps.writing.written import WrittenStep, write_step
from tutorial_lib.exercises import clean
from tutorial_lib.problem import Problem


def with_functions(
    step: FusedStep, problem: Problem, functions: dict[str, str], arch: str | None = None, beside: str = "", **changes
) -> WrittenStep:
    """``step`` as a text with other functions: see ``put``. changes: of the new step's fields, such as its name.

    Without other functions it is the step's text, and ``beside`` is left out.
    """
    if not functions:
        return write_step(step, problem, arch, **changes)
    whole = write_step(step, problem, arch, names_in(*functions, *functions.values(), beside), **changes)
    return put(whole, functions, beside)


def names_in(*sources: str) -> frozenset[str]:
    """All names in some sources. What a source calls must stay a function where a kernel is written out."""
    return frozenset(re.findall(r"[A-Za-z_]\w*", "\n".join(sources)))


def put(
    step: WrittenStep, functions: dict[str, str], beside: str = "", constants: dict[str, object] | None = None
) -> WrittenStep:
    """A written step with other functions.

    functions: sources, each by the name of the kernel's function that it stands in for. It may have another name and
    fewer parameters, in another order: calls hand over what it has parameters for. beside: source of functions that
    these call, and the kernel does not have. constants: new values of constants of the text, by their names.

    Raises ValueError for a function or a constant that the kernel does not have, and for arguments that it does not.
    """
    module = cst.parse_module(step.text)
    own = {node.name.value: node for node in module.body if isinstance(node, cst.FunctionDef)}
    made = {name: _function(source) for name, source in functions.items()}
    if absent := [name for name in made if name not in own]:
        raise ValueError(f"step {step.base.name}: its kernel has no function {', '.join(absent)}")
    marks = next(iter(own.values())).decorators
    new = [node.with_changes(decorators=marks) for node in _functions(beside)]
    calls = _Calls({name: (own[name], node) for name, node in made.items()})
    waiting, body = dict(constants or {}), []
    for node in module.body:
        if isinstance(node, cst.FunctionDef):
            body += [_apart(other) for other in new]  # in front of all functions: the kernel is the last of them
            new = []
            name = node.name.value
            put_in = made[name].with_changes(decorators=node.decorators) if name in made else node.visit(calls)
            body.append(_apart(put_in) if name in made else put_in)
        else:
            body.append(_constant(node, waiting))
    if waiting:
        raise ValueError(f"step {step.base.name}: its kernel has no constant {', '.join(waiting)}")
    return dataclasses.replace(step, text=module.with_changes(body=body).code)


def _functions(source: str) -> list[cst.FunctionDef]:
    return [node for node in cst.parse_module(clean(source)).body if isinstance(node, cst.FunctionDef)]


def _function(source: str) -> cst.FunctionDef:
    found = _functions(source)
    if len(found) != 1:
        raise ValueError(f"one function must stand in for one, and these are {len(found)}:\n{source}")
    return found[0]


def _apart(node: cst.FunctionDef) -> cst.FunctionDef:
    """With two empty lines in front, and no others."""
    return node.with_changes(leading_lines=[cst.EmptyLine(indent=False)] * 2)


def _constant(node: cst.CSTNode, waiting: dict[str, object]) -> cst.CSTNode:
    """A statement of the text with another value, where it defines a constant that waits for one."""
    line = node.body[0] if isinstance(node, cst.SimpleStatementLine) else None
    target = line.targets[0].target if isinstance(line, cst.Assign) else getattr(line, "target", None)
    if not isinstance(target, cst.Name) or target.value not in waiting:
        return node
    value = cst.parse_expression(repr(waiting.pop(target.value)))
    if isinstance(line.value, cst.Call):  # gl.constexpr(2)
        value = line.value.with_changes(args=[cst.Arg(value)])
    return node.with_changes(body=[line.with_changes(value=value)])


class _Calls(cst.CSTTransformer):
    """Calls what stands in for functions. changed: by name, the function that was, and the one that is."""

    def __init__(self, changed: dict[str, tuple[cst.FunctionDef, cst.FunctionDef]]):
        self.changed = changed

    def leave_Call(self, original, updated):
        return self._called(updated)

    def leave_Tuple(self, original, updated):
        return self._called(updated)  # it may be (function, (arguments))

    def _called(self, node):
        callee, arguments = call_site(node) or (None, [])
        if not isinstance(callee, cst.Name) or callee.value not in self.changed:
            return node
        old, new = self.changed[callee.value]
        names = [part.name.value for part in parameters(old)]
        wanted = [part.name.value for part in parameters(new)]
        known = dict(zip(matched(arguments, names), arguments, strict=True))
        if set(wanted) <= set(known):
            node = with_arguments(node, [_positional(known[name]) for name in wanted])
        elif len(wanted) != len(arguments):  # as many under other names are taken in their order
            lacking = ", ".join(name for name in wanted if name not in known)
            raise ValueError(
                f"{new.name.value} has the parameters {', '.join(wanted)}, and the kernel calls "
                f"{code(callee)}({', '.join(known)}): nothing tells what to hand over for {lacking}"
            )
        if isinstance(node, cst.Call):
            return node.with_changes(func=new.name)
        return node.with_changes(elements=[cst.Element(new.name), node.elements[1]])


def _positional(argument):
    return argument.with_changes(keyword=None) if isinstance(argument, cst.Arg) else argument
