"""The list of chapters: ``python -m steps.chapters`` writes notebooks/README.md from the headings in notebooks/source/.

A chapter is ``NN_name.md``, for the step of that number and name; others stand at the begin and at the end. Exit
status: 0 done; 1 the list cannot be written; 2 the request, or a chapter's name or heading, makes no sense.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from steps.core.ladder import PARTS, Part, get_step, part_of
from tutorial_lib.command import OneLineParser, as_command
from tutorial_lib.files import write_whole
from tutorial_lib.notebooks import LIST, NOTEBOOKS, heading, sources

FIRST, LAST = "00_start_here", ("power", "summary")  # the chapters that belong to no step
BESIDE = "appendix"  # the part of which no chapter is on the main path
STEP = re.compile(r"(?P<number>\d\d)_(?P<name>\w+)")

INTRODUCTION = """# The course: fused attention, one optimization a step

Each chapter takes about a quarter of an hour: an idea, the change that it makes to the kernel, a prediction, a run,
what the compiler made of it, why it did or did not help, and something to try. Read the numbered chapters in their
order. The others stand beside this path: they can wait, or be left out. In brackets stands the step that a chapter
changes.

`make lab` opens the course in JupyterLab, and `make html` writes it as pages in `html/`. No GPU is needed: kernels in
cuTile then run on the CPU, all kernels compile, and timings are shown as recorded on the machine that is named there.

The text of a chapter is a Markdown file in `source/`. `make notebooks` executes it, with or without a GPU.
"""


def listed(folder: Path = NOTEBOOKS) -> str:
    """The list as Markdown. Raises ValueError for a chapter of no step, and for one without a heading."""
    chapters = {path.stem: path for path in sources(folder)}
    steps = {name: _step_of(path) for name, path in chapters.items() if name not in (FIRST, *LAST)}
    place = -1  # the first chapter is number 0, as its step is

    def numbered(name: str, stands_on: str = "") -> str:
        nonlocal place
        place += 1
        return f"{place}. {_link(chapters[name])}{stands_on}"

    parts = [INTRODUCTION]
    for part in PARTS:
        own = [name for name, step in steps.items() if step.number in part.numbers]
        path = [numbered(FIRST)] if FIRST in chapters and 0 in part.numbers else []
        path += [numbered(name, _stands_on(steps[name])) for name in own if not _is_beside(part, steps[name])]
        beside = [f"- {_link(chapters[n])}{_stands_on(steps[n])}" for n in own if _is_beside(part, steps[n])]
        if path and beside:
            beside = ["Beside the path:", "", *beside]
        if path or beside:
            parts.append("\n".join([f"## {part.title}", "", *path, *[""] * bool(path and beside), *beside, ""]))
    if last := [numbered(name) for name in LAST if name in chapters]:
        parts.append("\n".join(["## At the end", "", *last, ""]))
    return "\n".join(parts)


def _step_of(path: Path):
    """The step that a chapter tells of."""
    found = STEP.fullmatch(path.stem)
    try:
        step = get_step(found["name"]) if found else None
    except ValueError:
        step = None
    if step is None or step.number != int(found["number"]):
        others = ", ".join(f"{name}.md" for name in (FIRST, *LAST))
        now = f"; step {step.name} is number {step.number} now" if step and step.number is not None else ""
        raise ValueError(f"{path} must be NN_name.md with number and name of a step, or one of {others}{now}")
    return step


def _is_beside(part: Part, step) -> bool:
    return step.fork or part.name == BESIDE


def _link(path: Path) -> str:
    return f"[{heading(path)}]({path.stem}.ipynb)"


def _stands_on(step) -> str:
    before = step.previous
    where = "" if before.number in part_of(step.number).numbers else f", {part_of(before.number).name}"
    return f" (from {before.label}{where})"


def main(arguments: Sequence[str] | None = None) -> int:
    def work() -> int:
        OneLineParser(prog="python -m steps.chapters", description=__doc__.split("\n\n")[0]).parse_args(arguments)
        write_whole(NOTEBOOKS / LIST, listed())
        print(NOTEBOOKS / LIST)
        return 0

    return as_command("steps.chapters", work, wrong=(ValueError,))


if __name__ == "__main__":
    sys.exit(main())
