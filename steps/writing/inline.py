"""Functions that one place calls are written there: the last phase of making a kernel's text.

A skeleton is cut into small functions, as several kernels share them. In the text of one kernel most are called once,
and a reader would have to look each of them up. Their statements stand in place of the call then, below their
docstring's first line; so do those of a tiny function that two places call. Functions that do nothing but to call
another are the first, then those called once: so what stays a function holds all that it alone calls. In a program that
stands alone a few more are written out, where it becomes shorter. A call inside an expression is taken out of it first.
Left alone are functions of another module of the package than their caller, such as those that fill a step's holes,
unless that is a module of pieces (``PIECES`` of the package), and loops that a branch calls.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection

import libcst as cst

from steps.writing.trees import (
    LINE_LENGTH,
    Substitute,
    assignment,
    chain,
    code,
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

TINY = 2  # statements of a function that is written out although two places call it
TINY_ALONE = 4  # the same, in a text that stands alone; of one that more places call, a single one
BRIEF = 40  # characters of one that stands in place of a name that is read once, in a text that stands alone
TERSE = 16  # characters of an expression that is no harder to read than a name
GAIN = 2  # lines by which such a text must become shorter then


def inline(
    functions: dict[str, cst.FunctionDef], modules: dict[str, str], kept: Collection[str], alone: bool = False
) -> dict[str, cst.FunctionDef]:
    """The functions of a program with those called once written out, but for those kept.

    modules: where each of them comes from. alone: whether no chapter speaks of them; more are written out then.
    """
    functions = dict(functions)
    for suits in (_suits_wrapper, _suits_once, _suits, *[_suits_alone] * alone):
        in_vain: dict[str, list] = {}
        while _write_one_out(functions, modules, kept, suits, in_vain):
            continue
    return functions


def _write_one_out(
    functions: dict[str, cst.FunctionDef],
    modules: dict[str, str],
    kept: Collection[str],
    suits: Callable,
    in_vain: dict[str, list],
) -> bool:
    """Writes the first function out that suits; whether there was one. in_vain: what did not suit, with its callers."""
    reads = {name: uses(tree).loads for name, tree in functions.items()}
    for name, tree in functions.items():
        callers = {caller: found[name] for caller, found in reads.items() if found[name]}
        calls = sum(callers.values())
        if name in kept or not callers or (suits is _suits_alone and any(reads[name][other] for other in functions)):
            continue  # in a text that stands alone functions are tiny with all that they call
        if not all(_together(modules[caller], modules[name]) for caller in callers):
            continue
        if not all(suits(name, tree, functions[caller], calls) for caller in callers):
            continue
        about = [tree, *(functions[caller] for caller in callers)]
        if in_vain.get(name) == about:
            continue
        apart = suits is not _suits_alone
        written = {
            caller: _written_out(name, tree, functions[caller], times, apart) for caller, times in callers.items()
        }
        if all(written.values()) and (apart or _length(*about) - _length(*written.values()) >= GAIN):
            functions |= written
            del functions[name]
            return True
        in_vain[name] = about
    return False


def _length(*trees: cst.FunctionDef) -> int:
    """Lines of functions, each behind two that are empty; a line that is too long becomes three."""
    lines = [line for tree in trees for line in code(tree).splitlines()]
    return sum(3 if len(line) > LINE_LENGTH else 1 for line in lines) + 2 * len(trees)


def _written_out(
    name: str, callee: cst.FunctionDef, caller: cst.FunctionDef, times: int, apart: bool
) -> cst.FunctionDef | None:
    """The caller with so many calls of a function written out, None where that cannot be done for all.

    apart: whether the call may be taken out of an expression first.
    """
    if apart and times == 1:
        caller = caller.visit(_InFront(name, {*uses(caller.body).stores}))
    for _ in range(times):
        place = _Place(name, callee, caller, apart)
        caller = caller.visit(place)
        if not place.done:
            return None
    return caller


class _InFront(cst.CSTTransformer):
    """Takes a call out of an expression: ``x = g(f(y))`` becomes ``f = f(y)`` and ``x = g(f)``.

    Only where nothing else is called before it, so that all happens in the same order.
    """

    def __init__(self, name: str, taken: set[str]):
        self.name, self.taken = name, taken

    def leave_IndentedBlock(self, original, updated):
        body = []
        for statement in updated.body:
            body += self._apart(statement) if isinstance(statement, cst.SimpleStatementLine) else [statement]
        return updated.with_changes(body=body)

    def _apart(self, statement: cst.SimpleStatementLine) -> list:
        line = small(statement)
        calls = found_in(statement, cst.Call)  # as they stand, a call in front of those that it holds
        own = [call for call in calls if code(call.func) == self.name]
        if self.name in self.taken or len(own) != 1 or not isinstance(line, cst.Assign | cst.Expr | cst.Return):
            return [statement]
        [call] = own
        before = any(call not in found_in(other, cst.Call) for other in calls[: calls.index(call)])
        if line.value is call or before or found_in(line.value, cst.IfExp, cst.BooleanOperation):
            return [statement]
        rest = statement.deep_replace(call, cst.Name(self.name)).with_changes(leading_lines=[])
        return [_assign([self.name], [call]).with_changes(leading_lines=statement.leading_lines), rest]


def _together(caller: str, callee: str) -> bool:
    """Whether a function belongs to its caller: of the same module, or a piece of what the caller's package is made of.

    A package names the modules of its pieces in ``PIECES``. What comes from another package is a piece, too.
    """
    package, _, name = callee.rpartition(".")
    return (
        caller == callee
        or caller.rpartition(".")[0] != package
        or name in getattr(sys.modules.get(package), "PIECES", ())
    )


def _suits_wrapper(name: str, callee: cst.FunctionDef, caller: cst.FunctionDef, calls: int) -> bool:
    """Whether a function can be written out, and does nothing but to call another."""
    return len(statements(callee)) == 1 and _suits(name, callee, caller, calls)


def _suits_once(name: str, callee: cst.FunctionDef, caller: cst.FunctionDef, calls: int) -> bool:
    """Whether a function can be written out, and is called once. What calls it is no longer tiny then, maybe."""
    return calls == 1 and _suits(name, callee, caller, calls)


def _suits(name: str, callee: cst.FunctionDef, caller: cst.FunctionDef, calls: int) -> bool:
    """Whether a function can be written out at all, and should be: called once, or a tiny one that two places call.

    A loop that a branch calls stays a function: it is another kernel than what the other branch does.
    """
    if not _is_plain(callee):
        return False
    if calls == 1:
        loops = found_in(callee, cst.For, cst.While)
        return not (loops and any(uses(branch).loads[name] for branch in found_in(caller, cst.If)))
    short = sum(len(code(statement)) for statement in statements(callee)) <= LINE_LENGTH
    return calls == 2 and short and _is_tiny(callee, TINY)


def _suits_alone(name: str, callee: cst.FunctionDef, caller: cst.FunctionDef, calls: int) -> bool:
    """Likewise, of a text that stands alone; what it gains is asked for beside."""
    if calls == 1:
        return _is_instruction(callee)
    assembly = "inline_asm" in code(callee)  # the function's name tells what that does
    return not assembly and _is_plain(callee) and _is_tiny(callee, TINY_ALONE if calls == 2 else 1)


def _is_plain(callee: cst.FunctionDef) -> bool:
    """Whether a function's statements can stand where it is called: one return at most, at the end."""
    body = statements(callee)
    if not body or callee.params.star_arg != cst.MaybeSentinel.DEFAULT or callee.params.kwonly_params:
        return False
    returns = sum(len(found_in(statement, cst.Return)) for statement in body)
    ends = isinstance(small(body[-1]), cst.Return)
    return returns == int(ends) and not _is_instruction(callee)


def _is_instruction(callee: cst.FunctionDef) -> bool:
    """Whether a function returns what an instruction in assembly gives, and does nothing else."""
    body = statements(callee)
    return len(body) == 1 and isinstance(small(body[0]), cst.Return) and "inline_asm" in code(body[0])


def _is_tiny(callee: cst.FunctionDef, most: int) -> bool:
    """Whether a function has so few statements; no single expression, and no constants, which would stand twice."""
    body = statements(callee)
    lines = sum(len(found_in(statement, cst.SimpleStatementLine)) for statement in body)
    one_expression = len(body) == 1 and isinstance(small(body[0]), cst.Return)
    return lines <= most and not one_expression and not found_in(cst.Module(body), cst.AnnAssign)


class _Place(cst.CSTTransformer):
    """Finds the statement that is nothing but the call, and puts the function's body in its place."""

    def __init__(self, name: str, callee: cst.FunctionDef, caller: cst.FunctionDef, apart: bool):
        self.name, self.callee, self.caller, self.apart, self.done = name, callee, caller, apart, False
        self.depth = 0  # of the block that is visited; of a function's own block it is 1

    def visit_IndentedBlock(self, node):
        self.depth += 1

    def leave_IndentedBlock(self, original, updated):
        self.depth -= 1
        for n, statement in enumerate(updated.body):
            if not self.done and (call := self._call(statement)) and (body := self._body(updated.body, n, call)):
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

    def _body(self, block, n: int, call: cst.Call) -> list | None:
        """The statements that stand in place of the n-th of a block, or None where that is not to be done simply."""
        statement, before, until = block[n], uses(*block[:n]), uses(*block[: n + 1])
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
        own = {part.name.value for part in parameters(self.caller)}
        lasting = own | {
            line.target.value for tree in (self.caller, self.callee) for line in found_in(tree, cst.AnnAssign)
        }
        over = {  # names of the caller that nothing behind this place reads or assigns, and the callee not in a branch
            name
            for name in {*before.stores} - lasting
            if (before.loads[name], before.stores[name]) == (around.loads[name], around.stores[name])
            and _assigns_first(body, name)
        }
        taken -= over  # but a fresh name is none of them: it may be assigned in a branch, where it must be new
        passed = {part.name.value for part in parameters(self.caller) if not part.annotation and not self.depth}
        ends = {  # names that this statement reads last, of what this block has assigned, or the caller was given
            name
            for name in (_assigned(block[:n]) - own) | passed
            if until.loads[name] == around.loads[name] and not uses(*block[n + 1 :]).stores[name]
        }
        stores = uses(*body).stores
        renamed: dict[str, cst.BaseExpression] = {}
        bindings = []
        read_by_arguments = [name for value in arguments.values() for name in uses(value).loads]
        returned = {node.value: target for node, target in zip(results, targets) if isinstance(node, cst.Name)}
        for name, value in arguments.items():
            plain = isinstance(value, cst.Name | cst.Integer | cst.Float | cst.SimpleString) or chain(value)
            comes_back = isinstance(value, cst.Name) and (
                returned.get(name) == value.value and read_by_arguments.count(value.value) == 1
            )
            comes_back = comes_back or (
                isinstance(value, cst.Name)
                and value.value in {*ends, *targets}
                and read_by_arguments.count(value.value) == 1
            )
            once = uses(*body, *([result] if result else [])).loads[name] == 1 and pure(value)
            terse = _is_terse(value) and not {*uses(value).loads} & {*targets, *stores}
            brief = _is_first(value) or (not self.apart and len(code(value)) <= BRIEF)
            if comes_back or (not stores[name] and (plain or ((once or terse) and brief))):
                renamed[name] = value
            else:
                free = name not in taken or (name in targets and name not in read_by_arguments)
                new = name if free else fresh(name, taken | over)
                taken.add(new)
                bindings.append(_assign([new], [value]))
                if new != name:
                    renamed[name] = cst.Name(new)
        for name in stores:
            if name in arguments:
                continue
            target = returned.get(name)
            alone = target and target != "_" and list(returned.values()).count(target) == 1
            another = name != target and (target in stores or target in arguments)  # the callee's own, of this name
            if alone and not another and (name == target or target not in read_by_arguments):
                renamed |= {name: cst.Name(target)} if name != target else {}
                continue
            if name in taken and (name not in targets or name in read_by_arguments):
                new = fresh(name, taken | over)
                taken.add(new)
                renamed[name] = cst.Name(new)
        change = Rename(renamed)
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
        first = n == int(self.caller.get_docstring() is not None) and not self.depth  # its docstring stands above
        docstring = None if first else self.callee.get_docstring()
        return _headed(statement, [*bindings, *written], docstring, code(self.caller))


def _is_first(value: cst.BaseExpression) -> bool:
    """Whether an expression can stand in place of a name without being hard to read: no wider than a call."""
    return isinstance(value, cst.Name | cst.Attribute | cst.Subscript) or len(cst.Module([]).code_for_node(value)) < 24


def _is_terse(value: cst.BaseExpression) -> bool:
    """Whether it is ``n + 1`` or the like, which may stand in place of a name more than once."""
    counts = isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Add | cst.Subtract)
    return counts and isinstance(value.right, cst.Integer) and pure(value) and len(code(value)) <= TERSE


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
    return cst.parse_statement(f"{', '.join(targets)} = {', '.join(map(code, values))}")


def _headed(statement, body: list, docstring: str | None, caller: str) -> list:
    """The body with what stood above the call, and what the docstring says first as a comment: once in a caller."""
    if not body:
        return []
    lines = list(statement.leading_lines)
    inner = [line for line in body[0].leading_lines if line.comment]
    if (
        docstring
        and (len(body) > 1 or not small(body[0]) or "inline_asm" in code(body[0]))
        and not inner
        and not any(line.comment for line in lines)
        and ": see ``" not in docstring
    ):
        said = " ".join(docstring.partition("\n\n")[0].split()).partition(" Returns ")[0]
        said = re.sub("^Likewise: (.)", lambda found: found[1].upper(), said)
        if len(said) > LINE_LENGTH:
            said = said.partition(". ")[0].rstrip(".") + "."
        lines += [cst.EmptyLine(comment=cst.Comment(f"# {said}"))] * (f"# {said}\n" not in caller)
    return [body[0].with_changes(leading_lines=lines + inner), *body[1:]]


def _commented(line: cst.CSTNode, source: cst.CSTNode | None, above: bool = True) -> cst.CSTNode:
    """A statement with the comments of another one that it stands for, those above it and the one beside it."""
    if above and source:
        line = line.with_changes(leading_lines=[part for part in source.leading_lines if part.comment])
    beside = source and source.trailing_whitespace
    if beside and beside.comment and isinstance(line, cst.SimpleStatementLine) and not line.trailing_whitespace.comment:
        line = line.with_changes(trailing_whitespace=beside)
    return line


def _assigned(block) -> set[str]:
    """Names that statements of a block assign, those inside other statements aside."""
    targets = [
        target for statement in block if assignment(statement) for target in _names(assignment(statement)[0]) or ()
    ]
    return set(targets)


def _assigns_first(block, name: str) -> bool:
    """Whether the first statement of a block that assigns a name, if any does, is no branch and no loop."""
    first = next((statement for statement in block if uses(statement).stores[name]), None)
    return first is None or isinstance(first, cst.SimpleStatementLine)


OPERATORS = (
    cst.BinaryOperation,
    cst.BooleanOperation,
    cst.UnaryOperation,
    cst.Comparison,
    cst.ComparisonTarget,
    cst.Attribute,
    cst.Subscript,
)
MIRRORED = (
    (cst.LessThan, cst.GreaterThan),
    (cst.GreaterThan, cst.LessThan),
    (cst.LessThanEqual, cst.GreaterThanEqual),
    (cst.GreaterThanEqual, cst.LessThanEqual),
)
OPERANDS = ("left", "right", "expression", "comparator", "value")


class Rename(Substitute):
    """Puts names and expressions in place of names, also where they are assigned.

    An expression that stands for an operand gets parentheses: ``n % m`` with ``n + 1`` is ``(n + 1) % m``.
    """

    def on_leave(self, original, updated):
        updated = super().on_leave(original, updated)
        if isinstance(original, OPERATORS) and type(updated) is type(original):
            named = [field for field in OPERANDS if isinstance(getattr(original, field, None), cst.Name)]
            updated = updated.with_changes(**{field: together(getattr(updated, field)) for field in named})
        return updated

    def leave_AnnAssign(self, original, updated):
        return updated

    def leave_Comparison(self, original, updated):
        """A number that came to stand on the left goes to the right: ``whole <= 0`` is for ``0 >= whole``."""
        if isinstance(original.left, cst.Integer) or not isinstance(updated.left, cst.Integer):
            return updated
        [*others, last] = updated.comparisons
        mirrored = next((other for kind, other in MIRRORED if isinstance(last.operator, kind)), None)
        if others or mirrored is None:
            return updated
        comparison = last.with_changes(operator=mirrored(), comparator=updated.left)
        return updated.with_changes(left=last.comparator, comparisons=[comparison])
