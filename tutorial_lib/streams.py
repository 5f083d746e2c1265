"""Standard output and error, however a command is started: closed, in an encoding without «×», with a reader that left.

What an encoding lacks comes out as a question mark.

A command asks for this once, by ``command.as_command``; nothing that prints has to think of it.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def made_safe() -> Iterator[None]:
    """Inside, standard output and error take every text, and what is printed to a closed one is dropped."""
    _open_what_is_closed()
    before = {}
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            before[stream] = stream.errors
            stream.reconfigure(errors="replace")
    try:
        yield
    finally:
        for stream, errors in before.items():
            with suppress(OSError, ValueError):  # nobody reads it any more, or it was closed
                stream.reconfigure(errors=errors)


def _open_what_is_closed() -> None:
    """Where 0, 1 or 2 is closed, the next file that is opened would get its number, and what children print."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  open as long as Python runs


def give_up_unwritable() -> None:
    """What standard output and error cannot get rid of is dropped, or Python tries again at its end, and complains."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with suppress(OSError):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, stream.fileno())
                os.close(null)
