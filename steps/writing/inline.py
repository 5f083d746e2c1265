"""Functions that one place calls are written there: the last phase of making a kernel's text.

A skeleton is cut into small functions, as several kernels share them. In the text of one kernel most are called once,
and a reader would have to look each of them up. Their statements stand in place of the call then, below their
docstring's first line. Left alone are functions that come from another module than their caller, such as those that
fill a step's holes, unless that is a module of pieces (``PIECES`` of its package), and long ones, but for a long one
that is all that its caller does.
"""

from __future__ import annotations

import sys

import libcst as cst

from steps.writing.trees import (
    LINE_LENGTH,
    Substitute,
    assignment,
    chain,
    found_in,
    fresh,
    matched,
    parameters,
    pure,
    small,
    statements,
    together,
    uses,
)

LONG = 12  # statements


def inline(
    functions: dict[str, cst.FunctionDef], modules: dict[str, str], entry: str, keep: frozenset[str] = frozenset()
) -> dict[str, cst.FunctionDef]:
    """The functions of a program with those called once written out. modules: where each of them comes from.

    keep: names of functions that stay functions.
    """
    functions = dict(functions)
    tried: set[str] = set()
    while True:
        reads = {name: uses(tree).loads for name, tree in functions.items()}
        for name, tree in functions.items():
            callers = [caller for caller, found in reads.items() if found[name]]
            if name == entry or name in keep or name in tried or len(callers) != 1 or reads[callers[0]][name] != 1:
                continue
            [caller] = callers
            tried.add(name)
            if not _together(modules[caller], modules[name]) or not _suits(tree, functions[caller]):
                continue
            place = _Place(name, tree, functions[caller])
            written = functions[caller].visit(place)
            if place.done:
                functions[caller] = written
                del functions[name]
                tried.clear()
                break
        else:
            return functions


def _together(caller: str, callee: str) -> bool:
    """Whether a function belongs to its caller: of the same module, or a piece of what the caller's package is made of.

    A package names the modules of its pieces in ``PIECES``.
    """
    package, _, name = callee.rpartition(".")
    return caller == callee or name in getattr(sys.modules.get(package), "PIECES", ())


def _suits(callee: cst.FunctionDef, caller: cst.FunctionDef) -> bool:
    """Whether a function can be written out at all, and should be."""
    body = statements(callee)
    if not body or callee.params.star_arg != cst.MaybeSentinel.DEFAULT or callee.params.kwonly_params:
        return False
    returns, lines = (
        sum(len(found_in(statement, kind)) for statement in body) for kind in (cst.Return, cst.SimpleStatementLine)
    )
    ends = isinstance(small(body[-1]), cst.Return)
    return returns == int(ends) and (lines <= LONG or len(statements(caller)) == 1)


class _Place(cst.CSTTransformer):
    """Finds the statement that is nothing but the call, and puts the function's body in its place."""

    def __init__(self, name: str, callee: cst.FunctionDef, caller: cst.FunctionDef):
        self.name, self.callee, self.caller, self.done = name, callee, caller, False

    def leave_IndentedBlock(self, original, updated):
        for n, statement in enumerate(updated.body):
            if (call := self._call(statement)) and (body := self._body(statement, call)):
                self.done = True
                return updated.with_changes(body=[*updated.body[:n], *body, *updated.body[n + 1 :]])
        return updated

    def _call(self, statement: cst.CSTNode) -> cst.Call | None:
        """The call, where a statement is ``f(...)``, ``x = f(...)``, ``x, y = f(...)`` or ``return f(...)``."""
        line = small(statement)
        value = assignment(statement)[1] if assignment(statement) else getattr(line, "value", None)
        if isinstance(line, cst.Assign | cst.Expr | cst.Return) and isinstance(value, cst.Call):
            return value if isinstance(value.func, cst.Name) and value.func.value == self.name else None
        return None

    def _body(self, statement, call: cst.Call) -> list | None:
        """The statements that stand in place of this one, or None where that is not to be done simply."""
        names = [part.name.value for part in parameters(self.callee)]
        found = matched(list(call.args), names)
        targets = _names(assignment(statement)[0]) if assignment(statement) else []
        if found is None or sorted(found) != sorted(names) or targets is None:
            return None
        arguments = dict(zip(found, (argument.value for argument in call.args), strict=True))
        body = statements(self.callee)
        end = body.pop() if isinstance(small(body[-1]), cst.Return) else None
        result = small(end).value if end else None
        results = _elements(result, len(targets)) if targets else []
        if targets and results is None:
            return None
        around = uses(self.caller.body)
        taken = {*around.loads, *around.stores, *(part.name.value for part in parameters(self.caller))}
        stores = uses(*body).stores if body else uses(cst.parse_statement("pass")).stores
        renamed: dict[str, cst.BaseExpression] = {}
        bindings = []
        read_by_arguments = [name for value in arguments.values() for name in uses(value).loads]
        returned = {node.value: target for node, target in zip(results, targets) if isinstance(node, cst.Name)}
        for name, value in arguments.items():
            plain = isinstance(value, cst.Name | cst.Integer | cst.Float | cst.SimpleString) or chain(value)
            comes_back = isinstance(value, cst.Name) and (
                returned.get(name) == value.value and read_by_arguments.count(value.value) == 1
            )
            once = uses(*body, *([result] if result else [])).loads[name] == 1 and pure(value)
            if (plain and not stores[name]) or comes_back or (once and not stores[name] and _is_first(value)):
                renamed[name] = value
            else:
                new = name if name not in taken else fresh(name, taken)
                taken.add(new)
                bindings.append(_assign([new], [value]))
                if new != name:
                    renamed[name] = cst.Name(new)
        for name in stores:
            if name in arguments:
                continue
            target = returned.get(name)
            alone = target and target != "_" and list(returned.values()).count(target) == 1
            if alone and (name == target or target not in read_by_arguments):
                renamed |= {name: cst.Name(target)} if name != target else {}
                continue
            if name in taken and (name not in targets or name in read_by_arguments):
                new = fresh(name, taken)
                taken.add(new)
                renamed[name] = cst.Name(new)
        change = _Rename(renamed)
        written = [line.visit(change) for line in body]
        if result is not None:
            result = result.visit(change)
        last = None
        if isinstance(small(statement), cst.Return):
            last = cst.SimpleStatementLine([cst.Return(result)])
        else:
            pairs = [(t, node.visit(change)) for t, node in zip(targets, results)]
            pairs = [(t, node) for t, node in pairs if not (isinstance(node, cst.Name) and node.value == t)]
            if pairs:
                last = _assign([t for t, _ in pairs], [node for _, node in pairs])
        if last:
            written.append(_commented(last, end))
        if written:
            written[-1] = _commented(written[-1], statement, above=False)
        return _headed(statement, [*bindings, *written], self.callee.get_docstring())


def _is_first(value: cst.BaseExpression) -> bool:
    """Whether an expression can stand in place of a name without being hard to read: no wider than a call."""
    return isinstance(value, cst.Name | cst.Attribute | cst.Subscript) or len(cst.Module([]).code_for_node(value)) < 24


def _names(target: cst.BaseExpression) -> list[str] | None:
    """["x"] for ``x``, ["x", "y"] for ``x, y``, None for other targets."""
    parts = [element.value for element in target.elements] if isinstance(target, cst.Tuple) else [target]
    return [part.value for part in parts] if all(isinstance(part, cst.Name) for part in parts) else None


def _elements(result: cst.BaseExpression | None, number: int) -> list[cst.BaseExpression] | None:
    """As many expressions as there are targets, or None where the result is not written so."""
    if number == 1:
        return [result] if result is not None else None
    if isinstance(result, cst.Tuple) and len(result.elements) == number:
        return [element.value for element in result.elements]
    return None


def _assign(targets: list[str], values: list[cst.BaseExpression]) -> cst.SimpleStatementLine:
    code = cst.Module([]).code_for_node
    return cst.parse_statement(f"{', '.join(targets)} = {', '.join(map(code, values))}")


def _headed(statement, body: list, docstring: str | None) -> list:
    """The body with what stood above the call, and with what the docstring says first as a comment."""
    if not body:
        return []
    lines = list(statement.leading_lines)
    inner = [line for line in body[0].leading_lines if line.comment]
    if docstring and len(body) > 1 and not inner and not any(line.comment for line in lines):
        said = " ".join(docstring.partition("\n\n")[0].split())
        if len(said) > LINE_LENGTH:
            said = said.partition(". ")[0].rstrip(".") + "."
        lines.append(cst.EmptyLine(comment=cst.Comment(f"# {said}")))
    return [body[0].with_changes(leading_lines=lines + inner), *body[1:]]


def _commented(line: cst.CSTNode, source: cst.CSTNode | None, above: bool = True) -> cst.CSTNode:
    """A statement with the comments of another one that it stands for, those above it and the one beside it."""
    if above and source:
        line = line.with_changes(leading_lines=[part for part in source.leading_lines if part.comment])
    beside = source and source.trailing_whitespace
    if beside and beside.comment and isinstance(line, cst.SimpleStatementLine) and not line.trailing_whitespace.comment:
        line = line.with_changes(trailing_whitespace=beside)
    return line


OPERATORS = (
    cst.BinaryOperation,
    cst.BooleanOperation,
    cst.UnaryOperation,
    cst.Comparison,
    cst.ComparisonTarget,
    cst.Attribute,
    cst.Subscript,
)
OPERANDS = ("left", "right", "expression", "comparator", "value")


class _Rename(Substitute):
    """Puts names and expressions in place of names, also where they are assigned.

    An expression that stands for an operand gets parentheses: ``turn % n`` with ``turn + 1`` is ``(turn + 1) % n``.
    """

    def on_leave(self, original, updated):
        updated = super().on_leave(original, updated)
        if isinstance(original, OPERATORS):
            named = [field for field in OPERANDS if isinstance(getattr(original, field, None), cst.Name)]
            updated = updated.with_changes(**{field: together(getattr(updated, field)) for field in named})
        return updated

    def leave_AnnAssign(self, original, updated):
        return updated
