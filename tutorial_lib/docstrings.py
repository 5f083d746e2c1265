"""Lets ``python -OO`` run what is here: cuTile's package adds to its own docstrings, and fails where there are none.

Its modules are compiled as without the option, and not from or into ``__pycache__``, where Python would take what is
kept for ``-OO``.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader

PACKAGE = "cuda"  # cuTile is cuda.tile


class _Whole(SourceFileLoader):
    def get_code(self, fullname: str):
        path = self.get_filename(fullname)
        return compile(self.get_data(path), path, "exec", dont_inherit=True, optimize=0)


class _Finder:
    @staticmethod
    def find_spec(name: str, path=None, target=None) -> ModuleSpec | None:
        if name.partition(".")[0] != PACKAGE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Whole(spec.loader.name, spec.loader.path)
        return spec


def keep() -> None:
    """From here on cuTile's modules are imported with their docstrings and assertions."""
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)
