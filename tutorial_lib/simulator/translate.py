"""A kernel's Python function, with the simulator's operations in place of Gluon's.

The source is the kernel's own: the function's code runs with other globals. Functions that it calls are translated when
they are first met, all alike, so ``print``, ``breakpoint()`` and a debugger work in all of them.
"""

from __future__ import annotations

import builtins
import copy
import dataclasses
import types
from collections.abc import Callable
from functools import cache

import triton.language.standard as standard
from triton.experimental.gluon import language as gl
from triton.runtime.jit import JITFunction

from tutorial_lib.simulator.block import MARK, Unknown, at
from tutorial_lib.simulator.integers import integers

OPERATIONS: dict = {}  # (last part of the module's name, name), or name alone -> the function that does it
STANDARD = {getattr(standard, name).fn: name for name in ("sum", "max", "min", "cdiv", "zeros")}  # written in Triton

_translated: dict[types.FunctionType, types.FunctionType] = {}


def operation(*names) -> Callable:
    """Enters a function as what does these operations: "exp2", or ("tma", "store_wait") where two have the name."""

    def enter(function: Callable) -> Callable:
        OPERATIONS.update(dict.fromkeys(names, function))
        return function

    return enter


def as_python(kernel: JITFunction) -> types.FunctionType:
    """The Python function of a kernel, which calls the simulator's operations."""
    source = kernel.fn
    if source not in _translated:
        scope = {"__builtins__": builtins, "__name__": source.__module__, MARK: True, "range": integers}
        function = types.FunctionType(source.__code__, scope, source.__name__, source.__defaults__, source.__closure__)
        function.__kwdefaults__ = source.__kwdefaults__
        _translated[source] = function
        for name in _names(source.__code__) & source.__globals__.keys():
            scope[name] = translated(source.__globals__[name])
    return _translated[source]


def _names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


class _Module:
    """A module of Gluon's, whose members are translated when they are asked for."""

    def __init__(self, module: types.ModuleType):
        self._module = module

    def __getattr__(self, name: str):
        if name in OPERATIONS and not hasattr(self._module, name):  # an older Triton has it under another name
            return OPERATIONS[name]
        value = translated(getattr(self._module, name))
        setattr(self, name, value)
        return value


_module = cache(_Module)


def translated(value):
    """What a kernel's function sees in place of a global."""
    if isinstance(value, JITFunction):
        return OPERATIONS[STANDARD[value.fn]] if value.fn in STANDARD else as_python(value)
    if isinstance(value, types.ModuleType):
        return _module(value)
    if isinstance(value, gl.constexpr):
        return value.value
    if value is gl.constexpr:
        return lambda x: x
    if value is gl.static_range:
        return range
    if isinstance(value, type) and value.__module__.startswith(gl.__name__) and value.__name__ in OPERATIONS:
        return OPERATIONS[value.__name__]
    if getattr(value, "__triton_builtin__", False) and callable(value):
        module, name = value.__module__.rsplit(".", 1)[-1], value.__name__
        return OPERATIONS.get((module, name)) or OPERATIONS.get(name) or _unknown(f"{value.__module__}.{name}")
    return value


def with_functions(value):
    """A constant that a launch passes, where it is a dataclass that holds functions: with what they are here."""
    if isinstance(value, JITFunction):
        return as_python(value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    parts = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    changed = {name: here for name, part in parts.items() if (here := with_functions(part)) is not part}
    if not changed:
        return value
    value = copy.copy(value)
    for name, part in changed.items():
        object.__setattr__(value, name, part)  # it may be frozen, and need not be made anew
    return value


def _unknown(name: str) -> Callable:
    def refuse(*_, **__):
        raise Unknown(at(f"the simulator has no {name.removeprefix('triton.experimental.gluon.language.')}"))

    return refuse
