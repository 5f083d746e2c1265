"""Standard output and error, however a command is started: closed, in an encoding without «×», with a reader that left.

A command asks for this once, by ``command.as_command``; nothing that prints has to think of it.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress

SPELLED = {
    **{"×": "x", "·": "*", "–": "-", "—": "-", "−": "-", "±": "+-", "≈": "~", "≤": "<=", "≥": ">=", "→": "->"},
    **{"←": "<-", "«": '"', "»": '"', "“": '"', "”": '"', "‘": "'", "’": "'", "µ": "u", "μ": "u", "°": "o"},
    **{"…": ".", "²": "^2", "³": "^3"},  # one dot: where a table is cut there is room for one character
}
ERRORS = "tutorial_lib.spelled"  # the name by which codecs know ``_spell``


def spelled(text: str, encoding: str) -> str:
    """The text as it comes out in an encoding.

    What that lacks is written in ASCII: as ``SPELLED`` says, lines of boxes as - | +, letters without accents, else ?.
    """
    return text.encode(encoding, ERRORS).decode(encoding, "surrogateescape")


def _in_ascii(character: str) -> str:
    if character in SPELLED:
        return SPELLED[character]
    name = unicodedata.name(character, "")
    if name.startswith("BOX DRAWINGS"):
        across, down = ("HORIZONTAL" in name, "VERTICAL" in name)
        return "+" if across == down else "-" if across else "|"
    if name.endswith(("BLOCK", "SHADE")):
        return "#"
    if name.startswith("BRAILLE"):  # what turns while one waits
        return "*"
    return unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode() or "?"


def _spell(error: UnicodeError) -> tuple[str | bytes, int]:
    """What is written in place of the first character that an encoding lacks, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    if "\udc80" <= character <= "\udcff":  # a byte of a file's name that Python could not decode: as it came
        return bytes([ord(character) - 0xDC00]), error.start + 1
    return _in_ascii(character), error.start + 1


codecs.register_error(ERRORS, _spell)


@contextmanager
def made_safe() -> Iterator[None]:
    """Inside, standard output and error take every text, and what is printed to a closed one is dropped."""
    _open_what_is_closed()
    before = {}
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            before[stream] = stream.errors
            stream.reconfigure(errors=ERRORS)
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
