"""Functions in Gluon as values: a step's holes and a kernel's constants hold them."""

from __future__ import annotations

import copyreg
import dataclasses
import importlib

from triton.experimental.gluon._runtime import GluonJITFunction
from triton.runtime.jit import JITCallable


def compiled_as(value: object) -> str:
    """A text that is the same for constants from which a compiler makes the same code, and for no others.

    Triton tells constants by their text, in which a function is its name alone, whatever its statements are.
    """
    if isinstance(value, JITCallable):
        return value.cache_key
    if dataclasses.is_dataclass(value):
        fields = (f"{f.name}={compiled_as(getattr(value, f.name))}" for f in dataclasses.fields(value))
        return f"{type(value).__name__}({', '.join(fields)})"
    return repr(value)


def _by_name(module: str, name: str):
    return getattr(importlib.import_module(module), name)


# Steps are sent to other processes, and there a function is found by its name, as Python finds its own.
copyreg.pickle(GluonJITFunction, lambda function: (_by_name, (function.fn.__module__, function.fn.__name__)))
