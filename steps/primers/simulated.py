"""Small kernels of this folder: shown, run on the simulator, broken on purpose, and filled by a learner.

A primer is a module of Gluon kernels. Its ``CASES`` say how each is launched: a name, and a function that takes a
source of chance and returns a ``Case``.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from steps.writing.written import module_in, replaced
from tutorial_lib import pictures
from tutorial_lib.display import Page, callers_below, code
from tutorial_lib.exercises import Exercise, explained, source_of
from tutorial_lib.simulator.breaking import without as text_without

PRIMERS = Path(__file__).resolve().parent
NOT_IN_ORDER = "Not everything is in order:"
CLOSE = 1e-2  # of a number, or of 1: sums of float16 in float32, in another order


@dataclass
class Case:
    """A launch of one block. target: a tensor among the arguments; right: what it must hold afterwards."""

    kernel: object
    arguments: tuple
    target: object
    right: object
    warps: int = 4


def text_of(primer: str) -> str:
    return (PRIMERS / f"{primer}.py").read_text(encoding="utf-8")


def with_function(text: str, name: str, source: str) -> str:
    """The text with another function of this name; the marks in front of it stay."""
    [own] = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == name]
    lines = text.splitlines()
    return "\n".join([*lines[: own.lineno - 1], *source.splitlines(), *lines[own.end_lineno :]]) + "\n"


def simulated(text: str, case: str, chance: random.Random, seed: int | None = None, trace: bool = False, **how):
    """(what is wrong or None, the simulated launch or None) of one case of a primer's text."""
    from tutorial_lib.simulator.block import Deadlock, KernelError, Unknown
    from tutorial_lib.simulator.run import launch

    module = module_in(text)
    its = module.CASES[case](chance, **how)
    run = None
    try:
        run = launch(its.kernel, (1,), its.arguments, its.warps, seed=seed, trace=trace)
    except KernelError as error:
        if error.found:  # a race comes before what it leads to
            return _quoted(NOT_IN_ORDER, error.found[0], module), None
        what = "A deadlock:" if isinstance(error, Deadlock) else "The kernel cannot run:"
        return _quoted(what, str(error), module), None
    except Unknown as error:
        return _quoted("The kernel cannot run:", str(error), module), None
    if run.found:
        return _quoted(NOT_IN_ORDER, next(iter(run.found.values())), module), run
    return _first_wrong(its.target, its.right), run


def _quoted(what: str, told: str, module) -> str:
    told = callers_below(told.replace(f"{module.__name__}.py", "kernel"))
    return f"{what}\n\n```\n{told}\n```"


def _first_wrong(target, right) -> str | None:
    wrong = ~((target.float() - right.float()).abs() <= CLOSE * right.float().abs().clamp(min=1))  # NaN is wrong
    if not wrong.any():
        return None
    row, column = (int(n) for n in wrong.nonzero()[0])
    rows = wrong.any(1).nonzero().flatten()
    return (
        f"The first wrong number is in row {row}, column {column}: it is {target[row, column].item():.4g} and should "
        f"be {right[row, column].item():.4g}. {len(rows)} of {len(target)} rows are wrong, from {int(rows[0])} to "
        f"{int(rows[-1])}."
    )


# --- what a chapter calls ---


def show(primer: str, *functions: str) -> Page:
    """Functions of a primer, to read."""
    text = text_of(primer)
    nodes = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    shown = []
    for name in functions:
        node = nodes[name]
        first = min([node.lineno, *(mark.lineno for mark in node.decorator_list)])
        shown.append("\n".join(text.splitlines()[first - 1 : node.end_lineno]))
    return Page(f"From `steps/primers/{primer}.py`:", code("\n\n\n".join(shown)))


def run(
    primer: str,
    case: str,
    *edits: tuple[str, str],
    without: str | None = None,
    timeline: bool = False,
    **how,
) -> Page:
    """Run a case on the simulator, as it is or broken: right and in order, or what is wrong.

    edits: pieces of the text to replace; without: a piece of one synchronisation to take out. how: for the case.
    """
    text = replaced(text_of(primer), *edits)
    if without:
        text = text_without(text, without)
    wrong, launched = simulated(text, case, random.Random(0), trace=timeline, **how)
    left_out = [old for old, new in edits if not new.strip()] + ([without] if without else [])
    changed = [f"without `{old.strip()}`" for old in left_out]
    changed += [f"`{new.strip()}` in place of `{old.strip()}`" for old, new in edits if new.strip()]
    title = f"`{case}`, {', '.join(changed)}: " if changed else f"`{case}`: "
    parts = [title + (wrong or "the result is right, and everything is in order.")]
    if timeline and launched:
        parts.append(pictures.simulated_timeline(launched, case))
    return Page(*parts)


def compiled(primer: str, case: str, arch: str = "sm_90"):
    """What Triton makes of a case's kernel (``tutorial_lib.compiler.Compiled``)."""
    from tutorial_lib.compiler import compile_gluon

    its = module_in(text_of(primer)).CASES[case](random.Random(0))
    return compile_gluon(its.kernel, its.arguments, its.warps, arch, 0)


# --- exercises ---


@dataclass(frozen=True, kw_only=True)
class InPrimer(Exercise):
    """The learner's function in place of a primer's own. cases: of its ``CASES``; how: what they are asked for.

    typical: (a pattern in the message and the learner's source, what is then said in front), for typical mistakes. by:
    what else is wrong, from the learner's source and the launch under the model's latencies; or None.
    """

    primer: str
    case: str
    how: dict
    typical: tuple[tuple[str, str], ...] = ()
    by: Callable | None = None
    schedules: int = 4

    def judge(self, function, chance):
        source = source_of(function)
        text = with_function(text_of(self.primer), self.function, source)
        for seed in [None, *(chance.getrandbits(32) for _ in range(self.schedules - 1))]:
            wrong, launched = simulated(text, self.case, chance, seed, **self.how)
            if wrong is None and self.by and seed is None:
                wrong = self.by(source, launched)
            if wrong:
                return explained(wrong, self.typical, source)
        return None
