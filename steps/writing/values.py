"""What is known when a kernel is compiled: constants, and which are the project's own, a layout or a structure."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass

OWN_PACKAGES = ("steps",)


class CannotFlatten(Exception):
    """Something in the source that has no plain form; the message names the function and the line."""


def own(thing: object) -> bool:
    """Whether a module, function or class is the project's, and its source therefore part of the text.

    What makes an instruction is not: Triton's compiler runs it, and it is no part of a kernel.
    """
    if getattr(thing, "__triton_builtin__", False):
        return False
    module = thing.__name__ if isinstance(thing, types.ModuleType) else getattr(thing, "__module__", None) or ""
    return module.split(".")[0] in OWN_PACKAGES


@dataclass(frozen=True, eq=False)
class Constant:
    """A value that is known, and the name that a module-level constant for it would have; "" for a root of names."""

    value: object
    label: str | None = None

    def same(self, other: Constant) -> bool:
        """Whether both are the same constant: two numbers that happen to be equal are not, if their names differ."""
        if not equal(self.value, other.value):
            return False
        return self.label == other.label or not named(self.value)


Values = tuple[Constant, ...] | None  # what an expression may be; None: known only when the kernel runs


def equal(a: object, b: object) -> bool:
    return a is b or (type(a) is type(b) and bool(a == b))


def distinct(constants: Iterable[Constant], same: Callable[[Constant, Constant], bool]) -> tuple[Constant, ...]:
    kept: list[Constant] = []
    for constant in constants:
        if not any(same(constant, other) for other in kept):
            kept.append(constant)
    return tuple(kept)


def is_structure(value: object) -> bool:
    """Whether a value is a dataclass of the project: it has no text of its own, its attributes have."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type) and own(type(value))


def is_layout(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type) and not own(type(value))


def depth(value: object) -> int:
    """0 for numbers, 1 for layouts and more for layouts of layouts: constants stand in this order."""
    if is_layout(value):
        return 1 + max([0, *(depth(getattr(value, part.name, None)) for part in dataclasses.fields(value))])
    return 0


def named(value: object) -> bool:
    """Whether a constant of this value gets a name in the text: not a switch, and no short string."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number or is_layout(value) or (isinstance(value, str) and long(value))


def long(text: str) -> bool:
    """Whether a string would fill a line of the text."""
    return len(text) > 100


def is_instruction(thing: object) -> bool:
    """Whether a function is the project's way to an instruction for which Gluon has no function."""
    return getattr(thing, "__triton_builtin__", False) and thing.__module__.split(".")[0] in OWN_PACKAGES


def plain_function(value: object) -> types.FunctionType | None:
    """The Python function of the project behind a value, or None; a decorator such as gluon.jit keeps it as ``fn``."""
    function = value if isinstance(value, types.FunctionType) else getattr(value, "fn", None)
    return function if isinstance(function, types.FunctionType) and own(function) else None


def label_of(name: str, value: object) -> str | None:
    """The name of a constant for a captured value; a dataclass that holds others gives its name to none of them."""
    if isinstance(value, types.ModuleType):
        return "" if own(value) else None
    if is_structure(value):
        whole = any(is_structure(getattr(value, part.name)) for part in dataclasses.fields(value))
        return "" if whole else name.upper()
    return name.upper() if named(value) else None


def foreign(value: object) -> bool:
    """Whether a value is another package's: a module, or something that an import brings."""
    if value is None or isinstance(value, bool | int | float | str | list | tuple):
        return False
    return not own(value) and not is_structure(value) and not is_layout(value)
