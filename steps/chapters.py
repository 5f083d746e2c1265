"""The list of chapters: ``python -m steps.chapters`` writes notebooks/README.md from course.toml and the headings.

A chapter of a step is ``NNN_name.md``, with the step's number and name; that of a variant has the number of its step.
Exit status: 0 done; 1 the list cannot be written; 2 the request, the table of the course, or a chapter's name or
heading, makes no sense.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from steps.core.ladder import get_step, owner_of, part_of
from tutorial_lib.command import as_command, parser_of
from tutorial_lib.course import Chapter, read_course
from tutorial_lib.files import write_whole
from tutorial_lib.notebooks import LIST, NOTEBOOKS, heading, sources

STEP = re.compile(r"(?P<number>\d\d\d)_(?P<name>\w+)")

INTRODUCTION = """# The course: fused attention, one optimization a step

Someone who knows Python and PyTorch, and no GPU, learns here to write a fast attention kernel. Read the numbered
chapters in their order: {chapters} of them, about {hours} hours together. The others stand beside this path: they can
wait, or be left out. Parentheses say how many minutes a chapter takes, and which step it stands on.

**To do the course**, run `make learn`. It opens your own copy of the chapters in JupyterLab, in the folder `learn/`.
Every chapter but the glossary has an exercise; your answers are kept in `learn/answers/`, and `python -m
steps.progress` lists which you have solved. No GPU is needed: your code runs on the CPU, and timings are shown as they
were recorded on the machine that is named there.

**To read it**, open the chapters here, as they were executed, or write them as pages with `make html`.

The text of a chapter is a Markdown file in `source/`; `course.toml` there says in which order they come.
`make notebooks` executes them, with or without a GPU.
"""


def listed(folder: Path = NOTEBOOKS) -> str:
    """The list as Markdown. Raises ValueError where chapters, table and steps do not agree."""
    source = Path(folder, "source")
    course = read_course(source)
    on_path = [chapter for part in course for chapter in part.chapters if chapter.place]
    hours = round(sum(chapter.minutes for chapter in on_path) / 60)
    parts = [INTRODUCTION.format(chapters=len(on_path), hours=hours)]
    for part in course:
        path = [f"{c.place}. {_link(source, c)}" for c in part.chapters if c.place]
        beside = [f"- {_link(source, c)}" for c in part.chapters if not c.place]
        if path and beside:
            beside = ["", "Beside the path:", "", *beside]
        parts.append("\n".join([f"## {part.title}", "", part.about, "", *path, *beside, ""]))
    return "\n".join(parts)


def step_of(path: Path):
    """The step that a chapter tells of, or None. Raises ValueError for a name with a number that its step has not."""
    found = STEP.fullmatch(path.stem)
    try:
        step = get_step(found["name"]) if found else None
    except ValueError:  # another chapter, with a number that says where it stands
        step = None
    if step is not None and owner_of(step).number != int(found["number"]):
        raise ValueError(f"{path}: step {step.name} is number {owner_of(step).number} now")
    return step


def chapter_of(step, folder: Path = NOTEBOOKS) -> str:
    """The name of the chapter that tells of a step: its own, else one with its number, or its owner's, in the heading.

    Raises ValueError.
    """
    owner = owner_of(step)
    found = [path.stem for path in sources(folder) if owner.number in numbers_of(heading(path))]
    if not found:
        raise ValueError(f"no chapter has step {owner.number} in its heading")
    own, the_owners = (f"{owner.number:03}_{of.name}" for of in (step, owner))
    return min(found, key=lambda name: (name != own, name != the_owners))


def numbers_of(title: str) -> set[int]:
    """The steps that a heading names, such as "Steps 108 to 110 and 115: masks"; of another heading none."""
    head, colon, _ = title.partition(":")
    if not (colon and re.match(r"Steps? \d", head)):
        return set()
    found = re.findall(r"(\d+)(?: to (\d+))?", head)
    return {number for first, last in found for number in range(int(first), int(last or first) + 1)}


def _link(source: Path, chapter: Chapter) -> str:
    path = source / f"{chapter.name}.md"
    step = step_of(path)
    stands_on = f", from {_label(step)}" if step and step.previous else ""
    return f"[{heading(path)}]({chapter.name}.ipynb) ({chapter.minutes} min{stands_on})"


def _label(step) -> str:
    before = step.previous
    part = part_of(owner_of(before).number)
    return before.label if owner_of(step).number in part.numbers else f"{before.label} of {part.name}"


def main(arguments: Sequence[str] | None = None) -> int:
    def work() -> int:
        parser_of("steps.chapters", __doc__).parse_args(arguments)
        write_whole(NOTEBOOKS / LIST, listed())
        print(NOTEBOOKS / LIST)
        return 0

    return as_command("steps.chapters", work, wrong=(ValueError,))


if __name__ == "__main__":
    sys.exit(main())
