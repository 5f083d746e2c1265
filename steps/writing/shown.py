"""A kernel's text as readers see it: without parameters of the kernel itself that nothing reads; and the way back.

A kernel is launched with what all problems of its skeleton need. For one problem it may read less, and its text has no
parameter that it does not read. What is launched keeps them: without them its machine code would look for the others
elsewhere.
"""

from __future__ import annotations

import libcst as cst

from steps.writing.flat import in_lines
from steps.writing.prune import function_documented
from steps.writing.trees import code, parameters, uses, with_parameters


def as_shown(text: str) -> str:
    """A written kernel's text without parameters that nothing reads."""
    module = cst.parse_module(text)
    kernel = kernel_of(module)
    if not (gone := unread(kernel)):
        return text
    return _with(module, _without(kernel, gone))


def completed(text: str, whole: str) -> str:
    """A text that was shown, and may have been edited, with the parameters that ``as_shown`` took from ``whole``.

    It has as many lines as before.
    """
    module = cst.parse_module(text)
    kernel, original = kernel_of(module), kernel_of(cst.parse_module(whole))
    if kernel is None or not (gone := unread(original) - {part.name.value for part in parameters(kernel)}):
        return text
    put_in = list(kernel.params.params)
    for n, part in enumerate(original.params.params):
        if part.name.value in gone:
            before = {other.name.value for other in original.params.params[:n]}
            places = [place for place, other in enumerate(put_in, 1) if other.name.value in before]
            put_in.insert(max(places, default=0), part)
    put_in = [part.with_changes(comma=cst.MaybeSentinel.DEFAULT) for part in put_in]
    put_in = kernel.params.with_changes(params=put_in)
    made = kernel.with_changes(params=put_in, whitespace_before_params=cst.SimpleWhitespace(""))
    if [*map(code, kernel.decorators)] == [*map(code, _without(original, gone).decorators)]:
        made = made.with_changes(decorators=original.decorators)
    if (fewer := _lines(kernel) - _lines(made)) > 0:
        room = cst.ParenthesizedWhitespace(empty_lines=[cst.EmptyLine(indent=False)] * (fewer - 1))
        made = made.with_changes(whitespace_before_params=room)
    return _replaced(module, made).code


def kernel_of(module: cst.Module) -> cst.FunctionDef | None:
    """The kernel of a written text: its last function, if it has one."""
    return next((node for node in reversed(module.body) if isinstance(node, cst.FunctionDef)), None)


def unread(function: cst.FunctionDef) -> set[str]:
    """The parameters that nothing in the body reads."""
    found = uses(function.body)
    names = {part.name.value for part in parameters(function)}
    return {name for name in names if not found.loads[name] and not found.stores[name]}


def _without(kernel: cst.FunctionDef, gone: set[str]) -> cst.FunctionDef:
    left = [part for part in parameters(kernel) if part.name.value not in gone]
    before = [part.name.value for part in parameters(kernel)]
    return function_documented(with_parameters(kernel, left, gone), before)


def _with(module: cst.Module, kernel: cst.FunctionDef) -> str:
    """The text with another kernel, whose first line is broken where it is too long."""
    lines = _replaced(module, kernel).code.split("\n")
    [place] = [n for n, line in enumerate(lines) if line.startswith(f"def {kernel.name.value}(")]
    return "\n".join([*lines[:place], in_lines(lines[place]), *lines[place + 1 :]])


def _replaced(module: cst.Module, kernel: cst.FunctionDef) -> cst.Module:
    old = kernel_of(module)
    return module.with_changes(body=[kernel if node is old else node for node in module.body])


def _lines(function: cst.FunctionDef) -> int:
    """Those in front of the body."""
    return code(function.with_changes(body=cst.SimpleStatementSuite([cst.Pass()]))).count("\n") + 1
