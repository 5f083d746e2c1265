"""The functions that a kernel runs, and how what is known of them is spelled: as names of constants or as literals."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import enum
import inspect
import json
import sys
import textwrap
import types
from functools import cache, partial

import libcst as cst

from steps.writing.fold import Function
from steps.writing.prune import documented
from steps.writing.trees import (
    LINE_LENGTH,
    Rewriter,
    assignment,
    call_site,
    chain,
    code,
    expression,
    found_in,
    fresh,
    matched,
    uses,
    with_arguments,
    with_parameters,
)
from steps.writing.values import (
    OWN_PACKAGES,
    CannotFlatten,
    Constant,
    Values,
    distinct,
    equal,
    foreign,
    is_instruction,
    is_layout,
    is_structure,
    long,
    named,
    own,
    plain_function,
)

# Instructions of the project's own, and what newer versions of Triton have for them.
STAND_INS = {"async_reduce_shared_to_global": ("tma", "async_atomic_add")}
POSITIONAL = (
    "BlockedLayout",
    "DistributedLinearLayout",
    "NVMMADistributedLayout",
)  # layouts of which everybody knows the order of the arguments
EQUAL = cst.MaybeSentinel.DEFAULT
MOST_VALUES = 8  # that a parameter may have and still be followed


class Program:
    """All functions of a text, and what they name: constants, classes, imports."""

    def __init__(self, entry: object, bound: dict[str, object], *others: tuple[object, dict[str, object]]):
        """others: kernels that are launched beside ``entry``, likewise."""
        self.jit = not isinstance(entry, types.FunctionType)
        self.functions: dict[types.FunctionType, Function] = {}
        self.classes: dict[type, str] = {}
        self.constants: dict[str, object] = {}
        self.imports: dict[str, str] = {}
        self.entries = [self._kernel(*kernel) for kernel in ((entry, bound), *others)]

    def _kernel(self, entry: object, bound: dict[str, object]) -> Function:
        function = plain_function(entry)
        if function in self.functions:  # one kernel with other constants is another kernel
            function = types.FunctionType(
                function.__code__, function.__globals__, None, function.__defaults__, function.__closure__
            )
        kernel = self._function(function)
        kernel.kernel = True
        if unknown := set(bound) - set(kernel.parameters):
            raise ValueError(f"{kernel.name} has no parameter {', '.join(sorted(unknown))}")
        kernel.facts = {name: (Constant(bound[name], ""),) if name in bound else None for name in kernel.parameters}
        return kernel

    def _function(self, function: types.FunctionType) -> Function:
        if function not in self.functions:
            names = {other.name for other in self.functions.values()}
            self.functions[function] = Function(function, fresh(function.__name__, names), self.functions)
        return self.functions[function]

    # --- first phase ---

    def fold(self) -> None:
        """Fold all functions with what their calls tell of their parameters, until the calls tell nothing new."""
        while True:
            before = self._state()
            todo, done = [*self.entries], set()
            while todo:
                function = todo.pop()
                if function not in done:
                    done.add(function)
                    function.fold()
                    todo += self._note_calls(function)
            if self._state() == before:
                break
        self.functions = {key: function for key, function in self.functions.items() if function in done}

    def _state(self) -> list:
        return [(each.name, each.used_whole, each.extent()) for each in self.functions.values()]

    def called(self, function: Function, node: cst.CSTNode) -> tuple[Function, dict[str, cst.CSTNode]] | None:
        """(function of the project, its parameters and the arguments for them) of a call."""
        site = call_site(node)
        found = plain_function(function.single(site[0])) if site else None
        if found is None:
            return None
        callee = self._function(found)
        names = matched(site[1], callee.parameters)
        if names is None:
            raise function.error("arguments that do not tell their parameters", node)
        return callee, dict(zip(names, site[1], strict=True))

    def _note_calls(self, function: Function) -> list[Function]:
        """Add what the calls in a folded function tell; returns the functions that it names."""
        found = uses(function.folded.body)
        callees, functions = [], set()
        for node in found.calls:
            if call := self.called(function, node):
                callee, arguments = call
                functions.add(id(call_site(node)[0]))
                callees.append(callee)
                signature = inspect.signature(callee.function).parameters
                for name in callee.parameters:
                    if name in arguments:
                        values = function.evaluate(arguments[name].value)
                    else:
                        values = (Constant(signature[name].default),)
                    self._learn(callee, name, values)
        for node in found.chains:
            values = function.evaluate(node) if id(node) not in functions else None
            for value in values or ():
                if whole := plain_function(value.value):
                    callee = self._function(whole)
                    callees.append(callee)
                    if not self._handed_on(function, node, found.calls):
                        callee.used_whole = True
                        callee.facts = dict.fromkeys(callee.parameters)
        return callees

    def _handed_on(self, function: Function, node: cst.CSTNode, calls: list) -> bool:
        """Whether a function is named only to be the constant argument of another, or of a local that vanishes."""
        for call in calls:
            if site := self.called(function, call):
                callee, arguments = site
                for name, argument in arguments.items():
                    if argument.value is node:
                        values = callee.facts.get(name)
                        return bool(values) and len(values) == 1
        return any(
            found and found[1] is node and isinstance(found[0], cst.Name) and function.vanishes(found[0].value)
            for found in map(assignment, found_in(function.folded, cst.SimpleStatementLine))
        )

    @staticmethod
    def _learn(callee: Function, name: str, values: Values) -> None:
        known = callee.facts.get(name, ())
        if values is None or known is None:
            callee.facts[name] = None
            return
        known = distinct([*known, *values], Constant.same)
        callee.facts[name] = known if len(known) <= MOST_VALUES else None

    # --- second phase ---

    def fields(self, function: Function, name: str) -> list[str]:
        """Attributes that a function reads of a parameter that is one dataclass here and another there.

        The parameter is replaced by one for each; those that are the same in all the dataclasses are constants.
        """
        values = function.facts.get(name)
        if not values or len(values) < 2 or not all(is_structure(value.value) for value in values):
            return []
        found: dict[str, None] = {}
        folded = uses(function.folded.body)
        for node in folded.chains:
            path = chain(node)
            several = function.evaluate(node) or () if path[0] == name and len(path) > 1 else ()
            if len(several) > 1 and not is_structure(several[0].value):
                found[".".join(path[1:])] = None
        for node in folded.calls:
            callee, arguments = self.called(function, node) or (None, {})
            for other, argument in arguments.items():
                path = chain(argument.value)
                if path and path[0] == name:
                    for rest in self.fields(callee, other):
                        inner = ".".join([*path, rest])
                        if len(function.evaluate(cst.parse_expression(inner)) or ()) > 1:
                            found[inner.partition(".")[2]] = None
        return list(found)

    def spell(self, keep: frozenset[str] = frozenset()) -> dict[str, cst.FunctionDef]:
        """The functions in terms of module-level names; name -> tree. keep: constants that stay."""
        self.keep = keep
        self.reserved = {function.name for function in self.functions.values()}
        for function in self.functions.values():
            stored = {*uses(function.folded).stores, *function.parameters}
            self.reserved |= {name for name in stored if not function.vanishes(name)}
        spelled = {}
        for function in self.functions.values():
            tree = function.folded.visit(Forget({name for name in function.known if function.vanishes(name)}))
            spelled[function.name] = tree.visit(Spell(self, function))
        return spelled

    def constant(self, label: str, value: object) -> str:
        """The name of the module-level constant for a value, made where it is new."""
        name = f"{label}_LAYOUT" if label in self.reserved and is_layout(value) else label
        while name in self.reserved or (name in self.constants and not equal(self.constants[name], value)):
            stem, _, number = name.rpartition("_")
            name = f"{stem}_{int(number) + 1}" if stem and number.isdigit() else f"{name}_2"
        self.constants[name] = value
        return name

    def literal(self, value: object) -> str:
        """Text that makes a value."""
        if isinstance(value, float) and value - value != 0:  # an infinity
            return f'float("{value}")'
        if isinstance(value, str) and long(value):
            wrapped = partial(textwrap.wrap, width=LINE_LENGTH - 24, drop_whitespace=False, replace_whitespace=False)
            return " ".join(json.dumps(part) for line in value.splitlines(True) for part in wrapped(line))
        if value is None or isinstance(value, bool | int | float | str):
            return repr(value)
        if isinstance(value, list | tuple):
            inner = ", ".join(map(self.literal, value))
            return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' * (len(value) == 1)})"
        if isinstance(value, enum.Enum) and (path := self.dotted(type(value))):
            return f"{path}.{value.name}"
        if is_layout(value):
            made = type(value)
            arguments = {part.name: getattr(value, part.name) for part in dataclasses.fields(value) if part.init}
            for name in list(arguments):  # what is so by default goes without saying
                rest = {other: arguments[other] for other in arguments if other != name}
                try:
                    if made(**rest) == value:
                        arguments = rest
                except Exception:  # no default, and the class says so in its own way
                    continue
            positional = made.__name__ in POSITIONAL
            inner = ", ".join(f"{name}=" * (not positional) + self._part(part) for name, part in arguments.items())
            if path := self.dotted(made):
                return f"{path}({inner})"
        raise CannotFlatten(f"{self.entries[0].name}: no text for the constant {value!r}")

    def _part(self, value: object) -> str:
        """A constant inside another: by its name where it has one."""
        if is_layout(value):
            for name, other in self.constants.items():
                if equal(other, value):
                    return name
        return self.literal(value)

    def dotted(self, thing: object) -> str | None:
        """How a thing of another package is reached through a module that the source imports: "gl.barrier"."""
        for function in self.functions.values():
            origin = function.function.__module__
            for alias, module in function.function.__globals__.items():
                if not isinstance(module, types.ModuleType) or own(module) or alias.startswith("__"):
                    continue
                for name in (getattr(thing, "__name__", ""), *vars(module)):
                    if name and getattr(module, name, None) is thing and self.imported(origin, alias):
                        return f"{alias}.{name}"
        return None

    def imported(self, module: str, name: str) -> bool:
        """Note the import of a name as the source has it; False where a module does not import the name."""
        for node in module_body(module):
            for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
                if (alias.asname or alias.name) != name:
                    continue
                if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in OWN_PACKAGES:
                    if self.imported(node.module, alias.name):
                        return True
                    thing = getattr(sys.modules[node.module], alias.name)
                    if is_instruction(thing):
                        return bool(self.class_name(thing))
                    if own(thing) or thing.__module__ != node.module:
                        return False  # its source is part of the text, or another package has it
                renamed = f" as {alias.asname}" if alias.asname else ""
                origin = f"from {node.module} " if isinstance(node, ast.ImportFrom) else ""
                self.imports[name] = f"{origin}import {alias.name}{renamed}"
                return True
        return False

    def stand_in(self, module: str, thing: object) -> cst.BaseExpression | None:
        """What Triton has for an instruction of the project's own, where the installed version has it."""
        known = STAND_INS.get(getattr(thing, "__name__", None)) if is_instruction(thing) else None
        if known is None:
            return None
        space, name = known
        if not hasattr(getattr(sys.modules[module], space, None), name):
            return None
        return cst.parse_expression(f"{space}.{name}") if self.imported(module, space) else None

    def class_name(self, cls: type | types.FunctionType) -> str:
        """Include the source of a class of the project, or of a function that makes an instruction."""
        self.classes[cls] = textwrap.dedent(inspect.getsource(cls))
        tree = cst.parse_module(self.classes[cls])
        names = {*uses(tree).loads}
        if not isinstance(cls, type):
            function = documented(tree.body[0], (), set())
            self.classes[cls] = code(function)
            names = {*uses(*function.decorators).loads, *inspect.getclosurevars(inspect.unwrap(cls)).globals}
        for name in names:
            if not hasattr(builtins, name) and not self.imported(cls.__module__, name):
                raise CannotFlatten(f"class {cls.__name__} names {name}, which it does not import")
        return cls.__name__


@cache
def module_body(name: str) -> list[ast.stmt]:
    """The statements of an imported module."""
    return ast.parse(inspect.getsource(sys.modules[name])).body


class Forget(Rewriter):
    """Drops assignments to locals that vanish."""

    def __init__(self, names: set[str]):
        self.names = names

    def replace(self, statement, following):
        found = assignment(statement)
        return [] if found and isinstance(found[0], cst.Name) and found[0].value in self.names else None


class Spell(Rewriter):
    """Writes what is known as names of module-level constants and functions, or as literals."""

    def __init__(self, program: Program, function: Function):
        self.program, self.function, self.constants = program, function, program.constants

    @property
    def ones(self) -> set[str]:
        return {name for name, value in self.constants.items() if type(value) is int and value == 1} - self.program.keep

    def spelled(self, node: cst.BaseExpression) -> cst.BaseExpression | None:
        """What stands for a chain of names, None for itself."""
        function, program = self.function, self.program
        path = chain(node)
        if function.lookup(path[0]) is None:
            return None  # known when the kernel runs
        values = function.evaluate(node)
        if values is None:
            raise function.error("no such attribute", node)
        if len(values) > 1:
            return cst.Name("_".join(path)) if len(path) > 1 else None
        [known] = values
        value = known.value
        if found := plain_function(value):
            return cst.Name(program.functions[found].name) if found in program.functions else None
        if isinstance(value, type) and own(value):
            return cst.Name(program.class_name(value)) if not dataclasses.is_dataclass(value) else None
        captured = path[0] not in function.locals
        root = function.lookup(path[0])[0].value
        if captured and foreign(root):
            if getattr(builtins, path[0], None) is root:
                return None
            if stand_in := program.stand_in(function.function.__module__, root):
                return stand_in
            if not program.imported(function.function.__module__, path[0]):
                if not (place := program.dotted(root)):
                    raise function.error("no import found for it", node)
                return cst.parse_expression(".".join([place, *path[1:]]))
            return None
        if is_structure(value) or isinstance(value, types.ModuleType):
            return None
        if named(value):
            label = known.label or (path[0].upper() if path[0] in function.parameters else None)
            if known.label or not isinstance(value, int | float):
                return cst.Name(program.constant(label, value)) if label else None
        if len(path) > 1 or captured or path[0] in function.parameters:
            return expression(program.literal(value))
        return None

    def visit_Attribute(self, node):
        return chain(node) is None

    def leave_Attribute(self, original, updated):
        if chain(original) is None:
            return super().leave_Attribute(original, updated)
        return self.spelled(original) or original

    def leave_Name(self, original, updated):
        return self.spelled(original) or updated

    def leave_BinaryOperation(self, original, updated):
        """Lists are one list."""
        lists = [part for part in (updated.left, updated.right) if isinstance(part, cst.List)]
        if isinstance(updated.operator, cst.Add) and len(lists) == 2:
            return cst.parse_expression(f"[{', '.join(code(one.value) for part in lists for one in part.elements)}]")
        return super().leave_BinaryOperation(original, updated)

    def leave_Call(self, original, updated):
        updated = self._with_less(original, updated)
        defaults = self._defaults(original)
        kept = [
            part
            for part in updated.args
            if code(part.value) != "None" or not part.keyword or part.keyword.value not in defaults
        ]
        return with_arguments(updated, kept) if len(kept) < len(updated.args) else updated

    def _defaults(self, call: cst.Call) -> set[str]:
        """Arguments of another package's function that are known to be None here, which they are by default."""
        unsaid = [
            part
            for part in call.args
            if part.keyword and self.function.evaluate(part.value) and code(part.value) != "None"
        ]
        function = self.function.single(call.func) if unsaid else None
        if not callable(function) or plain_function(function):
            return set()
        try:
            known = inspect.signature(function).parameters
        except ValueError:
            return set()
        names = {part.keyword.value for part in unsaid if self.function.single(part.value) is None}
        return {name for name in names if name in known and known[name].default is None}

    def leave_Tuple(self, original, updated):
        return self._with_less(original, updated)

    def _with_less(self, original, updated):
        """A call without arguments for parameters that vanish, and with attributes in place of dataclasses."""
        call = self.program.called(self.function, original)
        if call is None:
            return updated
        callee, arguments = call
        kept = []
        for (name, before), now in zip(arguments.items(), call_site(updated)[1], strict=True):
            if paths := self.program.fields(callee, name):
                for path in paths:
                    whole = cst.parse_expression(f"{code(before.value)}.{path}")
                    part = {"value": self.spelled(whole) or whole}
                    if getattr(now, "keyword", None):
                        part["keyword"] = cst.Name("_".join([name, *path.split(".")]))
                    kept.append(now.with_changes(**part))
            elif not callee.vanishes(name) and not self._all_structures(callee, name):
                kept.append(now)
        return (
            updated
            if len(kept) == len(arguments) and not self._changed(kept, updated)
            else with_arguments(updated, kept)
        )

    @staticmethod
    def _changed(kept: list, updated: cst.CSTNode) -> bool:
        return any(a is not b for a, b in zip(kept, call_site(updated)[1], strict=True))

    @staticmethod
    def _all_structures(function: Function, name: str) -> bool:
        values = function.facts.get(name)
        return bool(values) and all(is_structure(value.value) for value in values)

    def leave_FunctionDef(self, original, updated):
        function, kept = self.function, []
        for parameter in [*updated.params.params, *updated.params.kwonly_params]:
            name = parameter.name.value
            if paths := self.program.fields(function, name):
                names = ["_".join([name, *path.split(".")]) for path in paths]
                kept += [parameter.with_changes(name=cst.Name(part)) for part in names]
            elif not function.vanishes(name) and not self._all_structures(function, name):
                kept.append(parameter.with_changes(default=None, equal=EQUAL) if function.kernel else parameter)
        gone = set(function.parameters) - {parameter.name.value for parameter in kept}
        updated = with_parameters(updated, kept, gone)
        if function in self.program.entries and not self.program.jit:
            updated = updated.with_changes(decorators=[])
        return updated.with_changes(name=cst.Name(function.name))
