"""A step on the simulator: ``python -m steps.simulate producer --without "wait(barriers.value_empty"``.

Runs a Gluon or Hopper kernel on the CPU, says whether its result is right, and looks for races, missing fences and
deadlocks, under as many random latencies as ``--schedules`` asks for. Where nothing else is asked for, the kernel is
that of the step's own problem, or of the one that a file was written for, on the shortest lengths that have it; where
these would take long, it says which options ask for them. ``--without`` takes one synchronisation out of the kernel
first, to see what is said; a file that ``steps.show`` wrote, edited or not, can stand for a step. What it draws and
counts is simulated: it explains what waits for what, and not how fast the kernel is. Exit status: 0 nothing is wrong; 1
something was found; 2 the request makes no sense; 130 interrupted.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tutorial_lib.command import (
    BadRequest,
    as_command,
    check_file,
    make_console,
    parser_of,
    whole_number,
)
from tutorial_lib.problem import SHORT_DTYPES

SIMULATED = ("gluon", "hopper", "blackwell", "triton", "cdna")  # kernels in Gluon, and one in Triton
LARGEST_TILE = 256  # queries or keys: two lengths with the same rest leave tiles full, or not, alike
SHOWN = 2  # findings that a page shows whole
QUICK = 2 * 4096**2  # scores: with more a kernel is simulated where they are asked for


def make_parser() -> argparse.ArgumentParser:
    parser = parser_of("steps.simulate", __doc__)
    parser.add_argument("step", help="number or name of a step, or a file that steps.show wrote")
    number = {"type": whole_number, "metavar": "N"}
    parser.add_argument("--batch", default=1, help="(1)", **number)
    heads = "query heads (as many for each of --kv-heads as in the step's own problem)"
    parser.add_argument("--heads", help=heads, **number)
    parser.add_argument("--kv-heads", help="key and value heads (2, or as follows from --heads)", **number)
    length = "query length (the shortest with the kernel of the step's own problem)"
    parser.add_argument("--seq-len", help=length, **number)
    parser.add_argument("--seq-len-kv", help="key and value length (as --seq-len)", **number)
    parser.add_argument("--head-dim", help="(as the step's own problem, as all below)", **number)
    parser.add_argument("--dtype", choices=tuple(SHORT_DTYPES))
    parser.add_argument("--causal", action=argparse.BooleanOptionalAction, help="causal mask")
    parser.add_argument("--window", help="sliding window: a query sees itself and the N - 1 keys before it", **number)
    parser.add_argument("--without", metavar="TEXT", help="take out the one synchronisation that holds this text")
    parser.add_argument("--sites", action="store_true", help="list the synchronisations of the kernel, and stop")
    parser.add_argument("--schedules", type=whole_number, default=1, metavar="N", help="run under N latencies (1)")
    parser.add_argument("--seed", type=int, metavar="N", help="the random latencies of this seed alone")
    parser.add_argument("--inputs", type=int, metavar="N", help="the inputs of this seed (new ones every time)")
    parser.add_argument("--timeline", type=Path, metavar="FILE", help="draw the longest block's timeline, as PNG")
    return parser


def run(options: argparse.Namespace) -> int:
    if options.timeline:
        check_file("--timeline", options.timeline, ".png")
    console = make_console()
    step, problem = asked(options)
    if told := another_kernel(options.step, problem):
        console.print(told, soft_wrap=True, markup=False)
    if options.sites:
        from tutorial_lib.simulator.breaking import broken

        for site in broken(step.text):
            if site.how == "without":
                console.print(f"{site.line:5} {site.what}", soft_wrap=True, markup=False)
        return 0
    seeds = [options.seed] if options.seed is not None else [None, *range(1, options.schedules)]
    inputs = secrets.randbits(32) if options.inputs is None else options.inputs
    name = Path(options.step).name if options.step.endswith(".py") else "kernel"
    return simulate(console, step, problem, seeds, inputs, options.timeline, name)


def asked(options: argparse.Namespace):
    """(the step, whole or broken; the problem); raises BadRequest."""
    from dataclasses import replace

    from steps import get_step
    from steps.writing.written import WrittenStep, read_step, write_step
    from tutorial_lib.simulator.breaking import without

    try:
        step = read_step(Path(options.step)) if options.step.endswith(".py") else get_step(options.step)
        if step.backend not in SIMULATED:
            raise BadRequest(f"step {step.label}: simulated are Gluon's kernels; `steps.run` runs this one on the CPU")
        if isinstance(step, WrittenStep):
            _load(step)
        problem = _problem(options, step)
        if reason := step.unsupported(problem, "cpu"):
            raise BadRequest(f"step {step.label}: {reason}")
        if reason := step.too_long_on_cpu(problem):
            raise BadRequest(f"{problem.describe()} has {reason}: ask for a smaller --seq-len")
        if (options.without or options.sites) and not isinstance(step, WrittenStep):
            step = write_step(step, problem, name=step.name)
        if options.without:
            step = replace(step, text=without(step.text, options.without), title=f"without {options.without}")
    except ValueError as error:
        raise BadRequest(str(error)) from None
    return step, problem


def _load(step) -> None:
    """A file's module, once, so that what is wrong with it is told before anything runs."""
    from steps.writing.written import kernel_in, plainly

    try:
        kernel_in(step.text)
    except Exception as error:
        told = plainly(f"{type(error).__name__}: {error}", step.title)
        raise BadRequest(f"{step.title}: {told}") from None


def _problem(options: argparse.Namespace, step):
    """What was asked for, and the rest as in the step's own problem: the shortest that has its kernel and is quick."""
    from dataclasses import replace

    from steps.core.problems import lengths_of, smaller
    from steps.writing.written import WrittenStep

    own = step.written_for if isinstance(step, WrittenStep) else step.default_problem
    named = {name: getattr(options, name) for name in ("head_dim", "dtype", "causal", "window")}
    kind = replace(own, **{name: value for name, value in named.items() if value is not None})

    def of(small):
        kv_heads = options.kv_heads or max(1, (options.heads or small.heads) // own.group_size)
        queries = options.seq_len or small.seq_len_q
        keys = options.seq_len_kv or options.seq_len or small.seq_len_kv
        heads = {"heads": options.heads or kv_heads * own.group_size, "kv_heads": kv_heads}
        return replace(kind, batch=options.batch, **heads, **lengths_of(own, queries, keys))

    small = smaller(own)
    quick = [of(one) for one in small if one.heads * one.seq_len_q * one.seq_len_kv <= QUICK]
    return next((problem for problem in quick if _has_own_kernel(step, problem)), of(small[0]))


def _has_own_kernel(step, problem) -> bool:
    """Whether ``problem`` has the kernel that it has at the size of the step's own, but for tiles that are full or not.

    A file's is for one of both.
    """
    from dataclasses import replace

    from steps.core.problems import lengths_of
    from steps.writing.written import WrittenStep

    if step.unsupported(problem, "cpu"):
        return False
    if isinstance(step, WrittenStep):
        return True
    own = _at_own_size(step, problem)
    pairs = ((own.seq_len_q, problem.seq_len_q), (own.seq_len_kv, problem.seq_len_kv))
    as_full = replace(own, **lengths_of(own, *(length + asked % LARGEST_TILE for length, asked in pairs)))
    return step.entry(problem, step.made_for) == step.entry(as_full, step.made_for)


def _at_own_size(step, problem):
    """``problem`` in the size of the step's own."""
    from dataclasses import replace

    from steps.core.problems import SIZES

    return replace(problem, **{name: getattr(step.default_problem, name) for name in SIZES})


def another_kernel(name: str, problem) -> str | None:
    """Says so where ``problem`` has another kernel than at the size of the step's own problem.

    A file refuses what its kernel is not for.
    """
    from steps import get_step
    from steps.core.problems import as_options, smaller

    if name.endswith(".py"):
        return None
    step = get_step(name)
    if _has_own_kernel(step, problem):
        return None
    own = _at_own_size(step, problem)
    found = next((small for small in smaller(own) if _has_own_kernel(step, small)), own)
    return f"Not the kernel of the step's own size, {own.describe()}: {as_options(found, problem)} has that."


class Examination:
    """A step and a problem, with inputs and what is right for them."""

    def __init__(self, step, problem, seed: int):
        from tutorial_lib.passes import pass_of

        self.step, self.problem, self.kind = step, problem, pass_of(step)
        self.inputs = self.kind.inputs(problem, seed)
        self.exact = self.kind.reference(problem, self.inputs)
        self.allowed = self.kind.yardstick(problem, self.inputs, self.exact)

    def under(self, seed: int | None, trace: bool = False):
        """(what is wrong under the latencies of a seed, the longest simulated launch or None, the accuracy or None)."""
        from tutorial_lib.simulator.block import Deadlock, KernelError, Unknown
        from tutorial_lib.simulator.run import watched

        wrong, accuracy = [], None
        with watched(seed, trace) as watch:
            try:
                accuracy = self.kind.check(self.step, self.problem, self.inputs, self.exact, self.allowed)
                wrong += [] if accuracy.correct else [accuracy.explain()]
            except Deadlock as error:
                wrong.append(f"deadlock: {error}")
            except (KernelError, Unknown) as error:
                wrong.append(f"refused: {error}")
        found = [told for run in watch.runs for told in run.found.values()]
        longest = max(watch.runs, key=lambda run: max(run.clocks.values(), default=0), default=None)  # of several
        return [*found, *wrong], longest, accuracy

    def told(self, seed: int | None = None) -> str:
        """What is wrong under the latencies of a seed, as a block of text for a page."""
        from steps.writing.written import plainly
        from tutorial_lib.display import callers_below

        wrong, _, _ = self.under(seed)
        if not wrong:
            return "```\nCorrect: no race, no missing fence, no deadlock was found.\n```"
        found = [callers_below(plainly(each)) for each in wrong]
        rest = [f"... and {len(found) - SHOWN} more."] if len(found) > SHOWN + 1 else found[SHOWN:]
        return "```\n" + "\n".join([*found[:SHOWN], *rest]) + "\n```"


def simulate(
    console, step, problem, seeds: Sequence[int | None], inputs: int, timeline: Path | None, name: str = "kernel"
) -> int:
    """Run under every schedule until something is found, and tell. inputs: their seed. name: of a written kernel."""
    from steps.writing.written import plainly

    examination = Examination(step, problem, inputs)
    console.print(f"Step {step.label} ({step.title}), simulated: {problem.describe()}.", style="bold", soft_wrap=True)
    began, first = time.perf_counter(), None
    for seed in seeds:
        wrong, made, accuracy = examination.under(seed, trace=timeline is not None and first is None)
        first = first or made
        if wrong:
            for line in wrong:
                console.print(plainly(line, name), soft_wrap=True, markup=False)
            whose = "of the model" if seed is None else f"of seed {seed}"
            console.print(
                f"Found with the latencies {whose}; nothing more was run. --inputs {inputs} has these inputs again."
            )
            break
    else:
        took = time.perf_counter() - began
        schedules = "one schedule" if len(seeds) == 1 else f"{len(seeds)} schedules"
        whose, found, theirs = examination.kind.measure, accuracy.max_error, accuracy.reference_error
        console.print(f"Correct: an error of {found:.0e}, {whose} is {theirs:.0e}.")
        if examination.kind.causes(problem):
            errors = examination.kind.errors_by_cause(problem, inputs, examination.exact, examination.allowed, step)
            console.print(examination.kind.told_by_cause(problem, errors), soft_wrap=True)
        console.print(f"No race, no missing fence, no deadlock under {schedules}, in {took:.1f} s.")
        console.print(_busy(first), soft_wrap=True)
        if first.counts:
            ways = ", ".join(f"{way} {count} times" for way, count in first.counts.items())
            console.print(f"Votes of waves, each on a block of the output: {ways}.")
    if timeline and first and first.trace:
        from steps.trace import beside_simulated, show_shares
        from tutorial_lib.files import RESULTS, write_whole
        from tutorial_lib.pictures import simulated_timeline
        from tutorial_lib.plots import png
        from tutorial_lib.records import recorded_traces

        measured = next(iter(recorded_traces(RESULTS, step.name)), None)
        title = f"step {step.label}, {problem.describe()}"
        write_whole(timeline, png(simulated_timeline(first, title, measured)))
        console.print(f"Written: {timeline}", soft_wrap=True)
        if measured:
            where = f"{measured.machine['name']}, {measured.the_problem().describe()}, {measured.day}"
            console.print(f"Below it the measured one: {where}. With the same stamps on the simulator:", soft_wrap=True)
            show_shares(console, measured, beside_simulated(step, measured).shares)
    return 1 if wrong else 0


def _busy(run) -> str:
    """What the units did, of the clocks that all blocks took together."""
    total = sum(run.clocks.values())
    shares = ", ".join(f"{name} {busy / total:.0%}" for name, busy in run.busy.items() if busy)
    longest = run.clocks[run.longest]
    return f"{len(run.clocks)} blocks, the longest of {longest:,.0f} simulated clocks; busy of them all: {shares}."


def main(arguments: Sequence[str] | None = None) -> int:
    return as_command("steps.simulate", lambda: run(make_parser().parse_args(arguments)), interrupted="Interrupted.")


if __name__ == "__main__":
    sys.exit(main())
