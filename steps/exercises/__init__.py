"""The exercises of the course, a module each: a function that is left blank in a chapter, and how it is judged."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from steps.core.ladder import OLD_NAMES, today
from tutorial_lib.answers import LEARN, Answers
from tutorial_lib.naming import unknown

KINDS = ("__", "in_")  # how modules begin that hold no exercise, but kinds of them
# Words that answers may hold as they were before: names and fields of kernels, and an event of an exercise.
RINGS = ("query", "key", "value", "keys", "output", "scores", "weights", "d_scores", "d_output", "sums", "factors")
OLD_WORDS = {"meeting": "sync", "part_of": "query_of", "PARTS": "WARPGROUPS", "fetch_in_turn": "fetch_key_and_value"}
OLD_WORDS |= {"turn_of_loop": "iteration_of_loop", "turn_ends": "iteration_ends"}
OLD_WORDS |= {f"{ring}_{old}": f"{ring}_{new}" for ring in RINGS for old, new in (("ready", "full"), ("free", "empty"))}


def names() -> list[str]:
    """The names of all exercises, which are those of their modules."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith(KINDS))


def get_exercise(name: str):
    """The exercise of this name, today's or an old one; raises ValueError that tells the nearest ones."""
    name = today(name)
    if name not in names():
        raise ValueError(unknown("exercise", name, names(), "`python -m steps.progress` lists them"))
    return import_module(f"steps.exercises.{name}").EXERCISE


def all_exercises() -> dict[str, object]:
    """Every exercise by its name."""
    return {name: get_exercise(name) for name in names()}


def answers_in(folder: Path = LEARN) -> Answers:
    """The answers in a learner's folder, by today's names."""
    return Answers(folder, names=OLD_NAMES, words=OLD_WORDS)


def exercise(name: str, function) -> object:
    """Judge the learner's function, say what is wrong with it, and offer hints; returns a Page that a notebook shows.

    In the learner's folder the answer is kept.
    """
    from tutorial_lib.display import Page

    try:
        asked = get_exercise(name)
    except ValueError as error:
        return Page(f"{error}.")
    verdict = asked.grade(function)
    page = verdict.page(asked)
    answers = answers_in(Path.cwd())
    if verdict.source and answers.exist:
        try:
            answers.keep(asked.name, verdict.source, verdict.right)
        except (ValueError, OSError) as error:  # the verdict counts, also where it cannot be kept
            page.parts.append(f"Your answer was not kept: {error}.")
    return page
