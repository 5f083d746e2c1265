"""A step on the simulator: ``python -m steps.simulate producer --without "wait(barriers.value_empty"``.

Runs a Gluon or Hopper kernel on the CPU, says whether its result is right, and looks for races, missing fences and
deadlocks, under as many random latencies as ``--schedules`` asks for. ``--without`` takes one synchronisation out of
the kernel first, to see what is said; a file that ``steps.show`` wrote, edited or not, can stand for a step. What it
draws and counts is simulated: it explains what waits for what, and not how fast the kernel is. Exit status: 0 nothing
is wrong; 1 something was found; 2 the request makes no sense; 130 interrupted.
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
from tutorial_lib.problem import FP8, SHORT_DTYPES

SIMULATED = ("gluon", "hopper", "blackwell", "triton", "cdna")  # kernels in Gluon, and one in Triton
RAGGED, EVEN = 300, 512  # lengths, of tiles that are not all full, and of full ones


def make_parser() -> argparse.ArgumentParser:
    parser = parser_of("steps.simulate", __doc__)
    parser.add_argument("step", help="number or name of a step, or a file that steps.show wrote")
    number = {"type": whole_number, "metavar": "N"}
    length = f"query length ({RAGGED}; {EVEN} for a file whose kernel wants full tiles)"
    parser.add_argument("--batch", default=1, help="(1)", **number)
    parser.add_argument("--heads", default=2, help="query heads (2)", **number)
    parser.add_argument("--kv-heads", help="key and value heads (as many)", **number)
    parser.add_argument("--seq-len", help=length, **number)
    parser.add_argument("--seq-len-kv", help="key and value length (as --seq-len)", **number)
    parser.add_argument("--head-dim", default=128, help="(128; a file has its own, dtype, mask, heads)", **number)
    parser.add_argument("--dtype", choices=tuple(SHORT_DTYPES), help=f"(float16; of steps in fp8 {FP8})")
    parser.add_argument("--causal", action=argparse.BooleanOptionalAction, default=True, help="causal mask (on)")
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
    if options.sites:
        from tutorial_lib.simulator.breaking import broken

        for site in broken(step.text):
            if site.how == "without":
                console.print(f"{site.line:5} {site.what}", soft_wrap=True, markup=False)
        return 0
    seeds = [options.seed] if options.seed is not None else [None, *range(1, options.schedules)]
    inputs = secrets.randbits(32) if options.inputs is None else options.inputs
    return simulate(console, step, problem, seeds, inputs, options.timeline)


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
    from steps.writing.written import kernel_in

    try:
        kernel_in(step.text)
    except Exception as error:
        raise BadRequest(f"{step.title}: {type(error).__name__}: {error}") from None


def _problem(options: argparse.Namespace, step):
    """What was asked for; a file's kernel is for tensors of one kind, and of these it gets some."""
    from steps.core.problems import unnamed
    from steps.writing.written import WrittenStep
    from tutorial_lib.problem import Problem

    def of(length: int) -> Problem:
        queries = options.seq_len or length
        return Problem(batch=options.batch, seq_len_q=queries, seq_len_kv=options.seq_len_kv or queries, **kind)

    if not isinstance(step, WrittenStep):
        kind = {name: getattr(options, name) for name in ("heads", "kv_heads", "head_dim", "dtype", "causal", "window")}
        kind |= unnamed(step)
        kind["dtype"] = options.dtype or (FP8 if "fp8" in step.takes else "float16")
        return of(RAGGED)
    its = step.written_for
    kind = {name: getattr(its, name) for name in ("head_dim", "dtype", "causal", "window", "softcap", "sinks")}
    kind |= {"heads": 2 * its.group_size, "kv_heads": 2}
    return of(EVEN if step.unsupported(of(RAGGED), "cpu") else RAGGED)


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


def simulate(console, step, problem, seeds: Sequence[int | None], inputs: int, timeline: Path | None) -> int:
    """Run under every schedule until something is found, and tell. inputs: the seed of the inputs."""
    examination = Examination(step, problem, inputs)
    console.print(f"Step {step.label} ({step.title}), simulated: {problem.describe()}.", style="bold", soft_wrap=True)
    began, first = time.perf_counter(), None
    for seed in seeds:
        wrong, made, accuracy = examination.under(seed, trace=timeline is not None and first is None)
        first = first or made
        if wrong:
            for line in wrong:
                console.print(line, soft_wrap=True, markup=False)
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
        if examination.kind.causes:
            errors = examination.kind.errors_by_cause(problem, inputs, examination.exact, examination.allowed, step)
            console.print(examination.kind.told_by_cause(errors), soft_wrap=True)
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
        write_whole(timeline, png(simulated_timeline(first.trace, first.longest, title, measured)))
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
