"""Kernels written out: a step's whole kernel as one plain piece of Python, and such a text as a step.

``written_out`` makes the text from the source that runs: for one problem, without any branch that is not taken.
``shown`` is that text as ``steps.show`` prints it. ``WrittenStep`` is the way back: it launches and compiles a text,
which somebody may have changed, in place of the kernel of the step that it was made from.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import inspect
import json
import re
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from steps.core.fused import FusedStep
from steps.core.gradients import GradientStep
from steps.core.ladder import ROOT, get_step, module_file
from steps.core.paged import PagedStep
from steps.core.problems import alike, as_options, smaller
from steps.core.quantized import QuantizedStep
from steps.core.rules import UNTESTED, place_of_rule
from steps.core.step import DEFAULT_ARCH, Step, Unsupported
from steps.writing.flat import flatten
from steps.writing.program import Program
from steps.writing.shown import as_shown, completed
from steps.writing.values import plain_function
from tutorial_lib.compiler import cache_folder
from tutorial_lib.files import write_whole
from tutorial_lib.problem import Problem

HEADER = "Which kernel this is."  # stands where the title will
ORIGIN = re.compile(r"^Written out from: (\{.*\})", re.MULTILINE)


@cache
def written_out(step: FusedStep, problem: Problem, arch: str | None = None, keep: frozenset[str] = frozenset()) -> str:
    """The kernel that ``step`` runs for ``problem`` on ``arch``, as a Python module of its own.

    arch: None for what the step is made for. keep: names of functions that are not put inline where they are called.
    Raises Unsupported for a step without a kernel, and for a problem that the step does not take.
    """
    arch = arch or step.made_for
    if not isinstance(step, FusedStep):
        raise Unsupported(f"step {step.label} has no kernel of its own to show: it calls PyTorch")
    if reason := step.unsupported(problem, arch):
        raise Unsupported(f"step {step.label}: {reason}")
    entry, constants = step.entry(problem, arch)
    origin = json.dumps({"step": step.name, "arch": arch, "problem": problem.as_dict()})
    title = f"Step {step.label}: {step.title}, for {problem.describe()} on {arch}."
    text = flat_text((entry, tuple(sorted(constants.items()))), keep=keep)
    return text.replace(f'"""{HEADER}"""', f'"""{title}\n\nWritten out from: {origin}"""', 1)


def shown(step: FusedStep, problem: Problem, arch: str | None = None) -> str:
    """As ``written_out``, to be read: without parameters of the kernel that nothing reads; ``read_step`` adds them."""
    return as_shown(written_out(step, problem, arch))


@cache
def flat_text(
    *kernels: tuple[object, tuple[tuple[str, object], ...]], keep: frozenset[str] = frozenset(), alone: bool = False
) -> str:
    """The text of kernels, made once for all problems that they are compiled for with the same constants."""
    (entry, bound), *others = [(entry, dict(constants)) for entry, constants in kernels]
    return flatten(entry, bound, *others, header=HEADER, keep=keep, alone=alone)


def places(step: FusedStep, problem: Problem, arch: str | None = None) -> list[tuple[str, str, str]]:
    """(function, file:line, first line of its docstring) of all that a step runs for a problem, callers first.

    Behind the name of a function that a kernel is handed stands how the kernel calls it: "consume = variant.consume".
    Raises as ``written_out`` does.
    """
    written_out(step, problem, arch)  # refuses what has no kernel
    entry, constants = step.entry(problem, arch or step.made_for)
    program = Program(entry, constants)
    program.fold()
    handed = {function: path for name, value in constants.items() for function, path in _handed(value, name)}
    found = []
    for function in program.functions.values():
        name, said = function.name, function.function.__doc__ or ""
        if path := handed.get(function.function):
            name += f" = {path}"
        found.append((name, _place(function.function), said.split("\n")[0]))
    return found


def parts_of(step: FusedStep, problem: Problem, arch: str | None = None) -> dict[str, str]:
    """Where each part of a step stands for a problem: what it is -> file:line and name, in the order of a call."""
    arch = arch or step.made_for
    entry, _ = step.entry(problem, arch)
    found = {"the step": module_file(step)}
    rules = [name.removesuffix(UNTESTED) for name in step.choices(problem, arch)]
    if told := [f"{place_of_rule(name)} {name}" for name in rules if not name.startswith("Own_")]:
        found["launch rule"] = ", ".join(told)
    for what, name in (("constants", "variant"), ("launch", "make_kernel_ready")):
        if method := getattr(type(step), name, None):
            found[what] = f"{_place(method)} {method.__qualname__}"
    kernel = plain_function(entry)
    return found | {"kernel": f"{_place(kernel)} {kernel.__name__}"}


def meanings(step: FusedStep) -> dict[str, str]:
    """What each hole of a step's skeleton is for: the first sentence that the skeleton's docstring has on it.

    Such a sentence begins ``name: ``, ``name, other: ``, or with the parameters of a function that fills the hole.
    """
    name = "|".join(step.holes())
    said = [" ".join(inspect.getdoc(cls).split()) for cls in type(step).__mro__ if cls.__doc__]
    found: dict[str, str] = {}
    for piece in re.split(rf"(?<=[.;]) (?=(?:{name})[:,(])", " ".join(said)):
        if begin := re.match(rf"((?:{name})(?:, (?:{name}))*)(?:: |(?=\())", piece):
            first = re.split(r"(?<=\.) (?=[A-Z(`\d])", piece[begin.end() :])[0]
            for each in begin[1].split(", "):
                found.setdefault(each, first.rstrip(".;") + ".")
    return found


def _place(function) -> str:
    """The file of a function, relative to the repository's root, and its line."""
    code = function.__code__
    return f"{Path(code.co_filename).relative_to(ROOT.parent).as_posix()}:{code.co_firstlineno}"


def _handed(value: object, path: str):
    """(function, how it is called) of all functions in a constant of a kernel and in its fields."""
    if function := plain_function(value):
        yield function, path
    elif dataclasses.is_dataclass(value):
        for f in dataclasses.fields(value):
            yield from _handed(getattr(value, f.name), f"{path}.{f.name}")


def without_title(text: str) -> str:
    """A kernel's text without the docstring that says which step it is of: what two steps are compared by."""
    return text.split('"""', 2)[2].lstrip()


def module_in(text: str):
    """The module of a text; kept as a file, from which compilers read its source."""
    name = f"written_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if name not in sys.modules:
        path = cache_folder() / "written" / f"{name}.py"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            write_whole(path, text)
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def kernel_in(text: str):
    """The kernel of a module's text, its last function."""
    return getattr(module_in(text), re.findall(r"^def (\w+)", text, re.MULTILINE)[-1])


def plainly(told: str, name: str = "kernel") -> str:
    """What was said of a written kernel, with ``name`` for the file that it was kept in, whose own says nothing."""
    return re.sub(r"written_[0-9a-f]{16}[.]py", name, told)


@dataclass(frozen=True, kw_only=True)
class WrittenStep(Step):
    """A kernel's text in place of the kernel of ``base``. written_for: what the text was written out for.

    It takes the problems for which ``base`` would be compiled with the same constants.
    """

    base: FusedStep
    text: str = field(repr=False)
    written_for: Problem
    arch: str = DEFAULT_ARCH

    @property
    def backend(self) -> str:
        return self.base.backend

    @property
    def made_for(self) -> str:
        return self.arch

    @property
    def runs_on_cpu(self) -> bool:
        return self.arch == "cpu" or self.base.backend != "cutile"  # cuTile's tiles are others on the CPU

    def too_long_on_cpu(self, problem: Problem) -> str | None:
        return self.base.too_long_on_cpu(problem)

    def scratch_bytes(self, problem: Problem) -> int:
        return self.base.scratch_bytes(problem)

    def choices(self, problem: Problem, target: str) -> tuple[str, ...]:
        return self.base.choices(problem, target)

    def unsupported(self, problem: Problem, target: str) -> str | None:
        if target != self.arch and not (target == "cpu" and self.runs_on_cpu):
            return f"written out for {self.arch}, not for {target}"
        if reason := self.base.unsupported(problem, target):
            return reason
        own = self.base.entry(self.written_for, target)
        if not (differing := _differing(self.base.entry(problem, target), own)):
            return None
        reason = f"its constants differ in: {', '.join(differing)}"
        small = smaller(self.written_for) if alike(self.written_for, problem) else ()
        found = next((p for p in small if self.base.entry(p, target) == own), None)
        return f"{reason}; try {as_options(found, problem)}" if found else reason

    def make_ready(self, problem, q, k, v, out, return_lse=False):
        if return_lse:
            raise Unsupported(f"step {self.label}: its text was written out without the log-sum-exp")
        return self.base.make_kernel_ready(kernel_in(self.text), problem, q, k, v, out)

    def compile(self, problem, arch=None):
        arch = arch or self.arch
        self.refuse(problem, arch)
        return self.base.compile_kernel(kernel_in(self.text), problem, arch)


def _differing(now: tuple, own: tuple) -> list[str]:
    """What two entries differ in: "kernel", constants by their names, and of a variant its fields by theirs."""
    (kernel, constants), (own_kernel, others) = now, own
    names = ["kernel"] if kernel != own_kernel else []
    for name in dict.fromkeys([*constants, *others]):
        value, other = constants.get(name), others.get(name)
        if value != other and dataclasses.is_dataclass(value) and type(value) is type(other):
            names += [f.name for f in dataclasses.fields(value) if getattr(value, f.name) != getattr(other, f.name)]
        elif value != other:
            names.append(name)
    return names


@dataclass(frozen=True, kw_only=True)
class WrittenGradients(WrittenStep, GradientStep):
    """As ``WrittenStep``, of a backward step."""

    @property
    def deterministic(self) -> bool:
        return self.base.deterministic

    def make_ready(self, problem, tensors, out):
        return self.base.make_kernel_ready(kernel_in(self.text), problem, tensors, out)


@dataclass(frozen=True, kw_only=True)
class WrittenPaged(WrittenStep, PagedStep):
    """As ``WrittenStep``, of a step that reads pages."""

    def make_ready(self, problem, tensors, out):
        return self.base.make_kernel_ready(kernel_in(self.text), problem, tensors, out)


@dataclass(frozen=True, kw_only=True)
class WrittenQuantized(WrittenStep, QuantizedStep):
    """As ``WrittenStep``, of a step whose inputs are in fp8."""

    def make_ready(self, problem, tensors, out, dtype, return_lse=False):
        if return_lse:
            raise Unsupported(f"step {self.label}: its text was written out without the log-sum-exp")
        return self.base.make_kernel_ready(kernel_in(self.text), problem, tensors, out, dtype)


WRITTEN = {"forward": WrittenStep, "backward": WrittenGradients, "paged": WrittenPaged, "fp8": WrittenQuantized}


def write_step(
    step: FusedStep, problem: Problem, arch: str | None = None, keep: frozenset[str] = frozenset(), **changes: str
) -> WrittenStep:
    """``step`` as a text. changes: fields of the new step, such as its name.

    arch: None for what the step is made for. keep: names of functions that are not put inline (``with_functions``).
    Raises Unsupported for a step without a kernel.
    """
    arch = arch or step.made_for
    text = written_out(step, problem, arch, keep)
    return WRITTEN[step.direction](
        base=step.configured(problem, arch),
        text=text,
        written_for=problem,
        arch=arch,
        **{"name": f"{step.name}_written", "title": step.title, "change": "Written out.", "previous": step, **changes},
    )


def edited(step: WrittenStep, *edits: tuple[str, str], **changes) -> WrittenStep:
    """A written step with pieces of its text replaced: see ``replaced``. changes: of its other fields."""
    return dataclasses.replace(step, text=replaced(step.text, *edits), **changes)


def replaced(text: str, *edits: tuple[str, str]) -> str:
    """A kernel's text with pieces replaced. edits: (old, new), where old stands in the text once.

    Raises ValueError for a piece that does not, as happens when the skeleton has changed.
    """
    for old, new in edits:
        if text.count(old) != 1:
            raise ValueError(f"this must stand in the kernel once, not {text.count(old)} times:\n{old}")
        text = text.replace(old, new)
    return text


def read_step(path: Path) -> WrittenStep:
    """The step of a file that ``steps.show`` wrote and somebody may have edited; raises ValueError."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None
    found = ORIGIN.search(text)
    try:
        origin = json.loads(found[1])
        step = write_step(get_step(origin["step"]), Problem(**origin["problem"]), origin["arch"], name=path.stem)
    except Unsupported as error:
        raise ValueError(f"{path}: {error}") from None
    except (TypeError, KeyError, json.JSONDecodeError, ValueError) as error:
        raise ValueError(
            f"{path} must be a kernel that `python -m steps.show NAME --output FILE` wrote, with its docstring"
        ) from error
    try:
        compile(text, str(path), "exec")
    except SyntaxError as error:
        raise ValueError(f"{path} is not Python: line {error.lineno}: {error.msg}") from None
    text = completed(text, step.text)
    return dataclasses.replace(step, text=text, title=path.name, change=f"{path.name} in place of the kernel.")
