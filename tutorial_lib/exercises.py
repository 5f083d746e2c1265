"""Exercises: a function that the learner writes, and what is said of it.

An exercise knows a right answer, three hints, and wrong answers that people give. Subclasses judge: ``Compared`` sets
the function beside the right answer, ``Plain`` leaves it to a judge of its own, and ``steps.exercises.in_kernel`` runs
it inside a step's kernel. A mistake is known by its numbers: where a function gives what one of the wrong answers
gives, the message says which. What is not filled in yet holds ``...`` in its chapter.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import random
import re
import secrets
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial

from tutorial_lib.display import Html, Page, code
from tutorial_lib.values import alike, difference, fits, is_tensor, kind_of

Judge = Callable[[Callable, random.Random], "str | None"]


@dataclass(frozen=True)
class Wrong:
    """An answer that some people give. what: the mistake. says: words that the message for it must hold.

    Without ``says`` the message names the mistake itself, and ``what`` ends the sentence "This is what comes out when".
    The answer is ``source``; or the solution with ``old``, which stands there once, replaced by ``new``; or it is
    without the one line that holds ``without``, which then stands behind the one that holds ``behind``, or nowhere.
    """

    what: str
    says: str = ""
    old: str = ""
    new: str = ""
    source: str = ""
    without: str = ""
    behind: str = ""

    @property
    def told(self) -> str:
        """What the message for it holds."""
        return self.says or self.what


@dataclass(frozen=True, kw_only=True)
class Exercise(ABC):
    """name: unique in the course. function: the name of what the learner writes.

    hints: three, of which each tells more than the one before. debrief: what there is to learn from the right answer.
    mend: the chapter leaves nothing blank: it gives the first of the wrong answers, and the learner mends it.
    """

    name: str
    function: str
    hints: tuple[str, str, str]
    solution: str
    wrong: tuple[Wrong, ...]
    debrief: str
    mend: bool = False

    @abstractmethod
    def judge(self, function: Callable, chance: random.Random) -> str | None:
        """None if ``function`` is right, else what is wrong with it; ``chance`` chooses the problems."""

    def grade(self, function: Callable) -> Verdict:
        """What is to be said of the learner's function, on problems that are new each time."""
        if not inspect.isfunction(function):
            return Verdict(False, f"An answer is a function, `{self.function}`; this came: `{function!r}`.")
        try:
            source = source_of(function)
        except OSError:
            return Verdict(False, "The text of this function is not known: define it in a cell of a notebook.")
        if function.__name__ != self.function:
            return Verdict(False, f"The function must be called `{self.function}`, not `{function.__name__}`.")
        if line := unfilled(source):
            return Verdict(False, f"Not filled in yet: the line `{line}`.")
        try:
            wrong = self.judge(function, random.Random(secrets.randbits(64)))
        except Exception as error:
            wrong = f"`{type(error).__name__}`: {error}{_line_in(error, function)}"
        return Verdict(wrong is None, wrong or self.debrief, source)

    def wrong_source(self, wrong: Wrong) -> str:
        """The text of a wrong answer. Raises ValueError where the solution does not hold once what is replaced."""
        solution = clean(self.solution)
        for text in filter(None, (wrong.old, wrong.without, wrong.behind)):
            if (found := solution.count(text)) != 1:
                raise ValueError(f"{self.name}, {wrong.what}: {text!r} stands in the solution {found} times, not once")
        if not wrong.without:
            return clean(wrong.source) if wrong.source else solution.replace(wrong.old, wrong.new)
        made = []
        [moved] = (line.strip() for line in solution.splitlines() if wrong.without in line)
        for line in solution.splitlines():
            made += [line] if wrong.without not in line else []
            if wrong.behind and wrong.behind in line:
                made.append(line[: len(line) - len(line.lstrip())] + moved)
        return clean("\n".join(made))

    def answer(self, wrong: Wrong | None = None) -> Callable:
        """The solution as a function, or a wrong answer."""
        return define(self.wrong_source(wrong) if wrong else self.solution, self.function)

    def recognised(
        self, seen: Sequence[tuple[tuple, object]], close: float = 1e-3, through: Callable | None = None
    ) -> str:
        """The mistakes that give all that was seen, as (arguments, result), in a sentence; empty where none does.

        close: as ``alike`` has it. through: what the results come from, where that is not the function itself: it takes
        the function, and then the arguments.
        """

        def gives(answer: Callable) -> bool:
            call = partial(through, answer) if through else answer
            try:
                return all(alike(call(*deepcopy(case)), result, close) for case, result in seen)
            except Exception:  # another mistake than that of who is judged
                return False

        found = [wrong.what for wrong in self.wrong if not wrong.says and gives(self.answer(wrong))]
        return f" **This is what comes out when {', or when '.join(found)}.**" if found else ""

    def help(self) -> Html:
        """The hints and the solution, each folded into the one before, so that nobody sees more than they ask for."""
        from html import escape

        shown = code(clean(self.solution))
        folded = f"<details><summary>The solution</summary>{shown.html}</details>"
        for number, hint in reversed(list(enumerate(self.hints, 1))):
            folded = f"<details><summary>Hint {number} of 3</summary><p>{escape(hint)}</p>{folded}</details>"
        return Html(folded, "Hints and a solution are in the notebook's page.")


@dataclass(frozen=True, kw_only=True)
class Plain(Exercise):
    """The function is called by itself. by: takes it and a source of chance; None, or what is wrong."""

    by: Judge = field(repr=False)

    def judge(self, function, chance):
        return self.by(function, chance)


@dataclass(frozen=True, kw_only=True)
class Compared(Exercise):
    """The function gives what the solution gives, on every case.

    cases: from a source of chance, tuples of arguments. right: what a function must give, where the solution is not
    asked. told: what a case means, from its arguments; it follows the difference. named: how a call is written, where
    its arguments are too long to be shown. close: as ``alike`` has it.
    """

    cases: Callable[[random.Random], Iterable[tuple]] = field(repr=False)
    right: Callable | None = None
    told: Callable[..., str] | None = None
    named: Callable[..., str] | None = None
    close: float = 1e-6

    def judge(self, function, chance):
        right, wrong, seen = self.right or self.answer(), "", []
        for case in self.cases(chance):
            mine, theirs = function(*deepcopy(case)), right(*deepcopy(case))
            call = self.named(*case) if self.named else f"{self.function}({', '.join(map(repr, case))})"
            if not fits(mine, theirs):
                came = kind_of(mine) if is_tensor(mine) else repr(mine)
                return wrong or f"`{call}` must be {kind_of(theirs)}. This came: `{came}`."
            first = not wrong and not alike(mine, theirs, self.close)
            if first:
                wrong = f"`{call}` {difference(mine, theirs, self.close)}." + (
                    f" {self.told(*case)}" if self.told else ""
                )
            seen.insert(0 if first else len(seen), (case, mine))  # few mistakes give what is wrong
        return wrong + self.recognised(seen, self.close) if wrong else None


@dataclass(frozen=True)
class Verdict:
    """What is said of an answer. source: the learner's function, where there was one to judge."""

    right: bool
    message: str
    source: str | None = None

    def page(self, exercise: Exercise) -> Page:
        said = f"**Right.** {self.message}" if self.right else self.message
        return Page(said, exercise.help())


def clean(source: str) -> str:
    return textwrap.dedent(source).strip() + "\n"


def source_of(function: Callable) -> str:
    return clean(inspect.getsource(function))


def define(source: str, name: str, **known) -> Callable:
    """The function of this name in a text, as a cell of a notebook would define it. known: further global names."""
    import math

    import torch

    source = clean(source)
    file = f"<answer {hash(source):x}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    space = {"torch": torch, "math": math} | known
    exec(compile(source, file, "exec"), space)
    return space[name]


def unfilled(source: str) -> str | None:
    """The first line where ``...`` stands for something; an index such as ``x[..., None]`` is none."""
    tree = ast.parse(source)
    indices = {id(node) for sub in ast.walk(tree) if isinstance(sub, ast.Subscript) for node in ast.walk(sub.slice)}
    blanks = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value is Ellipsis and id(node) not in indices
    ]
    return source.splitlines()[min(blanks) - 1].strip() if blanks else None


def explained(message: str, typical: Iterable[tuple[str, str]], source: str) -> str:
    """A message with what it means in front. typical: (a pattern, such words); the first pattern that is found counts.

    It is looked for in the message, a line ``# source``, and the learner's source.
    """
    for pattern, words in typical:
        if re.search(pattern, f"{message}\n# source\n{source}", re.DOTALL):
            return f"{words}\n\n{message}"
    return message


def _line_in(error: Exception, function: Callable) -> str:
    """Where in the learner's function an error arose: ", in line 3: `...`"."""
    import traceback

    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename == function.__code__.co_filename:
            return f", in `{frame.line}`"
    return ""
