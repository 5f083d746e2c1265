"""The course: its parts and chapters in the order in which they are read, from notebooks/source/course.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

TABLE = "course.toml"


@dataclass(frozen=True)
class Chapter:
    """name: its file's, without ending. minutes: that it takes. needs: chapters to have read. place: on the path."""

    name: str
    minutes: int
    needs: tuple[str, ...]
    part: str
    place: int | None  # None: beside the path

    def line(self, headings: dict[str, str]) -> str:
        """What stands under a chapter's heading: how long it takes, and what it needs."""
        where = f"chapter {self.place} of the path" if self.place else "beside the path"
        needs = ", ".join(f"[{headings[name]}]({name}.ipynb)" for name in self.needs)
        return f"*{self.part} · {where} · about {self.minutes} minutes{f' · needs {needs}' if needs else ''}*"


@dataclass(frozen=True)
class Part:
    title: str
    about: str
    chapters: tuple[Chapter, ...]


def read_course(folder: Path) -> list[Part]:
    """The parts of ``folder / course.toml``. Raises ValueError where it and the chapters in ``folder`` do not agree."""
    path = Path(folder, TABLE)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        place, parts = 0, []
        for part in table["part"]:
            found = []
            for chapter in part["chapters"]:
                place += not chapter.get("beside", False)
                found.append(
                    Chapter(
                        chapter["name"],
                        chapter["minutes"],
                        tuple(chapter.get("needs", ())),
                        part["title"],
                        None if chapter.get("beside") else place,
                    )
                )
            parts.append(Part(part["title"], part["about"], tuple(found)))
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no table of a course: {type(error).__name__}: {error}") from None
    names = [chapter.name for part in parts for chapter in part.chapters]
    there = {path.stem for path in Path(folder).glob("*.md")}
    for what, wrong in (
        ("is named twice", {name for name in names if names.count(name) > 1}),
        ("has no file", set(names) - there),
        ("stands in no part", there - set(names)),
        ("is needed, and there is no such chapter", {n for p in parts for c in p.chapters for n in c.needs} - there),
    ):
        if wrong:
            raise ValueError(f"{path}: {', '.join(sorted(wrong))} {what}")
    return parts


def chapters_of(folder: Path) -> list[Chapter]:
    """All chapters, in their order."""
    return [chapter for part in read_course(folder) for chapter in part.chapters]
