"""The path: the steps that a person is shown first, of all that could be measured on a problem.

It holds the steps off the main path's forks that are for this kind of problem, run on this architecture, and run
something else there than the step before.
"""

from __future__ import annotations

from steps.core.fused import FusedStep
from steps.core.ladder import line, steps_of
from steps.core.step import Step
from tutorial_lib.passes import PASSES
from tutorial_lib.problem import Problem


def path(problem: Problem, arch: str, direction: str = "forward") -> list[Step]:
    """The path of a pass for ``problem`` on ``arch``, such as "sm_90", in the ladder's order: never empty.

    Where every step that is made for such a problem is a fork, as for a window, the forks are the path, and where none
    is made for all that is asked for together, as for pages in fp8, whoever takes it. Steps of which nobody would learn
    more than that they were skipped are left out.
    """
    able = [step for step in steps_of(direction) if step.unsupported(problem, arch) is None]
    made = [step for step in able if _kind(step.default_problem, direction) == _kind(problem, direction)]
    off_forks = [step for step in made if not step.fork]
    meant = next((found for found in (off_forks, made) if any(isinstance(s, FusedStep) for s in found)), able)
    names = {name for step in meant for name in line(step)}
    names |= {PASSES[direction].baseline} | {step.name for step in able if not isinstance(step, FusedStep)}
    return [step for step in able if step.name in names and not runs_as_before(step, problem, arch)]


def stands_on(step: Step, problem: Problem, arch: str) -> Step | None:
    """The step that ``step`` is compared with where some have nothing new for ``problem``: the first of those alike."""
    before = step.previous
    while before is not None and before.unsupported(problem, arch) is None and runs_as_before(before, problem, arch):
        before = before.previous
    return before


def runs_as_before(step: Step, problem: Problem, arch: str) -> bool:
    """Whether a step does on ``problem`` what its predecessor does: the same kernel, constants and launch."""
    before = step.previous
    if not isinstance(step, FusedStep) or type(before) is not type(step) or before.unsupported(problem, arch):
        return False
    return step.what_runs(problem, arch) == before.what_runs(problem, arch)


def _kind(problem: Problem, direction: str) -> tuple:
    """What steps are made for: whether bytes decide, or operations, and what is asked for beside plain attention."""
    return PASSES[direction].by_bytes(problem), problem.features
