"""Packages that have no wheel for every system: what stands in for them, so that the rest of the course works.

requirements.txt leaves them out where there is no wheel; results/machines.md says where that is.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from types import ModuleType

MODULES = {"triton": "triton", "cuda-tile": "cuda.tile"}  # what is imported of each package
LEFT_OUT = "which has no wheel for every system (results/machines.md)"


@cache
def is_missing(package: str | None) -> bool:
    """Whether one of these packages is not installed here; ask before anything stands in for it. None: no package."""
    if package is None:
        return False
    try:
        return find_spec(MODULES[package]) is None
    except ModuleNotFoundError:  # nor is the package around it
        return True


def lacking(package: str | None) -> str | None:
    """Why a kernel that needs this package cannot run here, or None where it is installed."""
    return f"the package {package}, {LEFT_OUT}, is not installed here" if is_missing(package) else None


class _Anything(type):
    """Whatever a module is asked for: a decorator that changes nothing, a class, or a value that holds nothing."""

    def __getattr__(cls, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (), {})

    def __call__(cls, *arguments, **settings):
        decorated = arguments[0] if len(arguments) == 1 and not settings else None
        if inspect.isfunction(decorated) or inspect.isclass(decorated):
            return decorated
        return _Anything(cls.__name__, (), {})


class _Empty(ModuleType):
    """A module that has everything."""

    __path__ = ()

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (), {})


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what no other finder has found of the packages that are missing."""

    def __init__(self, missing: list[str]):
        self.missing = missing
        self.made: list[str] = []

    def find_spec(self, name: str, path=None, target=None):
        for module in self.missing:
            if f"{name}.".startswith(f"{module}.") or f"{module}.".startswith(f"{name}."):
                return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec) -> ModuleType:
        self.made.append(spec.name)
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def left_out() -> list[str]:
    """One line for each package that is missing here, on what goes without it."""
    what = {
        "triton": "Kernels in Gluon and Triton are left out, and no machine code can be read",
        "cuda-tile": "Kernels in cuTile are left out",
    }
    return [f"{what[package]}: {why}." for package in MODULES if (why := lacking(package))]


@contextmanager
def stood_in_for() -> Iterator[None]:
    """Inside, modules of a package that is missing can be imported all the same. They are empty.

    So kernels can be named, listed and found in records where they cannot run. Behind it, an import fails as before.
    """
    missing = [module for package, module in MODULES.items() if is_missing(package)]
    if not missing:
        yield
        return
    finder = _StandIns(missing)
    sys.meta_path.append(finder)  # the last that is asked
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in finder.made:
            made = sys.modules.pop(name, None)
            parent, _, child = name.rpartition(".")
            around = sys.modules.get(parent)
            if around is not None and vars(around).get(child) is made:
                delattr(around, child)  # an import hangs a module into the one around it, which may be a real one
