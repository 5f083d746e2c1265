"""By what compiled code is known: all that a compiler sees of a kernel, wherever the project lies.

``*_and_places`` also tells files, relative to the project, and lines, which are in what debuggers and remarks show: so
what is kept on disk is known by it. Without places a kernel is the same wherever it stands in its file, and whatever
its comments and docstrings say.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import inspect
import io
import tokenize
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import cuda.tile as ct
    from cuda.tile.compilation import KernelSignature

ROOT = Path(__file__).resolve().parent.parent


@cache
def inside(path: str) -> str:
    """A file's or a folder's path in the project; of others the name alone."""
    place = Path(path)
    return place.relative_to(ROOT).as_posix() if place.is_relative_to(ROOT) else place.name


@cache
def use_relative_paths() -> None:
    """From now on cuTile writes paths inside the project where it would write those of this machine.

    They are part of the name under which it keeps what it has compiled: a second clone would compile everything again.
    """
    from cuda.tile import _ir2bytecode  # cuda-tile 1.7 has no public way

    class Relative(_ir2bytecode.DebugAttrMap):
        def __init__(self, debug_attr_table, *arguments, **options):
            super().__init__(_RelativeTable(debug_attr_table), *arguments, **options)

    _ir2bytecode.DebugAttrMap = Relative


class _RelativeTable:
    """cuTile's table of places, which gets them with relative paths."""

    def __init__(self, table):
        self._table = table

    def __getattr__(self, name: str):
        return getattr(self._table, name)

    def file(self, name: str, folder: str):
        return self._table.file(name, inside(folder))

    def loc(self, subprogram, path: str, line: int, column: int):
        return self._table.loc(subprogram, inside(path), line, column)


@contextmanager
def _without_places():
    """Inside, cuTile writes no places at all."""
    from cuda.tile import _ir2bytecode

    usual = _ir2bytecode.DebugAttrMap
    _ir2bytecode.DebugAttrMap = lambda table, symbol, anonymize: usual(table, symbol, True)
    try:
        yield
    finally:
        _ir2bytecode.DebugAttrMap = usual


def tile_ir_and_places(kernel: ct.kernel, signature: KernelSignature, arch: str) -> bytes:
    """Tile IR as bytecode: it holds everything that tileiras sees. Raises cuda.tile.TileError."""
    from cuda.tile.compilation import export_kernel

    use_relative_paths()
    buffer = io.BytesIO()
    export_kernel(kernel, [signature], buffer, gpu_code=arch, output_format="tileir_bytecode")
    return buffer.getvalue()


def tile_ir(kernel: ct.kernel, signature: KernelSignature, arch: str) -> bytes:
    """As ``tile_ir_and_places``, without places."""
    use_relative_paths()
    with _without_places():
        return tile_ir_and_places(kernel, signature, arch)


def triton_source(source) -> str:
    """A fingerprint of a Triton or Gluon source: its functions, types and constants.

    As Triton's own ``hash``, which also knows at which lines functions begin.
    """
    constants = [_of_constant(x) for _, x in sorted(source.constants.items())]
    types = [kind for _, kind in sorted(source.signature.items())]
    told = repr((_of_function(source.fn), str(source.attrs), types, constants))
    return hashlib.sha256(told.encode()).hexdigest()


def _of_constant(x) -> str:
    """A function by its statements, also inside of a dataclass; anything else as it is written."""
    if _is_function(x):
        return _of_function(x)
    if _holds_functions(x):
        parts = ((f.name, getattr(x, f.name)) for f in dataclasses.fields(x))
        return f"{type(x).__name__}({', '.join(f'{name}={_of_constant(part)}' for name, part in parts)})"
    return str(x)


def _holds_functions(x) -> bool:
    if not dataclasses.is_dataclass(x) or isinstance(x, type):
        return False
    parts = [getattr(x, f.name) for f in dataclasses.fields(x)]
    return any(_is_function(part) or _holds_functions(part) for part in parts)


def _is_function(x) -> bool:
    from triton.runtime.jit import JITCallable

    return isinstance(x, JITCallable)


_known: dict[int, tuple[object, str]] = {}  # by the function's identity, and the function, which so lives on


def _of_function(function) -> str:
    """A fingerprint of a function's statements, of the functions that it calls, and of the numbers that both name."""
    found = _known.get(id(function))
    if found and found[0] is function:
        return found[1]
    _known[id(function)] = function, "itself"  # where it calls itself
    called, numbers = _named(function)
    key = hashlib.sha256("\n".join([_statements(function), *map(_of_function, called), *numbers]).encode()).hexdigest()
    _known[id(function)] = function, key
    return key


def _statements(function) -> str:
    """The function's lines without comments, docstring and blank ones: the same under every version of Python."""
    [definition] = function.parse().body
    lines = function.src.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(function.src).readline):
        if token.type == tokenize.COMMENT:
            lines[token.start[0] - 1] = token.line[: token.start[1]]
    if ast.get_docstring(definition) is not None:
        docstring = definition.body[0]
        lines[docstring.lineno - 1 : docstring.end_lineno] = []
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _named(function) -> tuple[list, list[str]]:
    """What a function names outside of itself: the functions, in the order of their names; and what else has a value.

    Not ``used_global_vals``: Triton fills that of one function from others', by the order in which they are asked.
    """
    from triton.runtime.jit import DependenciesFinder

    found: dict[int, object] = {}

    class Finder(DependenciesFinder):
        def _update_hash(self, func):
            found[id(func)] = func

    nonlocals = inspect.getclosurevars(function.fn).nonlocals
    finder = Finder(function._fn_name, function.__globals__, nonlocals, function.src)
    finder.visit(function.parse())
    return list(found.values()), sorted(f"{name} {value}" for (name, _), (value, _) in finder.used_global_vals.items())
