"""Said once: what functions that were written out side by side say again, and parentheses that nothing needs."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import libcst as cst

from steps.writing.inline import Rename
from steps.writing.trees import (
    LINE_LENGTH,
    Rewriter,
    assignment,
    bare,
    chain,
    code,
    effectless,
    found_in,
    is_heading,
    small,
    uses,
)

TERSE = 64  # characters of an expression that a line takes up
PLACES = (
    "index",
    "reshape",
    "slice",
    "permute",
    "to",
    "cdiv",
    "num_programs",
    "program_id",
    "stride",
)  # calls that may be in it
READ_FIRST = {cst.If: "test", cst.For: "iter"}  # fields of statements that are more than a line
MAKING = ("barrier_ring", "gl.allocate_shared_memory", "gl.full")  # calls of which a line may have several
SEVERAL = 3  # that is, as many


def said_once(function: cst.FunctionDef) -> cst.FunctionDef:
    """The function without a comment that stands in it above, or an assignment of what the name holds already."""
    said: set[str] = set()

    def once(lines) -> list[cst.EmptyLine]:
        text = "\n".join(line.comment.value for line in lines if line.comment)
        if text in said and not any(map(is_heading, lines)):
            return []
        said.add(text)
        return [line for line in lines if line.comment]

    return _above(function.visit(_Less()), once)


def dissolved(function: cst.FunctionDef, records: dict[str, list[str]]) -> cst.FunctionDef:
    """The function without named tuples that it makes of names, and hands to nobody. records: the fields of each."""
    put, gone = {}, []
    found = uses(function.body)
    for line in found_in(function.body, cst.SimpleStatementLine):
        target, value = assignment(line) or (None, None)
        if not isinstance(target, cst.Name) or not isinstance(value, cst.Call) or code(value.func) not in records:
            continue
        name, parts = target.value, [part.value for part in value.args]
        reads = [node for node in found.chains if isinstance(node, cst.Attribute) and code(node).startswith(f"{name}.")]
        lasting = all(chain(part) and not found.stores[chain(part)[0]] for part in parts)
        if lasting and len(reads) == found.loads[name] and found.stores[name] == 1:
            put |= {f"{name}.{field}": part for field, part in zip(records[code(value.func)], parts, strict=True)}
            gone.append(line)
    return function.visit(_Dissolved(put, gone)) if gone else function


class _Dissolved(Rewriter):
    """Puts what fields of named tuples were given in their place. gone: lines that make the tuples."""

    def __init__(self, put: dict[str, cst.BaseExpression], gone: list):
        self.put, self.gone = put, [code(line) for line in gone]

    def replace(self, statement, following):
        return [] if code(statement) in self.gone else None

    def leave_Attribute(self, original, updated):
        front, _, rest = code(original).partition(".")
        field, _, rest = rest.partition(".")
        if not chain(original) or f"{front}.{field}" not in self.put:
            return super().leave_Attribute(original, updated)
        return cst.parse_expression(".".join(filter(None, [code(self.put[f"{front}.{field}"]), rest])))


def named_less(function: cst.FunctionDef) -> cst.FunctionDef:
    """The function without names that are assigned to be read once, in the next line, where that stays short."""
    while True:
        counts, then = uses(function.body), Counter()
        for block in found_in(function, cst.IndentedBlock):
            for statement, following in pairwise(block.body):
                target, _ = assignment(statement) or (None, None)
                read = _read_first(following)
                if isinstance(target, cst.Name) and read and uses(read).loads[target.value] == 1:
                    then[target.value] += 1
        once = {name for name, n in then.items() if n == counts.loads[name] == counts.stores[name]}
        shorter = function.visit(_NamedLess(once))
        if shorter.deep_equals(function):
            return function
        function = shorter


class _NamedLess(Rewriter):
    """Puts what a name is assigned where the next line reads it. once: names that are read there, and nowhere else."""

    def __init__(self, once: set[str]):
        self.once, self.depth = once, 0

    def visit_IndentedBlock(self, node):
        self.depth += 1

    def leave_IndentedBlock(self, original, updated):
        updated = super().leave_IndentedBlock(original, updated)
        self.depth -= 1
        return updated

    def replace(self, statement, following):
        line, (target, value) = small(statement), assignment(statement) or (None, None)
        then = _read_first(following[0]) if following else None
        if not isinstance(line, cst.Assign) or not isinstance(target, cst.Name):
            return None
        again = isinstance(then, cst.Assign) and code(then.targets[0].target) == target.value
        if target.value not in self.once and not again:
            return None
        if then is None or isinstance(then, cst.AnnAssign) or uses(then).loads[target.value] != 1:
            return None
        if statement.trailing_whitespace.comment or not _is_plain(value):
            return None
        put = Rename({target.value: value})
        instead = then.with_changes(value=then.value.visit(put)) if again else then.visit(put)
        its = READ_FIRST.get(type(following[0]))
        put = following[0].with_changes(**{its: bare(instead)} if its else {"body": [instead]})
        length = 4 * self.depth + len(code(put.with_changes(leading_lines=[])).split("\n")[0])
        if length > LINE_LENGTH or (statement.leading_lines and put.leading_lines):
            return None
        following[0] = put.with_changes(leading_lines=statement.leading_lines or put.leading_lines)
        return []


def side_by_side(function: cst.FunctionDef) -> cst.FunctionDef:
    """The function with what it makes by the same call in one line, where that is short: ``a, b = f(x), f(y)``."""
    return function.visit(_SideBySide())


class _SideBySide(_NamedLess):
    """Puts assignments of calls of one function beside each other."""

    def __init__(self):
        super().__init__(set())

    def replace(self, statement, following):
        pairs = _made(statement)
        while pairs and len(pairs) < SEVERAL and following and (others := _made(following[0])):
            (line, *_), together = following, [*pairs, *others]
            names, values = zip(*together)
            put = cst.parse_statement(f"{', '.join(names)} = {', '.join(map(code, values))}")
            apart = code(values[0].func) != code(others[0][1].func) or len(together) > SEVERAL
            reads = {name for _, value in others for name in uses(value).loads} & {*names}
            if apart or reads or line.leading_lines or 4 * self.depth + len(code(put)) > LINE_LENGTH:
                break
            statement, pairs = put.with_changes(leading_lines=statement.leading_lines), together
            following.pop(0)
        return [statement] if pairs and len(pairs) > 1 else None


def _made(statement: cst.CSTNode) -> list[tuple[str, cst.Call]]:
    """(name, call) of each of the names that a statement assigns, where all that it does is to make them."""
    target, value = assignment(statement) or (None, None)
    if not isinstance(small(statement), cst.Assign) or statement.trailing_whitespace.comment:
        return []
    many = isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple)
    targets, values = ([part.value for part in each.elements] if many else [each] for each in (target, value))
    made = all(isinstance(name, cst.Name) for name in targets) and len(targets) == len(values)
    made = made and all(isinstance(its, cst.Call) and code(its.func) in MAKING for its in values)
    return [(name.value, its) for name, its in zip(targets, values)] if made else []


def _read_first(statement: cst.CSTNode) -> cst.CSTNode | None:
    """What a statement reads before all else, and once: of a branch or a loop what it asks, of a line all of it."""
    return getattr(statement, READ_FIRST[type(statement)]) if type(statement) in READ_FIRST else small(statement)


def _is_plain(value: cst.BaseExpression) -> bool:
    """Whether an expression computes where something is, or a few numbers, and is short."""
    calls = [call for call in uses(value).calls if isinstance(call, cst.Call)]
    plain = all(isinstance(call.func, cst.Attribute) and call.func.attr.value in PLACES for call in calls)
    return plain and len(code(value)) <= TERSE and not found_in(value, cst.IfExp, cst.BooleanOperation)


def _above(node, once):
    """The node with what ``once`` leaves of the comments above statements, from the top."""
    if isinstance(node, cst.IndentedBlock):
        body = []
        for statement in node.body:
            first = statement.with_changes(leading_lines=once(statement.leading_lines))
            body.append(_above(first, once))
        return node.with_changes(body=body)
    if isinstance(node, cst.FunctionDef | cst.For | cst.While):
        return node.with_changes(body=_above(node.body, once))
    if isinstance(node, cst.If):
        otherwise = node.orelse and _above(node.orelse, once)
        return node.with_changes(body=_above(node.body, once), orelse=otherwise)
    return node.with_changes(body=_above(node.body, once)) if isinstance(node, cst.Else) else node


class _Less(Rewriter):
    """Drops assignments of what a name holds already, and parentheses."""

    def leave_IndentedBlock(self, original, updated):
        body, above = [], []
        for n, statement in enumerate(updated.body):
            above += [line for line in statement.leading_lines if line.comment]
            if not _holds_already(statement, updated.body[:n]):
                body.append(statement.with_changes(leading_lines=above))
                above = []
        return updated.with_changes(body=body)

    def leave_Element(self, original, updated):
        return updated.with_changes(value=_alone(updated.value))

    def leave_Arg(self, original, updated):
        return super().leave_Arg(original, updated).with_changes(value=_alone(updated.value))

    def leave_BinaryOperation(self, original, updated):
        if not isinstance(updated.operator, cst.Add | cst.Subtract):
            return updated
        sides = {"left": updated.left, "right": updated.right}
        products = {
            side: _alone(part)
            for side, part in sides.items()
            if isinstance(part, cst.BinaryOperation) and isinstance(part.operator, cst.Multiply)
        }
        return updated.with_changes(**products)


def _alone(value: cst.BaseExpression) -> cst.BaseExpression:
    """An operation without parentheses, where these are on one line."""
    return bare(value) if isinstance(value, cst.BinaryOperation) and "\n" not in code(value) else value


def _holds_already(statement: cst.CSTNode, before: list) -> bool:
    """Whether a statement assigns a name the value that one before it has, with nothing assigned in between."""
    if not isinstance(small(statement), cst.Assign) or not (found := assignment(statement)):
        return False
    target, value = found
    names = {*uses(value).loads, code(target)}
    if not isinstance(target, cst.Name) or target.value in uses(value).loads or not effectless(value):
        return False
    for other in reversed(before):
        if isinstance(small(other), cst.Assign) and code(small(other)) == code(small(statement)):
            return True
        if names & {*uses(other).stores}:
            return False
    return False
