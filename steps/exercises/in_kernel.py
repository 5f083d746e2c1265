"""An exercise inside a step's kernel: the learner's function takes the place of a piece of it, and the kernel runs.

The kernel is the one that ``steps.show`` writes out. cuTile's run in the interpreter; Gluon's on the simulator, which
judges order as well as numbers: races, missing fences and deadlocks, under several latencies.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from steps import get_step
from steps.core.fused import FusedStep
from steps.writing.functions import names_in, put
from steps.writing.written import WrittenStep, plainly, write_step
from tutorial_lib.accuracy import compare, first_difference
from tutorial_lib.exercises import Exercise, explained, source_of
from tutorial_lib.passes import pass_of
from tutorial_lib.problem import Problem

# Of a block, which wait for nobody: the queries of two warpgroups, two tiles of keys, two of values.
FIRST_COPIES = 6


@dataclass(frozen=True, kw_only=True)
class InKernel(Exercise):
    """The learner's function, in the kernel of ``step``.

    replaces: the kernel's function that the learner's stands in for; None for that of the same name, "" for none.
    functions: others that are replaced, too: sources by the names of the kernel's functions. What calls the learner's
    function where the kernel has none with its parameters, is here. beside: source of functions that the answer calls
    and the kernel does not have. constants: of the kernel, by their names. kinds: what the tensors are like, beside
    their lengths: ``Problem``'s fields for each of them. lengths: the least and the largest, of queries and of keys.
    multiple: what every length is a multiple of. schedules: how many latencies a simulated kernel runs under, the
    model's own and random ones. watch: takes the simulated run and the problem, once numbers and order are right, and
    says what is wrong with the way in which they came about. first: takes the learner's source, and says what is wrong
    with the function by itself, before any kernel runs. last: takes the exercise and the source, and says what is still
    wrong where numbers and order are right. lacking: (a piece of source, what to say where an answer
    that is wrong does not hold it). typical: as ``tutorial_lib.exercises.explained`` takes them.
    """

    step: str
    replaces: str | None = None
    functions: dict[str, str] = field(default_factory=dict)
    beside: str = ""
    constants: dict[str, object] = field(default_factory=dict)
    kinds: tuple[dict, ...] = ({"causal": True}, {"dtype": "bfloat16", "heads": 2, "kv_heads": 1})
    lengths: tuple[int, int] = (130, 330)
    multiple: int = 1
    schedules: int = 3
    watch: Callable[[object, Problem], str | None] | None = None
    first: Callable[[str, random.Random], str | None] | None = None
    last: Callable[[InKernel, str, random.Random], str | None] | None = None
    lacking: tuple[tuple[str, str], ...] = ()
    typical: tuple[tuple[str, str], ...] = ()

    def problems(self, chance: random.Random) -> list[Problem]:
        """One for each kind, with lengths that are new each time; with a causal mask, as many keys as queries."""
        found = []
        for kind in self.kinds:
            least, largest = (-(-self.lengths[0] // self.multiple), self.lengths[1] // self.multiple)
            queries, keys = (self.multiple * chance.randint(least, largest) for _ in range(2))
            lengths = {"seq_len_q": queries, "seq_len_kv": queries if kind.get("causal") else keys}
            found.append(Problem(**{"batch": 1, "heads": 2, "head_dim": 64, **lengths, **kind}))
        return found

    def judge(self, function, chance):
        return self.judged(source_of(function), chance)

    def judged(self, source: str, chance: random.Random) -> str | None:
        """As ``judge``, from the function's source."""
        if self.first and (wrong := self.first(source, chance)):
            return wrong
        for problem in self.problems(chance):
            if wrong := self._on(problem, source, chance):
                hints = [said for piece, said in self.lacking if piece not in source]
                message = "\n\n".join([f"On {problem.describe()}: {wrong}", *hints])
                return explained(message, self.typical, source)
        return self.last(self, source, chance) if self.last else None

    def whole(self) -> FusedStep:
        """The step whose kernel the function is put into."""
        return get_step(self.step)

    def kernel(self, problem: Problem, source: str) -> WrittenStep:
        """The step with the learner's function in its kernel. Raises ValueError for a function that finds no place."""
        step, functions, beside = self.whole(), dict(self.functions), source
        if replaces := self.function if self.replaces is None else self.replaces:
            functions[replaces], beside = source, ""
        keep = names_in(self.solution, *functions, *self.functions.values(), self.beside)
        written = write_step(step, problem, "cpu" if step.backend == "cutile" else None, keep, name=self.name)
        return put(written, functions, f"{beside}\n{self.beside}", self.constants)

    def clocks(self, problem: Problem, source: str) -> float:
        """What all blocks take together with this function, by the simulator's clock."""
        return sum(sum(run.clocks.values()) for run in self.traced(problem, source))

    def traced(self, problem: Problem, source: str) -> list:
        """The simulated launches of the kernel with this function."""
        from tutorial_lib.simulator.run import watched

        step = self.kernel(problem, source)
        kind = pass_of(step)
        inputs = kind.inputs(problem, 0)
        with watched(None, trace=True) as watch:
            kind.call(step, problem, inputs, kind.poisoned(inputs))
        return watch.runs

    def _on(self, problem: Problem, source: str, chance: random.Random) -> str | None:
        step = self.kernel(problem, source)
        kind = pass_of(step)
        inputs = kind.inputs(problem, chance.getrandbits(32))
        exact = kind.reference(problem, inputs)
        allowed = kind.yardstick(problem, inputs, exact)
        simulated = step.backend != "cutile"
        runs: list = []
        for seed in [None, *(chance.getrandbits(32) for _ in range(self.schedules - 1))] if simulated else [None]:
            outputs = kind.poisoned(inputs)
            if wrong := _simulated(step, problem, inputs, outputs, seed, runs) if simulated else None:
                return wrong
            if not simulated:
                kind.call(step, problem, inputs, outputs)
            for output, right, its in zip(outputs, exact, allowed, strict=True):
                found = compare(output, right, its)
                if not found.correct:
                    return first_difference(output, right, found.limit)
        return self.watch(runs[0], problem) if self.watch else None


def _simulated(step, problem: Problem, inputs, outputs, seed: int | None, runs: list) -> str | None:
    """Run on the simulator into ``outputs``: what it says of the order of things, or None. The run joins ``runs``."""
    from tutorial_lib.simulator.block import Deadlock, KernelError, Unknown
    from tutorial_lib.simulator.run import watched

    with watched(seed, trace=seed is None) as watch:
        try:
            pass_of(step).call(step, problem, inputs, outputs)
        except KernelError as error:
            what = "a deadlock:" if isinstance(error, Deadlock) else "the kernel cannot run:"
            before = [_quoted("Before that, something was not in order:", told) for told in error.found[:1]]
            return "\n\n".join([_quoted(what, str(error)), *before])
        except Unknown as error:
            return _quoted("the kernel cannot run:", str(error))
    runs += watch.runs
    found = [told for run in watch.runs for told in run.found.values()]
    return _quoted("not everything is in order:", found[0]) if found else None


def _quoted(what: str, told: str) -> str:
    """As a block of its own."""
    return f"{what}\n\n```\n{plainly(told)}\n```"


def copies_overlap(run, problem) -> str | None:
    """Whether a block asks for its first copies without waiting for one of them to end."""
    loads: dict = {}
    for block, lane, kind, _, begin, end in run.trace:
        if (lane, kind) == ("TMA", "load"):
            loads.setdefault(block, []).append((begin, end))
    for its in loads.values():
        first = its[:FIRST_COPIES]
        for n, ((_, came), (asked, _)) in enumerate(pairwise(first), 2):
            if asked >= came:
                return (
                    "everything is in order and the numbers are right, but the producer does not fetch ahead: it asks "
                    f"for copy {n} of a block only when copy {n - 1} has come, although the slots are free. It must "
                    "wait for slots that are released, and never for a copy to end."
                )
    return None
