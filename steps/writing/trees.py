"""Helpers for concrete syntax trees (libcst): names that are read and assigned, statements, calls, rewriting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import fields
from functools import cache, lru_cache

import libcst as cst

LINE_LENGTH = 120
ATOMS = (cst.Name, cst.Attribute, cst.BaseNumber, cst.BaseString, cst.List, cst.Call, cst.Subscript)
# How the names of a node's fields begin that hold no code.
LOOKS = ("whitespace", "leading_", "trailing_", "lines_after_", "comma", "equal", "lpar", "rpar", "lbr", "rbr", "semi")

# Below these is nothing but white space, which libcst would make anew at every visit: more than half of all nodes.
LEAVES = (
    *(cst.Name, cst.BaseNumber, cst.SimpleString, cst.BaseParenthesizableWhitespace, cst.TrailingWhitespace),
    *(cst.EmptyLine, cst.Comma, cst.Dot, cst.Colon, cst.AssignEqual, cst.LeftParen, cst.RightParen),
    *(cst.LeftSquareBracket, cst.RightSquareBracket, cst.BaseBinaryOp, cst.BaseCompOp, cst.BaseBooleanOp),
    *(cst.BaseUnaryOp, cst.BaseAugOp),
)
EFFECTLESS = (
    *("gl.arange", "gl.cdiv", "gl.full", "gl.maximum", "gl.minimum", "gl.num_programs", "gl.program_id"),
    *("gl.SliceLayout", "gl.SwizzledSharedLayout"),
)
NO_NODES = (str, bool, type(None), cst.MaybeSentinel)  # what else a field of a node may hold


def code(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node).strip()


def bare(node: cst.BaseExpression) -> cst.BaseExpression:
    """The expression without parentheses around it."""
    empty = isinstance(node, cst.Tuple) and not node.elements
    return node.with_changes(lpar=[], rpar=[]) if getattr(node, "lpar", ()) and not empty else node


def expression(text: str) -> cst.BaseExpression:
    """A tree for text, in parentheses where it would not stand alone."""
    return together(cst.parse_expression(text))


def together(node: cst.BaseExpression) -> cst.BaseExpression:
    """The expression in parentheses, if it needs some among operators."""
    return node if node.lpar or is_atom(node) else node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def is_atom(node: cst.BaseExpression) -> bool:
    return isinstance(node, ATOMS)


def in_place_of(whole: cst.BaseExpression, part: cst.BaseExpression) -> cst.BaseExpression:
    """The part of an expression that is left of it, in the parentheses of the whole where it needs some."""
    return part if part.lpar or is_atom(part) else part.with_changes(lpar=whole.lpar, rpar=whole.rpar)


def chain(node: cst.BaseExpression) -> list[str] | None:
    """["a", "b", "c"] for ``a.b.c``, None for what is not such a chain of names."""
    if isinstance(node, cst.Name):
        return [node.value]
    if isinstance(node, cst.Attribute) and (front := chain(node.value)):
        return [*front, node.attr.value]
    return None


@cache
def _is_leaf(kind: type) -> bool:
    return issubclass(kind, LEAVES)


@cache
def _code_in(kind: type) -> tuple[str, ...]:
    """The fields of a kind of node that hold code; the others hold white space, commas and the like."""
    return tuple(field.name for field in fields(kind) if not field.name.startswith(LOOKS))


def parts(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The nodes of code right below a node. (libcst's own visitors make all nodes anew, which takes far longer.)"""
    for name in _code_in(type(node)):
        value = getattr(node, name)
        kind = type(value)  # isinstance takes ten times as long for what is abstract
        if kind is list or kind is tuple:
            yield from value
        elif kind not in NO_NODES:
            yield value


def found_in(tree: cst.CSTNode, *kinds: type) -> list:
    """All nodes of these kinds in a tree."""
    found, todo = [], [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, kinds):
            found.append(node)
        todo += reversed([*parts(node)])
    return found


class _Uses:
    """Counts the names that are read and those that are assigned; names of attributes and keywords are neither."""

    def __init__(self):
        self.loads, self.stores, self.chains, self.calls = Counter(), Counter(), [], []

    def add(self, node: cst.CSTNode) -> None:
        visit = getattr(self, f"visit_{type(node).__name__}", None)
        if visit is None or visit(node) is not False:
            for part in parts(node):
                self.add(part)

    def _store(self, target: cst.BaseExpression) -> None:
        if isinstance(target, cst.Name):
            self.stores[target.value] += 1
        elif isinstance(target, cst.Tuple | cst.List):
            for element in target.elements:
                self._store(element.value)
        else:
            self.add(target)

    def visit_Name(self, node):
        self.loads[node.value] += 1
        self.chains.append(node)

    def visit_Attribute(self, node):
        if names := chain(node):
            self.loads[names[0]] += 1
            self.chains.append(node)
        else:
            self.add(node.value)
        return False

    def visit_Call(self, node):
        self.calls.append(node)

    def visit_Tuple(self, node):
        self.calls.append(node)  # it may be (function, (arguments))

    def visit_Arg(self, node):
        self.add(node.value)
        return False

    def visit_AssignTarget(self, node):
        self._store(node.target)
        return False

    def visit_AnnAssign(self, node):
        self._store(node.target)
        self.add(node.annotation)
        if node.value:
            self.add(node.value)
        return False

    def visit_AugAssign(self, node):
        self._store(node.target)
        self.add(node.target)
        self.add(node.value)
        return False

    def visit_For(self, node):
        self._store(node.target)
        for part in (node.iter, node.body, node.orelse):
            if part:
                self.add(part)
        return False

    def visit_NamedExpr(self, node):
        self._store(node.target)
        self.add(node.value)
        return False

    def visit_Param(self, node):
        for part in (node.annotation, node.default):
            if part:
                self.add(part)
        return False

    def visit_ClassDef(self, node):
        for part in (*node.decorators, *node.bases, node.body):
            self.add(part)
        return False

    def visit_FunctionDef(self, node):
        for part in (*node.decorators, node.params, node.body):
            self.add(part)
        return False


@lru_cache(maxsize=2048)  # trees never change, and are asked of again and again
def _uses(node: cst.CSTNode) -> _Uses:
    found = _Uses()
    found.add(node)
    return found


def uses(*nodes: cst.CSTNode) -> _Uses:
    """What is read, assigned and called in these trees. Not to be changed: it may be asked for again."""
    if len(nodes) == 1:
        return _uses(nodes[0])
    found = _Uses()
    for node in nodes:
        found.add(node)
    return found


def pure(node: cst.CSTNode) -> bool:
    """Whether evaluating it does nothing but give a value."""
    return not any(isinstance(call, cst.Call) for call in uses(node).calls)


def effectless(node: cst.CSTNode, records: Collection[str] = ()) -> bool:
    """Likewise, where calls are of functions that are known to do no more. records: names of named tuples."""
    known = (*EFFECTLESS, *records)
    return all(code(call.func) in known for call in uses(node).calls if isinstance(call, cst.Call))


def parameters(function: cst.FunctionDef) -> list[cst.Param]:
    return [*function.params.params, *function.params.kwonly_params]


def statements(function: cst.FunctionDef) -> list[cst.BaseStatement]:
    """The body without docstring and pass."""
    body = list(function.body.body)
    if body and function.get_docstring() is not None:
        body = body[1:]
    return [statement for statement in body if not is_pass(statement)]


def small(statement: cst.CSTNode) -> cst.BaseSmallStatement | None:
    """The one small statement of a line, or None."""
    if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
        return statement.body[0]
    return None


def is_pass(statement: cst.CSTNode) -> bool:
    return isinstance(small(statement), cst.Pass)


def assignment(statement: cst.CSTNode) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    """(target, value) of a plain or annotated assignment with one target."""
    line = small(statement)
    if isinstance(line, cst.Assign) and len(line.targets) == 1:
        return line.targets[0].target, line.value
    if isinstance(line, cst.AnnAssign) and line.value:
        return line.target, line.value
    return None


def is_heading(line: cst.EmptyLine) -> bool:
    """Whether a comment heads the lines below it, and not only the next."""
    return bool(line.comment and line.comment.value.startswith("# ---"))


class Rewriter(cst.CSTTransformer):
    """What the phases share: statements of a block are replaced one by one, and headings go on to what is left.

    Numbers that came in place of names are added up and multiplied out where that is sure not to change a type.
    """

    constants: frozenset[str] | dict = frozenset()  # names that are known to be numbers
    ones: frozenset[str] = frozenset()  # those of them that are 1, by which nothing is to be multiplied or divided

    def on_visit(self, node):
        return not _is_leaf(type(node)) and super().on_visit(node)

    def replace(self, statement, following: list) -> list | None:
        """What stands in place of a statement, or None for itself; following: the statements after it in its block."""
        return None

    def leave_SimpleStatementSuite(self, original, updated):
        return cst.IndentedBlock([cst.SimpleStatementLine([part]) for part in updated.body])

    def leave_IndentedBlock(self, original, updated):
        body, passed_on, todo = [], [], list(updated.body)
        while todo:
            statement, *todo = todo
            left = self.replace(statement, todo)
            left = [statement] if left is None else left
            if not left:  # a heading in front of what goes belongs to what follows as well
                passed_on = [line for line in statement.leading_lines if is_heading(line)] or passed_on
                continue
            lines = [line for line in left[0].leading_lines if line.comment]
            if not any(map(is_heading, lines)):
                lines = passed_on + lines
            passed_on = []
            body += [left[0].with_changes(leading_lines=lines), *left[1:]]
            if isinstance(small(left[-1]), cst.Return):
                break
        rest = [statement for statement in body if not is_pass(statement)]
        return updated.with_changes(body=rest or [cst.parse_statement("pass")])

    def leave_Attribute(self, original, updated):
        return updated.with_changes(attr=original.attr)

    def leave_Arg(self, original, updated):
        return updated.with_changes(keyword=original.keyword)

    def leave_FormattedString(self, original, updated):
        """A number that came in place of a name is text."""
        if not all(isinstance(getattr(part, "expression", None), cst.Integer | None) for part in updated.parts):
            return updated
        return cst.SimpleString(f'"{"".join(getattr(part, "expression", part).value for part in updated.parts)}"')

    def leave_Param(self, original, updated):
        return updated.with_changes(name=original.name)

    def leave_BinaryOperation(self, original, updated):
        def number(node):
            return int(node.value) if isinstance(node, cst.Integer) else None

        def is_one(node):
            return number(node) == 1 or (isinstance(node, cst.Name) and node.value in self.ones)

        left, right = number(updated.left), number(updated.right)
        written = number(original.left) == left and number(original.right) == right
        sign, result = code(updated.operator), None
        if left is not None and right is not None:
            worth = eval(f"{left} {sign} {right}")
            result = expression(str(worth)) if isinstance(worth, int) and not written else None
        elif (sign, right) in {("+", 0), ("-", 0)} or (sign in ("*", "//") and is_one(updated.right)):
            result = updated.left
        elif (sign, left) == ("+", 0) or (sign == "*" and is_one(updated.left)):
            result = updated.right
        elif left == 0 and sign in ("*", "//", "%") and code(updated.right) in self.constants:
            result = updated.left
        return in_place_of(updated, result) if result else updated


class Substitute(Rewriter):
    """Puts expressions in place of names that are read."""

    def __init__(self, replacements: dict[str, cst.BaseExpression], constants=frozenset()):
        self.replacements, self.constants = replacements, constants

    def leave_Name(self, original, updated):
        found = self.replacements.get(original.value)
        return found.deep_clone() if found else updated


def call_site(node: cst.CSTNode) -> tuple[cst.BaseExpression, list] | None:
    """(function, arguments) of a call, or of the pair (function, (arguments)) that stands for a call yet to come."""
    if isinstance(node, cst.Call):
        return node.func, list(node.args)
    if isinstance(node, cst.Tuple) and len(node.elements) == 2:
        first, second = (element.value for element in node.elements)
        if isinstance(second, cst.Tuple):
            return first, list(second.elements)
    return None


def with_arguments(node: cst.CSTNode, arguments: list) -> cst.CSTNode:
    """The call with other arguments, on one line unless there are comments between them."""
    if "#" not in code(node):
        arguments = [argument.with_changes(comma=cst.MaybeSentinel.DEFAULT) for argument in arguments]
        if isinstance(node, cst.Call):
            node = node.with_changes(whitespace_before_args=cst.SimpleWhitespace(""))
    if isinstance(node, cst.Call):
        return node.with_changes(args=arguments)
    second = node.elements[1]
    return node.with_deep_changes(second.value, elements=arguments)


def matched(arguments: list, names: list[str]) -> list[str] | None:
    """The parameter that each argument is for, None where that is not to be seen."""
    found = []
    for position, argument in enumerate(arguments):
        if isinstance(argument, cst.StarredElement) or getattr(argument, "star", ""):
            return None
        keyword = getattr(argument, "keyword", None)
        if keyword is None and position >= len(names):
            return None
        found.append(keyword.value if keyword else names[position])
    return found


def fresh(name: str, taken: Iterable[str]) -> str:
    number, found = 2, name
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    return found


def with_parameters(function: cst.FunctionDef, kept: list[cst.Param], gone: set[str]) -> cst.FunctionDef:
    """The function with some of its parameters, and without the names of the others in lists of its decorators."""
    if not gone:
        return function
    names = {parameter.name.value for parameter in kept}
    keywords = {parameter.name.value for parameter in function.params.kwonly_params}
    kept = [parameter.with_changes(comma=cst.MaybeSentinel.DEFAULT) for parameter in kept]
    changed = function.params.with_changes(
        params=[parameter for parameter in kept if parameter.name.value not in keywords],
        kwonly_params=[parameter for parameter in kept if parameter.name.value in keywords],
        star_arg=function.params.star_arg if names & keywords else cst.MaybeSentinel.DEFAULT,
    )
    without = _WithoutStrings(gone)
    decorators = [decorator.visit(without) for decorator in function.decorators]
    return function.with_changes(
        params=changed, decorators=decorators, whitespace_before_params=cst.SimpleWhitespace("")
    )


class _WithoutStrings(cst.CSTTransformer):
    """Drops strings that are among some names from lists."""

    def __init__(self, names: set[str]):
        self.names = names

    def leave_List(self, original, updated):
        kept = [part for part in updated.elements if code(part.value).strip("\"'") not in self.names]
        if len(kept) == len(updated.elements):
            return updated
        return updated.with_changes(elements=[part.with_changes(comma=cst.MaybeSentinel.DEFAULT) for part in kept])
