"""What a trial is: something tried on a step and left, measured all the same."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from steps.core.step import Step
from tutorial_lib.problem import Problem


@dataclass(frozen=True)
class Trial(ABC):
    """Several versions of one step's kernel; the first is the step as it is. Subclasses say what the versions are.

    values: what the axis of a plot shows, or pairs such as "off" and "on", for which there is no axis. right: whether
    all versions compute the right thing; if not, their time alone is of interest.
    """

    name: str
    question: str
    base: str  # the step's name
    values: tuple[float | str, ...]
    problems: tuple[Problem, ...]
    axis: str | None = None
    right: bool = True

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

    @abstractmethod
    def version(self, value: float | str, problem: Problem, **named) -> Step:
        """The step with this value for ``problem``; ``named``: its name and other fields."""

    def steps(self, problem: Problem) -> list[Step]:
        """The step, once for each value."""
        from steps.core.ladder import get_step, owner_of

        base = get_step(self.base)
        named = {"number": owner_of(base).number, "inside": None, "previous": base}
        return [self.version(value, problem, name=name, **named) for value, name in zip(self.values, self.names)]
