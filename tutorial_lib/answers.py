"""The learner's folder: copies of the chapters to work in, and answers, which no update of the series overwrites.

``learn/answers/NAME.py`` is the learner's last answer to an exercise, or the last right one;
``learn/answers/progress.json`` says which are solved, and since when.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import date
from pathlib import Path

from tutorial_lib.files import write_whole

LEARN = Path(__file__).resolve().parent.parent / "learn"


class Answers:
    """The answers in a learner's folder; nothing is made before something is kept.

    names: of exercises that were renamed, today's by the old one. words: the same for what answers call by name. An
    answer under an old name, or with old words, counts as if it had been given today.
    """

    def __init__(self, folder: Path = LEARN, *, names: Mapping[str, str] = {}, words: Mapping[str, str] = {}):
        self.folder = Path(folder, "answers")
        self.names, self.words = names, words

    @property
    def exist(self) -> bool:
        """Whether this is a learner's folder: the committed chapters keep nothing."""
        return self.folder.is_dir()

    def solved(self) -> dict[str, str]:
        """The day on which each exercise was solved. Raises ValueError for a file that is damaged."""
        path = self.folder / "progress.json"
        try:
            found = json.loads(path.read_text(encoding="utf-8"))["solved"]
            return {self.names.get(name, name): date.fromisoformat(day).isoformat() for name, day in found.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is damaged ({error}); move it away, and solve one exercise again") from None

    def answer(self, name: str) -> str | None:
        """The learner's function, or None."""
        for known in (name, *(old for old, new in self.names.items() if new == name)):
            if (path := self.folder / f"{known}.py").exists():
                text = path.read_text(encoding="utf-8")
                return re.sub(r"\w+", lambda word: self.words.get(word[0], word[0]), text)
        return None

    def keep(self, name: str, source: str, right: bool) -> None:
        """Keep an answer; one that is not right does not take the place of one that is."""
        solved = self.solved()
        if right or name not in solved:
            write_whole(self.folder / f"{name}.py", source)
        if right and name not in solved:
            solved[name] = date.today().isoformat()
            write_whole(self.folder / "progress.json", json.dumps({"solved": solved}, indent=1) + "\n")
