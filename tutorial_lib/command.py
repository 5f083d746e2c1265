"""What the project's commands share: errors in one line, checked arguments, a console."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path


class BadRequest(ValueError):
    """A request that makes no sense; the message is one line."""


class OneLineParser(argparse.ArgumentParser):
    """Argument errors become BadRequest, without argparse's usage text in front."""

    def error(self, message: str):
        raise BadRequest(message)


def whole_number(text: str) -> int:
    """An argument that counts something."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return value


def check_writable(option: str, folder: Path) -> None:
    """Raises BadRequest when nothing can be written to ``folder``, which ``option`` named; makes nothing."""
    existing = next(path for path in [folder, *folder.absolute().parents] if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise BadRequest(f"argument {option}: cannot write to {folder}: {error.strerror}") from None


def make_console(**settings):
    """A rich console; piped, it is wide enough that no row is broken."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 160, **settings)
