"""Pruning: fields of named tuples that nothing reads, and what docstrings say of what is not there."""

from __future__ import annotations

import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable

import libcst as cst

from steps.writing.trees import LINE_LENGTH, assignment, code, found_in, matched, parameters, pure

LABELED = re.compile(r"(\w+(?:, \w+)*): ")  # "key, value: rings."


class Fields:
    """The fields of a program's named tuples: those that something reads, and those that are always one constant.

    names: of each class. constants: what may stand in place of ``variable.field``, by class and field. keep: names of
    classes that functions make which are not among these: all of their fields count as read.
    """

    def __init__(
        self,
        classes: dict[str, cst.ClassDef],
        functions: Iterable[cst.FunctionDef],
        constants: frozenset,
        keep: frozenset[str] = frozenset(),
    ):
        functions = list(functions)
        self.names = {name: fields_of(tree) for name, tree in classes.items()}
        self.variables = {}  # that hold a tuple: name -> its class
        made = defaultdict(list)
        for tree in functions:
            for call in found_in(tree, cst.Call):
                if code(call.func) in self.names:
                    made[code(call.func)].append(call)
            for line in found_in(tree, cst.SimpleStatementLine):
                target, value = assignment(line) or (None, None)
                if isinstance(target, cst.Name) and isinstance(value, cst.Call) and code(value.func) in self.names:
                    self.variables[target.value] = code(value.func)
        given = {name: self._given(name, calls) for name, calls in made.items()}
        read = defaultdict(set)
        for tree in functions:
            for node in found_in(tree, cst.Attribute):
                read[self.variables.get(code(node.value))].add(node.attr.value)
        self.constants = {}
        for name, fields in self.names.items():
            if name in keep:
                continue
            for field, values in given.get(name, {}).items():
                only = {code(value) for value in values}
                plain = all(isinstance(value, cst.Integer) or code(value) in constants for value in values)
                if len(only) == 1 and len(values) == len(made[name]) and plain:
                    self.constants[name, field] = values[0]
            if given.get(name) is not None:
                needed = read[name] | read[None]
                needed |= {field for field, values in given[name].items() if not all(map(pure, values))}
                self.names[name] = [field for field in fields if field in needed] or fields

    def _given(self, name: str, calls: list[cst.Call]) -> dict[str, list[cst.BaseExpression]] | None:
        """What every field is given, None where a call does not tell."""
        given = defaultdict(list)
        for call in calls:
            names = matched(list(call.args), self.names[name])
            if names is None:
                return None
            for field, argument in zip(names, call.args, strict=True):
                given[field].append(argument.value)
        return given

    def constant(self, node: cst.Attribute) -> cst.BaseExpression | None:
        """What stands in place of ``variable.field``, or None."""
        return self.constants.get((self.variables.get(code(node.value)), node.attr.value))


def named_tuple(source: str) -> cst.ClassDef | None:
    """The class of this source, if it is a named tuple."""
    tree = cst.parse_statement(source)
    is_one = isinstance(tree, cst.ClassDef) and any(code(base.value) == "NamedTuple" for base in tree.bases)
    return tree if is_one else None


def fields_of(tree: cst.ClassDef) -> list[str]:
    return [line.target.value for line in found_in(tree.body, cst.AnnAssign)]


def as_record(tree: cst.ClassDef) -> str:
    """A named tuple in a line, below what its docstring and the comments of its fields say."""
    name, fields = tree.name.value, fields_of(tree)
    said = [" ".join((tree.get_docstring() or "").split())]
    for line in found_in(tree.body, cst.SimpleStatementLine):
        if beside := line.trailing_whitespace.comment:
            said.append(f"{code(_targets(line)[0])}: {beside.value.lstrip('# ')}.")
    above = textwrap.fill(" ".join(filter(None, said)), LINE_LENGTH, initial_indent="# ", subsequent_indent="# ")
    below = f'{name} = namedtuple("{name}", "{" ".join(fields)}")'
    if len(below) > LINE_LENGTH:
        lines = textwrap.wrap(" ".join(fields), LINE_LENGTH - 2 * len(name) - 20)
        names = "\n    ".join(f'"{line}{" " * (line is not lines[-1])}"' for line in lines)
        below = f'{name} = namedtuple("{name}", {names})  # fmt: skip'
    return f"{above}\n{below}".strip()


def with_fields(tree: cst.ClassDef, names: list[str]) -> cst.ClassDef:
    """A named tuple with these fields alone, of which alone its docstring speaks."""
    gone = set(fields_of(tree)) - set(names)
    body = [
        line
        for line in tree.body.body
        if not (isinstance(line, cst.SimpleStatementLine) and {*map(code, _targets(line))} & gone)
    ]
    return documented(tree.with_deep_changes(tree.body, body=body), names, gone)


def _targets(line: cst.SimpleStatementLine) -> list[cst.BaseExpression]:
    return [part.target for part in line.body if isinstance(part, cst.AnnAssign)]


def function_documented(tree: cst.FunctionDef, before: Iterable[str]) -> cst.FunctionDef:
    """A function whose docstring speaks of no parameter that it had before and has no more."""
    names = [part.name.value for part in parameters(tree)]
    return documented(tree, names, set(before) - set(names))


def documented(tree: cst.FunctionDef | cst.ClassDef, names: Iterable[str], gone: set[str]):
    """With what the docstring says of these names, and of none that is gone; reasons stay in the source.

    Kept are the first paragraph, of the others what they say of names, and what is returned.
    """
    docstring = tree.get_docstring()
    if not docstring:
        return tree
    first, *others = docstring.split("\n\n")
    known = {*names, *gone}
    others = [text for text in others if text.startswith("Returns") or _labels(text) & known]
    kept = [said for text in (first, *others) if (said := _without(text, known, gone))]
    kept[0] = f'"""{kept[0]}'
    width = LINE_LENGTH - 4
    text = "\n\n".join(
        part if max(map(len, part.splitlines())) <= width else textwrap.fill(part, width) for part in kept
    )
    text += '"""' if len(text) + 3 <= width and "\n" not in text else '\n"""'
    line = cst.SimpleStatementLine([cst.Expr(cst.SimpleString(textwrap.indent(text, "    ").strip()))])
    return tree.with_deep_changes(tree.body, body=[line, *tree.body.body[1:]])


def _labels(text: str) -> set[str]:
    """The names that a text begins to speak of."""
    found = LABELED.match(text)
    return set(found[1].split(", ")) if found else set()


def _without(paragraph: str, names: set[str], gone: set[str]) -> str:
    """The paragraph without what is said of names that are gone: ``name: ...`` to the next of its kind."""
    kept, dropping = [], False
    for piece in re.split(r"(?<=[.;]) ", " ".join(paragraph.split())):
        if (labels := _labels(piece)) and labels <= names:
            label, _, said = piece.partition(": ")
            left = [name for name in label.split(", ") if name not in gone]
            dropping, piece = not left, f"{', '.join(left)}: {said}"
        if not dropping:
            kept.append(piece)
    text = re.sub(r";$", ".", " ".join(kept))
    return paragraph if text == " ".join(paragraph.split()) else text
