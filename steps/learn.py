"""The learner's copy of the course: ``python -m steps.learn`` writes it into learn/; ``make learn`` opens it, too.

The chapters are not executed, and what is left blank in them is filled with your answers, as far as you have given
some. A copy is written again when its chapter has changed: the old one is kept beside it. Answers are never changed.
Exit status: 0 done; 1 something cannot be written; 2 the request makes no sense; 130 interrupted.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from steps.exercises import answers_in
from tutorial_lib.answers import LEARN, Answers
from tutorial_lib.command import as_command, parser_of
from tutorial_lib.notebooks import LIST, NOTEBOOKS, read_source, sources

# The last line of a cell that holds an exercise, which calls it with the function that stands above.
CALL = re.compile(r'^(?:lesson\.)?exercise\("(?P<name>\w+)", (?P<function>\w+)\)$')
ORIGIN = "chapter"  # metadata: which text a copy was made from


@dataclass(frozen=True)
class Blank:
    """An exercise's cell. number: of the cell; before: what stands above the function; call: the cell's last line."""

    number: int
    before: str
    function: str
    call: str

    def with_function(self, function: str) -> str:
        """The cell with another function in the blank's place."""
        return f"{self.before}{function.rstrip()}\n\n\n{self.call}"


def exercises_in(notebook) -> dict[str, Blank]:
    """The exercises of a chapter by their names."""
    found = {}
    for number, cell in enumerate(notebook.cells):
        above, _, last = cell.source.rstrip().rpartition("\n")
        if cell.cell_type == "code" and (call := CALL.match(last)):
            begin = above.index(f"def {call['function']}(")
            found[call["name"]] = Blank(number, above[:begin], above[begin:].strip() + "\n", last)
    return found


def filled(path: Path, answers: Answers):
    """A chapter as a notebook to work in, with the learner's answers."""
    notebook = read_source(path)
    notebook.metadata[ORIGIN] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    for name, blank in exercises_in(notebook).items():
        if answer := answers.answer(name):
            notebook.cells[blank.number].source = blank.with_function(answer)
    return notebook


def write_copies(folder: Path = LEARN, chapters: Path = NOTEBOOKS) -> list[Path]:
    """Write every chapter that is not there yet, or has changed; returns those that were written."""
    import nbformat

    from tutorial_lib.files import write_whole

    answers = answers_in(folder)
    answers.folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / LIST, (chapters / LIST).read_text(encoding="utf-8"))
    written = []
    for source in sources(chapters):
        path = folder / f"{source.stem}.ipynb"
        notebook = filled(source, answers)
        if path.exists():
            if _origin(path) == notebook.metadata[ORIGIN]:
                continue
            path.rename(_free(path))
        write_whole(path, nbformat.writes(notebook) + "\n")
        written.append(path)
    return written


def _origin(path: Path) -> str | None:
    """Which text a copy was made from; None for a file that is damaged."""
    import json

    try:
        return json.loads(path.read_text(encoding="utf-8"))["metadata"][ORIGIN]
    except (ValueError, KeyError, TypeError):
        return None


def _free(path: Path) -> Path:
    """A name for an old copy: exp2.before.ipynb, exp2.before2.ipynb and so on."""
    number = 1
    while (found := path.with_suffix(f".before{number if number > 1 else ''}.ipynb")).exists():
        number += 1
    return found


def run() -> int:
    for path in write_copies():
        print(path)
    print(f"Your copy of the course is in {LEARN}; begin with 000_start_here.ipynb, or run `make learn`.")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of("steps.learn", __doc__)

    def work() -> int:
        parser.parse_args(arguments)
        return run()

    return as_command("steps.learn", work, interrupted="Interrupted; what was written is whole.")


if __name__ == "__main__":
    sys.exit(main())
