"""What a trial is: something tried on a step and left, measured all the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from steps.core.step import Step
from tutorial_lib.problem import Problem

Value = float | str


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Several versions of one step's kernel; the first is the step as it is.

    values: what the axis of a plot shows, or pairs such as "off" and "on", for which there is no axis. right: whether
    all versions compute the right thing; if not, their time alone is of interest. One of three fields says what a
    version is. functions: by its value, functions in place of the kernel's, as ``with_functions`` takes them, which may
    call those in ``beside``. holes: by its value, the step's holes that are filled otherwise. made: by its value and
    the problem, a step.
    """

    name: str
    question: str
    base: str  # the step's name
    values: tuple[Value, ...]
    problems: tuple[Problem, ...]
    axis: str | None = None
    right: bool = True
    functions: Callable[[Value], dict[str, str]] | None = None
    beside: str = ""
    holes: Callable[[Value], dict] | None = None
    made: Callable[[Value, Problem], Step] | None = None

    @property
    def direction(self) -> str:
        """The pass that its steps compute."""
        from steps import get_step

        return get_step(self.base).direction

    @property
    def is_switch(self) -> bool:
        return self.axis is None

    @property
    def names(self) -> list[str]:
        """Of the versions, in the order of the values."""
        return [f"{self.name}_{value:{'' if self.is_switch else 'g'}}" for value in self.values]

    def version(self, value: Value, problem: Problem, **named) -> Step:
        """The step with this value for ``problem``; ``named``: its name and other fields."""
        from steps import get_step
        from steps.writing.functions import with_functions

        if self.functions:
            return with_functions(get_step(self.base), problem, self.functions(value), beside=self.beside, **named)
        if self.made:
            return replace(self.made(value, problem), **named)
        return replace(get_step(self.base), **self.holes(value), **named)

    def steps(self, problem: Problem) -> list[Step]:
        """The step, once for each value."""
        from steps.core.ladder import get_step, owner_of

        base = get_step(self.base)
        named = {"number": owner_of(base).number, "inside": None, "previous": base}
        return [self.version(value, problem, name=name, **named) for value, name in zip(self.values, self.names)]
