"""What the project's commands share: errors in one line, checked arguments, a console."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from tutorial_lib import streams


class BadRequest(ValueError):
    """A request that makes no sense; the message is one line."""


class OneLineParser(argparse.ArgumentParser):
    """Argument errors become BadRequest, without argparse's usage text in front."""

    def error(self, message: str):
        raise BadRequest(message)


def parser_of(module: str, docstring: str, **settings) -> OneLineParser:
    """The parser of ``python -m MODULE``, which the first paragraph of its docstring describes."""
    return OneLineParser(prog=f"python -m {module}", description=docstring.split("\n\n")[0], **settings)


def as_command(
    name: str, work: Callable[[], int], *, interrupted: str = "", wrong: tuple[type[Exception], ...] = ()
) -> int:
    """The exit status of ``work``, with every error that is not a fault of ours told in one line.

    2: a request that makes no sense, a package that is not installed, or what ``wrong`` names; 1: something cannot be
    read or written; 130: Ctrl-C, with what ``interrupted`` says of it, or, without a word, a reader that went away.
    Standard output may be closed, or lack characters (``streams``).
    """
    with streams.made_safe():
        return _told(name, work, interrupted, wrong)


def _told(name: str, work: Callable[[], int], interrupted: str, wrong: tuple[type[Exception], ...]) -> int:
    try:
        try:
            return work()
        finally:
            sys.stdout.flush()  # fails here, where it can be told, and not when Python ends
    except BrokenPipeError:
        status, told = 130, ""
    except KeyboardInterrupt:
        status, told = 130, interrupted
    except (BadRequest, *wrong) as error:
        status, told = 2, f"{name}: {error}"
    except ModuleNotFoundError as error:
        told = f"{name}: the package {error.name} is not installed for {sys.executable}: "
        status, told = 2, told + "`make .venv/ready` installs all, and `. .venv/bin/activate` makes python find it"
    except OSError as error:  # a full disk, say
        status, told = 1, f"{name}: {error}"
    with suppress(BrokenPipeError):
        if told:
            print(told, file=sys.stderr)
    streams.give_up_unwritable()
    return status


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


def check_file(option: str, path: Path, ending: str = "") -> None:
    """Raises BadRequest when no file can be written to ``path``, which ``option`` named; makes nothing.

    ending: of the one kind of file that is written, such as ``.png``.
    """
    if path.is_dir():
        raise BadRequest(f"argument {option}: must be a file, got the folder {path}")
    if path.exists() and not path.is_file():  # a device or a pipe would be replaced by a file
        raise BadRequest(f"argument {option}: must be a file, got {path}, which is none")
    if ending and path.suffix.lower() != ending:
        raise BadRequest(f"argument {option}: must be a {ending} file, got {path}")
    check_writable(option, path.parent)


def check_one_of(option: str, value: str | None, known: Sequence[str]) -> None:
    """Raises BadRequest for a value of ``option`` that is none of these; None is not given."""
    if value is not None and value not in known:
        raise BadRequest(f"argument {option}: must be one of {', '.join(known)}, got {value!r}")


def make_console(**settings):
    """A rich console; piped, it is wide enough that no row is broken."""
    from rich.console import Console

    class Told(Console):
        def on_broken_pipe(self):
            raise  # the BrokenPipeError that it is called for: ``as_command`` knows what to do

    return Told(highlight=False, width=None if sys.stdout.isatty() else 160, **settings)


def print_table(console, headers: Sequence[str], rows: Iterable[Sequence[str]], **look) -> None:
    """Rows of cells below their headers. look: as a rich table takes it; without it no lines are drawn."""
    from rich.table import Table

    table = Table(*headers, **({"box": None} | look))
    for row in rows:
        table.add_row(*row)
    console.print(table)


def measure_or_show(folder: Path, name: str, recorded: Callable, measure: Callable, show: Callable) -> int:
    """Measure on a GPU, write the record to FOLDER/MACHINE/NAME and show it; without a GPU show what is recorded.

    recorded(folder): the records there, newest first; measure(console): a new one; show(console, record). Raises
    BadRequest where there is neither a GPU nor a record, and for a folder that cannot be written.
    """
    from tutorial_lib.files import write_whole
    from tutorial_lib.hardware import has_gpu
    from tutorial_lib.results import as_json

    console = make_console()
    if not has_gpu():
        if not (found := recorded(folder)):
            raise BadRequest(f"this needs a GPU, and nothing is recorded under {folder}")
        console.print("There is no GPU here. Recorded:")
        show(console, found[0])
        return 0
    check_writable("--output-dir", folder)
    record = measure(console)
    path = folder / record.machine["slug"] / name
    write_whole(path, as_json(record))
    show(console, record)
    console.print(f"Written: {path}", soft_wrap=True)
    return 0
