"""When a kernel's warpgroups wait, measured: ``python -m steps.trace producer``.

Compiles a Gluon or Hopper step with stamps of the SM's clock wherever a role has waited or is about to, runs it on the
GPU, and says what each role spent its time on. The stamps slow the kernel down, and the compiler schedules it otherwise
with them: by how much it is slower is measured, too. Written to RESULTS/MACHINE/PROBLEM/trace_STEP.json. Without a GPU
that runs the step, what is recorded is shown; `python -m steps.simulate --timeline` draws a simulated timeline. Exit
status: 0 done; 2 the request makes no sense; 130 interrupted.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tutorial_lib.command import (
    BadRequest,
    as_command,
    check_file,
    check_writable,
    make_console,
    parser_of,
    print_table,
    whole_number,
)
from tutorial_lib.files import RESULTS

STAMPS = 16384  # that a role may write: some 1,500 tiles of keys
ROUNDS = 5
SIMULATED_BLOCKS = 132  # of which the simulator's stamps are kept


def make_parser() -> argparse.ArgumentParser:
    parser = parser_of("steps.trace", __doc__)
    parser.add_argument("step", help="number or name of a Gluon or Hopper step")
    number = {"type": whole_number, "metavar": "N"}
    parser.add_argument("--batch", default=4, help="(4)", **number)
    parser.add_argument("--heads", default=32, help="query heads (32)", **number)
    parser.add_argument("--kv-heads", help="key and value heads (as many)", **number)
    parser.add_argument("--seq-len", default=4096, help="query length (4096)", **number)
    parser.add_argument("--seq-len-kv", help="key and value length (as --seq-len)", **number)
    parser.add_argument("--head-dim", default=128, help="(128)", **number)
    parser.add_argument("--dtype", default="float16", choices=("float16", "bfloat16"), help="(float16)")
    parser.add_argument("--causal", action=argparse.BooleanOptionalAction, default=True, help="causal mask (on)")
    parser.add_argument("--output-dir", type=Path, default=RESULTS, metavar="DIR", help="where to write (results)")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw the begin of the longest block, as PNG")
    return parser


def run(options: argparse.Namespace) -> int:
    from steps import get_step
    from steps.core.problems import unnamed
    from tutorial_lib.files import write_whole
    from tutorial_lib.hardware import describe_machine, has_gpu
    from tutorial_lib.pictures import measured_timeline
    from tutorial_lib.plots import png
    from tutorial_lib.problem import Problem
    from tutorial_lib.records import recorded_traces
    from tutorial_lib.results import as_json

    if options.figure:
        check_file("--figure", options.figure, ".png")
    console = make_console()
    try:
        step = get_step(options.step)
        if step.backend not in ("gluon", "hopper"):
            raise BadRequest(f"step {step.label}: traced are Gluon's kernels, whose waits are their own")
        shape = {name: getattr(options, name) for name in ("batch", "heads", "kv_heads", "head_dim", "dtype", "causal")}
        keys = options.seq_len_kv or options.seq_len
        problem = Problem(seq_len_q=options.seq_len, seq_len_kv=keys, **shape, **unnamed(step))
    except ValueError as error:
        raise BadRequest(str(error)) from None
    why_not = step.unsupported(problem, describe_machine("cuda")["arch"]) if has_gpu() else "there is no GPU here"
    if why_not is None:
        check_writable("--output-dir", options.output_dir)
        trace = measure(step, problem)
        path = options.output_dir / trace.machine["slug"] / problem.slug / f"trace_{step.name}.json"
        write_whole(path, as_json(trace))
    else:
        recorded = [t for t in recorded_traces(options.output_dir, step.name) if t.the_problem() == problem]
        if not recorded:
            raise BadRequest(
                f"{why_not}, and no trace of step {step.label} at {problem.describe()} is recorded: "
                f"`python -m steps.simulate {step.name} --timeline FILE` draws a simulated one"
            )
        trace, path = recorded[0], None
        console.print(f"Not measured here: {why_not}. Recorded:", soft_wrap=True, markup=False)
    show(console, step, trace)
    if options.figure:
        write_whole(options.figure, png(measured_timeline(trace)))
    for written in filter(None, (path, options.figure)):
        console.print(f"Written: {written}", soft_wrap=True)
    return 0


def measure(step, problem):
    """A ``records.Trace`` of a step on this GPU, which runs it."""
    import torch

    from steps.core.order import processors
    from tutorial_lib import records, timing
    from tutorial_lib.hardware import describe_machine, gpu_turn
    from tutorial_lib.passes import FORWARD
    from tutorial_lib.results import Latency

    device = torch.device("cuda", torch.cuda.current_device())
    with gpu_turn("cuda"):
        inputs = FORWARD.inputs(problem, 0, "cuda")
        plain, traced, tell = _with_and_without(step, problem, inputs, processors(device))
        if not torch.equal(plain(), traced()):
            raise RuntimeError(f"step {step.label}: with stamps it computes something else")
        found = tell()
        calls = {"plain": lambda i: plain(), "traced": lambda i: traced()}
        plans = {name: timing.plan_sample(call) for name, call in calls.items()}
        rounds = []
        for n in range(ROUNDS):
            order = sorted(calls, reverse=bool(n % 2))  # each is first in turn
            rounds.append({name: timing.take_sample(calls[name], plans[name]).milliseconds for name in order})
    return records.Trace.made_here(
        describe_machine("cuda"),
        problem=problem.as_dict(),
        step=step.name,
        slowed=Latency.of([r["traced"] / r["plain"] for r in rounds]),
        blocks=found.blocks,
        clocks=found.clocks,
        shares=found.shares,
        events=found.events,
    )


def simulate(step, problem):
    """What the stamps tell on the simulator, as ``tracing.Traced``: of all blocks of a small problem."""
    from steps.core.fused import tiles_visited
    from tutorial_lib.passes import FORWARD

    blocks = min(tiles_visited(problem, step.variant(problem).tile), SIMULATED_BLOCKS)
    _, traced, tell = _with_and_without(step, problem, FORWARD.inputs(problem, 0), blocks)
    traced()
    return tell()


def beside_simulated(step, trace):
    """The same stamps on the simulator, for one head of the trace's problem: the shares are those of more heads."""
    return simulate(step, dataclasses.replace(trace.the_problem(), batch=1, heads=1, kv_heads=1))


def _with_and_without(step, problem, inputs, blocks: int):
    """(a call of the kernel, one with stamps of the first blocks, what these tell afterwards).

    Raises ValueError for a problem that the step does not take.
    """
    import torch

    from steps.core.step import DEFAULT_ARCH, target_of
    from steps.writing.stamps import ID_BITS, with_stamps
    from steps.writing.written import kernel_in, write_step
    from tutorial_lib.tracing import summarise

    device = inputs[0].device
    target = target_of(device)
    if reason := step.unsupported(problem, target):
        raise ValueError(reason)
    written = write_step(step, problem, target if device.type == "cuda" else DEFAULT_ARCH)
    stamped = with_stamps(written.text, blocks, STAMPS)
    stamps = torch.full((blocks, len(stamped.roles), STAMPS), -1, dtype=torch.int64, device=device)
    tensors, sinks = inputs[:3], inputs[3:]
    plain, traced = (
        partial(written.base.make_kernel_ready(kernel_in(text), problem, *tensors, None, *more), *tensors, None, *sinks)
        for text, more in ((written.text, ()), (stamped.text, (stamps,)))
    )
    return plain, traced, lambda: summarise(stamps.tolist(), stamped.segments, stamped.roles, ID_BITS)


def show(console, step, trace) -> None:
    console.print(
        f"Step {step.label}, {trace.the_problem().describe()}: {trace.machine['name']}, {trace.day}", style="bold"
    )
    show_shares(console, trace)


def show_shares(console, trace, simulated: dict | None = None) -> None:
    """What each role spent its time on; simulated: the same shares on the simulator, shown in brackets."""
    from tutorial_lib import tables

    print_table(console, *tables.trace_table(trace, simulated))
    console.print(tables.about_trace(trace), soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> int:
    return as_command("steps.trace", lambda: run(make_parser().parse_args(arguments)), interrupted="Interrupted.")


if __name__ == "__main__":
    sys.exit(main())
