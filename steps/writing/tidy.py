"""Tidying: what has lost its purpose goes, such as calls of functions that do nothing and names for other names."""

from __future__ import annotations

from collections import Counter

import libcst as cst

from steps.writing.inline import Rename
from steps.writing.program import Program
from steps.writing.prune import Fields, fields_of, function_documented, named_tuple, with_fields
from steps.writing.results import overwritten
from steps.writing.trees import (
    LINE_LENGTH,
    Rewriter,
    assignment,
    bare,
    call_site,
    chain,
    code,
    effectless,
    found_in,
    is_atom,
    is_pass,
    matched,
    parameters,
    pure,
    small,
    statements,
    together,
    uses,
    with_arguments,
    with_parameters,
)

DECIDED = (cst.BooleanOperation, cst.Comparison, cst.IfExp)  # the compiler keeps them constant only where a name is
SELDOM = 2  # calls of a function that need no name for what it does
SHORT = 80  # characters of an expression that needs no function
LONG = 8  # characters of a number
MODULES = ("gl",)  # whose names, such as that of a type, need no other
TERSE, TERSE_ALONE = 40, 48  # characters of one that is no longer than a call, however often it is called


class Tidy(Rewriter):
    """One pass over a function of the finished program."""

    def __init__(self, text: Text, name: str):
        self.text, self.name = text, name
        self.constants = text.constants
        self.total = uses(text.functions[name].body)
        added = found_in(text.functions[name].body, cst.AugAssign)
        counts = Counter(line.target.value for line in added if isinstance(line.target, cst.Name) and pure(line.value))
        self.idle = {name for name, n in counts.items() if self.total.loads[name] == n}  # counters that nothing reads
        self.own_names = {part.name.value for part in parameters(text.functions[name])}
        self.moved = False  # whether a name was put in place of another: once in a pass, as the counts then change

    def replace(self, statement, following):
        line = small(statement)
        if isinstance(line, cst.Expr):
            return [] if self._does_nothing(line.value) else None
        if isinstance(line, cst.AugAssign):
            return [] if isinstance(line.target, cst.Name) and line.target.value in self.idle else None
        if isinstance(statement, cst.If):
            return self._without_empty(statement)
        found = assignment(statement)
        if not found:
            return None
        target, value = (bare(part) for part in found)
        if code(target) == code(value):
            return []
        if isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple):
            if self._assigns_nothing(target, value):
                return []
            return self._apart(statement, target, value, following)
        if not isinstance(target, cst.Name):
            return None
        if effectless(value, self.text.classes) and (
            not self.total.loads[target.value] or overwritten(target.value, following)
        ):
            return []
        if len(following) == 1 and isinstance(last := small(following[0]), cst.Return) and last.value:  # noqa: SIM102
            if code(last.value) == target.value and not statement.trailing_whitespace.comment:  # a = x, return a
                last = last.with_changes(value=found[1])
                following[:] = [following[0].with_changes(body=[last], leading_lines=statement.leading_lines)]
                return []
        if isinstance(line, cst.AnnAssign):
            following[:] = [self._as_before(target.value, value, part) for part in following]
        if self._is_alias(target.value, value, following) or self._is_used_once(statement, following):
            self.moved = True
            put = Rename({target.value: value}, self.constants)
            following[:] = [part.visit(put) for part in following]
            return []
        return None

    def _assigns_nothing(self, target: cst.Tuple, value: cst.Tuple) -> bool:
        """Whether each of several names is assigned itself, or nothing reads it."""
        names, values = ([element.value for element in part.elements] for part in (target, value))
        return len(names) == len(values) and all(
            code(name) == code(one) or (isinstance(name, cst.Name) and not self.total.loads[name.value] and pure(one))
            for name, one in zip(names, values)
        )

    def _does_nothing(self, node: cst.BaseExpression) -> bool:
        if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Name):
            return False
        callee = None if node.func.value in self.text.keep else self.text.functions.get(node.func.value)
        return callee is not None and not statements(callee) and all(pure(part.value) for part in node.args)

    def _without_empty(self, statement: cst.If) -> list:
        otherwise = statement.orelse
        if isinstance(otherwise, cst.If):
            left = self._without_empty(otherwise)
            otherwise = left[0] if left else None
        elif otherwise and all(map(is_pass, otherwise.body.body)):
            otherwise = None
        if otherwise is None and all(map(is_pass, statement.body.body)) and pure(statement.test):
            return []
        return [statement.with_changes(orelse=otherwise)]

    def _is_alias(self, name: str, value: cst.BaseExpression, following: list) -> bool:
        """Whether all that reads a name stands behind this assignment, with neither name assigned in between."""
        if self.moved or _is_long(value):
            return False
        its = self._is_field(value) or (chain(value) or [""])[0] in MODULES
        if not (its or isinstance(value, cst.Name | cst.BaseNumber | cst.SimpleString)):
            return False
        after = uses(*following)
        read = after.loads[name] == self.total.loads[name] and not after.stores[name]
        return read and not set(uses(value).loads) & set(after.stores)

    def _is_field(self, value: cst.BaseExpression) -> bool:
        """Whether it is a field of a named tuple, which is a name for something as well."""
        return isinstance(value, cst.Attribute) and code(value.value) in self.text.fields.variables

    def _apart(self, statement, target: cst.Tuple, value: cst.Tuple, following: list) -> list | None:
        """``a, b = x, y`` as two assignments, where one of them has no purpose, or both are too long for a line.

        Or as one, where all the others are of names to themselves.
        """
        if len(value.elements) != len(target.elements):
            return None
        pairs = [(left.value, right.value) for left, right in zip(target.elements, value.elements, strict=True)]
        if not all(isinstance(left, cst.Name) for left, _ in pairs):
            return None
        others = [(left, right) for left, right in pairs if code(left) != code(right)]
        if len(others) == 1:  # the rest are assigned themselves
            line = cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(others[0][0])], others[0][1])])
            return [line.with_changes(leading_lines=statement.leading_lines)]
        names = [left.value for left, _ in pairs]
        if {*names} & {*uses(value).loads}:
            return None
        wide = len(code(small(statement))) > LINE_LENGTH - 12
        if not wide and not any(
            not self.total.loads[name] or self._is_alias(name, part, following)
            for name, (_, part) in zip(names, pairs, strict=True)
        ):
            return None
        lines = [cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(left)], right)]) for left, right in pairs]
        return [lines[0].with_changes(leading_lines=statement.leading_lines), *lines[1:]]

    @staticmethod
    def _as_before(name: str, value: cst.BaseExpression, statement: cst.BaseStatement) -> cst.BaseStatement:
        """A later constant of the same value as another name for this one."""
        line = small(statement)
        if not isinstance(line, cst.AnnAssign) or code(line.value or line.target) != code(value):
            return statement
        return statement.with_changes(body=[cst.Assign([cst.AssignTarget(line.target)], cst.Name(name))])

    def _is_used_once(self, statement: cst.SimpleStatementLine, following: list) -> bool:
        """Whether a constant of the function is read by one statement, which stays short with it."""
        line = small(statement)
        if self.moved or not isinstance(line, cst.AnnAssign) or found_in(line.value, *DECIDED) or _is_long(line.value):
            return False
        name = line.target.value
        if self.total.loads[name] != 1 or statement.trailing_whitespace.comment or not following:
            return False
        after = uses(*following)
        if set(uses(line.value).loads) & set(after.stores) or after.loads[name] != 1:
            return False
        readers = [part for part in found_in(cst.Module(following), cst.SimpleStatementLine) if uses(part).loads[name]]
        return len(readers) == 1 and len(code(readers[0])) + len(code(line.value)) < LINE_LENGTH - 12

    def leave_Attribute(self, original, updated):
        return self.text.fields.constant(original) or super().leave_Attribute(original, updated)

    def leave_Call(self, original, updated):
        if (made := code(updated.func)) in self.text.classes:
            return self._made_with_less(updated, self.text.fields.names[made], self.text.had[made])
        callee, site = self.text.callee(updated)
        if callee is None:
            return updated
        less = self._with_less(updated, callee, site)
        if less is not updated:
            return less
        result = None if callee in self.text.keep else self._returned(updated, callee)
        return together(result) if result else updated

    def _alone(self, original, updated):
        """What came in place of a call needs no parentheses where it is a whole value."""
        came = isinstance(original.value, cst.Call) and not isinstance(updated.value, cst.Call)
        return updated.with_changes(value=bare(updated.value)) if came else updated

    leave_Assign = leave_AnnAssign = leave_Return = leave_Expr = _alone

    def leave_Arg(self, original, updated):
        updated = super().leave_Arg(original, updated)
        return updated if isinstance(updated.value, cst.Tuple) else self._alone(original, updated)

    def leave_Tuple(self, original, updated):
        callee, site = self.text.callee(updated)
        return self._with_less(updated, callee, site) if callee else updated

    @staticmethod
    def _made_with_less(node: cst.Call, fields: list[str], had: list[str]) -> cst.Call:
        """A named tuple without the fields that nothing reads."""
        names = matched(list(node.args), had) or had
        kept = [part for part, name in zip(node.args, names, strict=False) if name in fields]
        return with_arguments(node, kept) if len(kept) < len(node.args) else node

    def _with_less(self, node, callee, site):
        gone = self.text.unused[callee]
        names = matched(site, [part.name.value for part in parameters(self.text.functions[callee])])
        kept = [part for part, name in zip(site, names, strict=True) if name not in gone]
        return with_arguments(node, kept) if len(kept) < len(site) else node

    def _returned(self, node: cst.Call, callee: str) -> cst.BaseExpression | None:
        """What a call comes to, for a function that hands arguments back or has become a short expression of them.

        What is written as a short function stays one where it is called often: its name tells what the expression is.
        """
        function = self.text.functions[callee]
        body = statements(function)
        value = small(body[0]).value if len(body) == 1 and isinstance(small(body[0]), cst.Return) else None
        names = [part.name.value for part in parameters(function)]
        given = dict(zip(matched(list(node.args), names), (part.value for part in node.args), strict=True))
        counts = uses(value).loads if value else Counter()
        if value is None or set(names) - set(given):
            return None
        parts = [element.value for element in value.elements] if isinstance(value, cst.Tuple) else [value]
        if all(isinstance(part, cst.Name) and part.value in names for part in parts):
            fits = sum(not pure(part) for part in given.values()) <= 1
        else:
            seldom, length = self.text.called[callee] <= SELDOM, len(code(value))
            fits = (seldom or callee in self.text.switched or length <= self.text.terse) and length <= SHORT
            fits = fits and sum(not pure(part) for part in given.values()) <= int(seldom)
            fits = fits and not (set(counts) - set(names)) & (set(self.total.stores) | self.own_names)
        for name, part in given.items():
            fits = fits and (counts[name] == 1 or (pure(part) and (is_atom(part) or not counts[name])))
        if not fits:
            return None
        return value.visit(Rename(given))

    def leave_FunctionDef(self, original, updated):
        gone = self.text.unused[self.name]
        return with_parameters(updated, [part for part in parameters(updated) if part.name.value not in gone], gone)

    def leave_TrailingWhitespace(self, original, updated):
        if updated.comment and updated.comment.value.startswith("# noqa"):
            return updated.with_changes(comment=None, whitespace=cst.SimpleWhitespace(""))
        return updated


def _is_long(value: cst.BaseExpression) -> bool:
    """Whether it is a number that only its name explains, such as ln 2."""
    return isinstance(value, cst.Float) and len(value.value) > LONG


class Text:
    """The functions of the finished program by name, tidied until nothing changes."""

    def __init__(self, program: Program, keep: frozenset[str] = frozenset(), alone: bool = False):
        self.keep, self.terse = keep, TERSE_ALONE if alone else TERSE  # keep: functions whose calls stay
        self.functions, self.constants = program.spell(keep), frozenset(program.constants)
        self.entries = [kernel.name for kernel in program.entries]
        tuples = {cls.__name__: named_tuple(source) for cls, source in program.classes.items()}
        self.classes = {name: tree for name, tree in tuples.items() if tree}
        branches = (cst.If, cst.IfExp)
        self.switched = {  # functions that lost a branch
            function.name
            for function in program.functions.values()
            if len(found_in(function.source, *branches)) > len(found_in(function.folded, *branches))
        }
        self.parameters = {function.name: function.parameters for function in program.functions.values()}
        self.tidy()

    def tidy(self) -> None:
        """Take away what has no purpose, until nothing has.

        A function is looked at again where it, or one that it names, has changed, or needs other parameters.
        """
        seen: dict[str, list] = {}
        while True:
            self._reach()
            self.unused = self._unused()
            self.called = sum((uses(tree).loads for tree in self.functions.values()), Counter())
            self.had = {name: fields_of(tree) for name, tree in self.classes.items()}
            self.fields = Fields(self.classes, self.functions.values(), self.constants, self.keep)
            now = {}
            for name, tree in self.functions.items():
                its = [name, *sorted(other for other in uses(tree).loads if other in self.functions)]
                about = [(self.functions[other], self.unused[other]) for other in its]
                about += [self.called[other] <= SELDOM for other in its]
                about += [self.fields.names, self.fields.constants]
                if seen.get(name) != about:
                    seen[name] = about
                    made = tree.visit(Tidy(self, name))
                    now[name] = tree if made.deep_equals(tree) else made
            if all(self.functions[name] is tree for name, tree in now.items()):
                return
            self.functions |= now
            self.classes = {name: with_fields(tree, self.fields.names[name]) for name, tree in self.classes.items()}

    def documented(self) -> dict[str, cst.FunctionDef]:
        """The functions with docstrings that speak of no parameter that is gone."""
        return {name: function_documented(tree, self.parameters[name]) for name, tree in self.functions.items()}

    def callee(self, node: cst.CSTNode) -> tuple[str | None, list]:
        site = call_site(node)
        known = site and isinstance(site[0], cst.Name) and site[0].value in self.functions
        return (site[0].value, site[1]) if known else (None, [])

    def _reach(self) -> None:
        """Keep what the entry names, by itself or through others."""
        reached, todo = set(), [*self.entries]
        while todo:
            name = todo.pop()
            if name not in reached:
                reached.add(name)
                todo += [other for other in uses(self.functions[name]).loads if other in self.functions]
        self.functions = {name: tree for name, tree in self.functions.items() if name in reached}

    def _unused(self) -> dict[str, set[str]]:
        """For every function parameters that nothing reads, where leaving out the arguments loses nothing."""
        unused = {}
        for name, tree in self.functions.items():
            found = uses(tree.body)
            names = {part.name.value for part in parameters(tree)} if name not in self.entries else set()
            unused[name] = {part for part in names if not found.loads[part] and not found.stores[part]}
        for tree in self.functions.values():
            found = uses(tree)
            calls = set()
            for node in found.calls:
                callee, site = self.callee(node)
                if callee:
                    calls.add(id(call_site(node)[0]))
                    names = matched(site, [part.name.value for part in parameters(self.functions[callee])])
                    for name, argument in zip(names, site, strict=True):
                        if not pure(argument.value):
                            unused[callee].discard(name)
            for node in found.chains:
                if isinstance(node, cst.Name) and node.value in self.functions and id(node) not in calls:
                    unused[node.value] = set()
        return unused
