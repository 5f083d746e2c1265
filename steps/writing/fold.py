"""Folding: a function is read with what is known of its parameters, and known branches come to what they are."""

from __future__ import annotations

import builtins
import dataclasses
import inspect
import textwrap
import types
from dataclasses import dataclass, field

import libcst as cst
from libcst import matchers

from steps.writing.trees import (
    Rewriter,
    Substitute,
    assignment,
    bare,
    chain,
    code,
    found_in,
    in_place_of,
    is_heading,
    is_pass,
    parameters,
    pure,
    uses,
)
from steps.writing.values import (
    CannotFlatten,
    Constant,
    Values,
    distinct,
    equal,
    is_structure,
    label_of,
    named,
    own,
    plain_function,
)

PURE = (min, max, len, abs, int, float, bool, isinstance, range, tuple)  # built-in functions that may be run here


@dataclass(eq=False)
class Function:
    """A function of the project that the entry calls, by itself or through others.

    facts: what its parameters are at the calls seen so far. known: what is known of its parameters and locals.
    folded: what its source comes to with that. used_whole: it is not only called, so that nothing is known.
    folded_with: how much was known then; facts only grow. asks: whether it also depends on what others came to.
    kernel: whether it is launched, so that each of its parameters is a constant or is passed.
    """

    function: types.FunctionType
    name: str
    others: dict[types.FunctionType, Function]
    facts: dict[str, Values] = field(default_factory=dict)
    known: dict[str, Values] = field(default_factory=dict)
    used_whole: bool = False
    folded: cst.FunctionDef | None = None
    folded_with: list | None = None
    asks: bool = False
    kernel: bool = False

    def __post_init__(self):
        self.text = textwrap.dedent(inspect.getsource(self.function))
        self.source = cst.parse_statement(self.text)
        if not isinstance(self.source, cst.FunctionDef):
            raise self.error("not a function written with def", self.source)
        closure = inspect.getclosurevars(self.function).nonlocals
        self.captured = {**vars(builtins), **self.function.__globals__, **closure}
        self.locals = set(self.function.__code__.co_varnames) | set(self.function.__code__.co_cellvars)
        self.parameters = [parameter.name.value for parameter in parameters(self.source)]
        if self.source.params.star_kwarg or isinstance(self.source.params.star_arg, cst.Param):
            raise self.error("* and ** in parameters are not followed", self.source.params)

    def error(self, reason: str, node: cst.CSTNode) -> CannotFlatten:
        text = code(node)
        line = self.function.__code__.co_firstlineno + self.text[: max(0, self.text.find(text))].count("\n")
        file = self.function.__code__.co_filename
        return CannotFlatten(f"{self.function.__qualname__}, {file} line {line}: {reason}: {text.splitlines()[0]}")

    def lookup(self, name: str) -> Values:
        """What a name stands for."""
        if name in self.locals:
            return self.known.get(name)
        if name not in self.captured:
            return None
        value = self.captured[name]
        if type(value).__name__ == "constexpr":
            value = value.value
        return (Constant(value, label_of(name, value)),)

    def evaluate(self, node: cst.BaseExpression) -> Values:
        """What an expression may be, None where that is known only when the kernel runs."""
        found = uses(node)
        if found.stores or not all(self._may_run(call) for call in found.calls if isinstance(call, cst.Call)):
            return None
        names = {name: self.lookup(name) for name in found.loads}
        if any(values is None for values in names.values()):
            return None
        several = [name for name, values in names.items() if len(values) > 1]
        if len(several) > 1:
            return None
        results = []
        path = chain(node)
        for constant in names[several[0]] if several else (None,):
            chosen = {name: constant if name in several else values[0] for name, values in names.items()}
            if path and len(path) == 1:
                results.append(chosen[path[0]])
                continue
            try:
                value = eval(code(bare(node)), {name: known.value for name, known in chosen.items()})
            except Exception:  # in a branch that is not taken; one that is keeps a name that nothing explains
                return None
            root = chosen[path[0]].label if path else None
            parts = [root, *path[1:]] if path and root else path[1:] if path else []
            results.append(Constant(value, None if root is None else "_".join(parts).upper()))
        if path and len(path) == 1:
            return tuple(results)
        return distinct(results, lambda a, b: equal(a.value, b.value))

    def _may_run(self, call: cst.Call) -> bool:
        """Whether a call has a value that depends on nothing but its arguments: min, a dataclass, a method of one."""
        names = chain(call.func)
        if not names or self.lookup(names[0]) is None:
            return False
        values = self.evaluate(call.func)
        value = values[0].value if values and len(values) == 1 else None
        if inspect.ismethod(value):
            return is_structure(value.__self__)
        return any(value is function for function in PURE) or (
            isinstance(value, type) and own(value) and dataclasses.is_dataclass(value)
        )

    def single(self, node: cst.BaseExpression) -> object:
        """The one value of an expression, None where there are several or none is known."""
        values = self.evaluate(node)
        return values[0].value if values and len(values) == 1 else None

    def fold(self) -> None:
        """Replace branches by what they come to, until nothing changes."""
        if self.folded_with == (facts := self.extent()) and not self.asks:
            return
        self.folded, self.folded_with = self.source, facts
        while True:
            self.known = self._known(self.folded)
            now = self.folded.visit(Fold(self))
            if now.deep_equals(self.folded):
                return
            self.folded = now

    def extent(self) -> list:
        """How much is known of each parameter."""
        return [(name, values and len(values)) for name, values in self.facts.items()]

    def _known(self, tree: cst.FunctionDef) -> dict[str, Values]:
        """Parameters that are the same at every call, and locals that are assigned a constant once."""
        stores = uses(tree).stores
        self.known = {name: values for name, values in self.facts.items() if values and not stores[name]}

        for line in found_in(tree, cst.SimpleStatementLine):
            target, value = assignment(line) or (None, None)
            if isinstance(target, cst.Name) and stores[target.value] == 1 and target.value not in self.parameters:
                self.known[target.value] = self.evaluate(value)
        return {name: values for name, values in self.known.items() if values}

    def assigned(self, name: str) -> tuple[cst.BaseExpression, int | None] | None:
        """(value, place in it) of the one assignment to a local; the place is None where it gets all of the value."""
        if name in self.parameters or uses(self.folded).stores[name] != 1:
            return None
        for line in found_in(self.folded, cst.SimpleStatementLine):
            target, value = assignment(line) or (None, None)
            if isinstance(target, cst.Name) and target.value == name:
                return value, None
            if isinstance(target, cst.Tuple):
                names = [code(element.value) for element in target.elements]
                if name in names:
                    return value, names.index(name)
        return None

    def is_tuple(self, node: cst.BaseExpression) -> bool | None:
        """Whether an expression is a tuple when the kernel runs, None where the source does not tell."""
        if isinstance(node, cst.Tuple):
            return True
        if isinstance(node, cst.Name) and (found := self.assigned(node.value)):
            value, place = found
            self.asks = True
            callee = self.others.get(plain_function(self.single(value.func))) if isinstance(value, cst.Call) else None
            if callee is None:
                return self.is_tuple(value) if place is None else None
            results = [line.value for line in found_in(callee.folded or value, cst.Return)]
            if place is not None and all(isinstance(result, cst.Tuple) for result in results):
                results = [result.elements[place].value for result in results]
                answers = {callee.is_tuple(result) for result in results}
                return answers.pop() if len(answers) == 1 else None
        if isinstance(node, cst.Call) and (function := self.single(node.func)):
            returned = getattr(function, "__annotations__", {}).get("return")
            if returned and not own(function):
                return None if "tuple" in str(returned).lower() else False
        return None

    def vanishes(self, name: str) -> bool:
        """Whether a parameter is one constant, and a local is nothing but another name of one."""
        values = self.known.get(name)
        if not values or len(values) > 1:
            return False
        if name in self.parameters:
            return not self.used_whole
        [known] = values
        if plain_function(known.value) or is_structure(known.value) or isinstance(known.value, type | types.ModuleType):
            return True
        return named(known.value) and known.label is not None


class Fold(Rewriter):
    """Replaces what has a known test by what it comes to, and loops of one turn by that turn."""

    def __init__(self, function: Function):
        self.function = function

    def replace(self, statement, following):
        if isinstance(statement, cst.If):
            return self._branch(statement)
        if isinstance(statement, cst.For):
            return self._turns(statement)
        return self._apart(statement)

    def _apart(self, statement: cst.BaseStatement) -> list | None:
        """``a, b = x, y`` as two assignments, where one value is a dataclass: it has no text of its own."""
        target, value = assignment(statement) or (None, None)
        if not isinstance(target, cst.Tuple) or not isinstance(value, cst.Tuple):
            return None
        targets, values = ([element.value for element in part.elements] for part in (target, value))
        if len(targets) != len(values) or not any(is_structure(self.function.single(part)) for part in values):
            return None
        if set(uses(value).loads) & set(uses(*targets).loads):
            return None
        lines = [
            cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(left)], right)])
            for left, right in zip(targets, values, strict=True)
        ]
        return [lines[0].with_changes(leading_lines=statement.leading_lines), *lines[1:]]

    def test(self, node: cst.BaseExpression) -> bool | cst.BaseExpression:
        """True or False for a test whose result is known, or what is left to ask."""
        values = self.function.evaluate(node)
        if values is not None:
            results = {bool(value.value) for value in values}
            return results.pop() if len(results) == 1 else node
        if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not):
            inner = self.test(node.expression)
            return not inner if isinstance(inner, bool) else node.with_changes(expression=inner)
        if isinstance(node, cst.BooleanOperation):
            decides = isinstance(node.operator, cst.Or)  # what settles it, from either side
            left, right = self.test(node.left), self.test(node.right)
            if isinstance(left, bool):
                return decides if left is decides else right
            if isinstance(right, bool):
                if right is not decides:
                    return left
                return decides if pure(left) else node.with_changes(left=left, right=cst.Name(str(right)))
            return node.with_changes(left=left, right=right)
        if isinstance(node, cst.Call) and self._is_static_eval(node):
            return self.test(node.args[0].value)
        given = matchers.Comparison(
            left=matchers.Name(), comparisons=[matchers.ComparisonTarget(matchers.IsNot(), matchers.Name("None"))]
        )
        if self.function.kernel and matchers.matches(node, given):
            return True if node.left.value in self.function.facts else node
        asks = matchers.Call(func=matchers.Name("isinstance"), args=[matchers.Arg(), matchers.Arg()])
        if matchers.matches(node, asks) and self.function.single(node.args[1].value) is tuple:
            answer = self.function.is_tuple(node.args[0].value)
            return node if answer is None else answer
        return node

    def _branch(self, statement: cst.If) -> list:
        result = self.test(statement.test)
        otherwise = statement.orelse
        if result is True:
            return self._taken(statement, statement.body)
        if result is False:
            if isinstance(otherwise, cst.If):
                return self._branch(otherwise.with_changes(leading_lines=statement.leading_lines))
            return self._taken(statement, otherwise.body) if otherwise else []
        if isinstance(otherwise, cst.If):
            left = self._branch(otherwise)
            if len(left) == 1 and isinstance(left[0], cst.If):
                otherwise = left[0]
            else:
                otherwise = cst.Else(cst.IndentedBlock(left)) if left else None
        return [statement.with_changes(test=result, orelse=otherwise)]

    def _taken(self, statement: cst.BaseStatement, block: cst.BaseSuite) -> list:
        """The statements of a block in place of the statement that it belongs to; its comments go before the first."""
        body = [part for part in block.body if not is_pass(part)]
        if body:
            lines = [*statement.leading_lines, *body[0].leading_lines]
            body[0] = body[0].with_changes(leading_lines=lines)
        return body

    def _turns(self, statement: cst.For) -> list | None:
        """The one turn of a loop that the compiler would unroll, with what its targets are in that turn."""
        loop, targets = statement.iter, [statement.target]
        if isinstance(targets[0], cst.Tuple):
            targets = [element.value for element in targets[0].elements]
        if not isinstance(loop, cst.Call) or len(loop.args) != 1:
            return None
        name, [argument] = getattr(self.function.single(loop.func), "__name__", ""), loop.args
        if name == "static_range":
            turns = self.function.single(argument.value)
            values = [cst.Integer("0")]
        elif name == "static_iter":
            counted = matchers.matches(
                argument.value, matchers.Call(func=matchers.Name("enumerate"), args=[matchers.Arg()])
            )
            through = argument.value.args[0].value if counted else argument.value
            if not isinstance(through, cst.Name) or not (found := self.function.assigned(through.value)):
                return None
            if not isinstance(found[0], cst.Tuple) or found[1] is not None:
                return None
            turns = len(found[0].elements)
            values = [cst.Integer("0")] * counted + [element.value for element in found[0].elements[:1]]
        else:
            return None
        if turns == 0:
            return []
        stores = uses(self.function.folded).stores
        kept = all(isinstance(value, cst.Integer) or stores[code(value)] == 1 for value in values)
        if turns != 1 or not kept or any(uses(statement.body).stores[code(target)] for target in targets):
            return None
        put = dict(zip(map(code, targets), values, strict=True))
        headings = [line for line in statement.leading_lines if is_heading(line)]
        return self._taken(statement.with_changes(leading_lines=headings), statement.body.visit(Substitute(put)))

    def leave_Call(self, original, updated):
        """What is asked of the compiler as ``static_eval(...)`` is written without it where it is a tuple."""
        tuple_alone = matchers.matches(updated, matchers.Call(args=[matchers.Arg(value=matchers.Tuple())]))
        return updated.args[0].value if tuple_alone and self._is_static_eval(updated) else updated

    def _is_static_eval(self, call: cst.Call) -> bool:
        return getattr(self.function.single(call.func), "__name__", "") == "static_eval"

    def leave_IfExp(self, original, updated):
        result = self.test(updated.test)
        if not isinstance(result, bool):
            return updated.with_changes(test=result)
        return in_place_of(updated, updated.body if result else updated.orelse)

    def leave_BooleanOperation(self, original, updated):
        """What is left where one side is known; of the right side only behind a comparison, which is True or False."""
        right = self.test(updated.right) if isinstance(updated.left, cst.Comparison) else None
        if right is isinstance(updated.operator, cst.And):
            return in_place_of(updated, updated.left)
        values = self.function.evaluate(updated.left)
        results = {bool(value.value) for value in values or ()}
        if len(results) != 1:
            return updated
        decided = results.pop() is isinstance(updated.operator, cst.Or)
        return in_place_of(updated, updated.left if decided else updated.right)
