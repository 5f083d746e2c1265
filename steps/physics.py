"""What the machine itself does: ``python -m steps.physics``.

Measures how many operations the units of an SM do in a clock, each by a kernel that does nothing else, and what power
does to the clock: a matrix product and attention, with random numbers and with zeros, after a rest and in a load that
goes on. Written to RESULTS/MACHINE/physics.json. Without a GPU, what is recorded is shown. Exit status: 0 done; 2 the
request makes no sense; 130 interrupted.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from tutorial_lib.command import BadRequest, as_command, measure_or_show, parser_of, print_table, whole_number
from tutorial_lib.files import RESULTS


def make_parser() -> argparse.ArgumentParser:
    parser = parser_of("steps.physics", __doc__)
    parser.add_argument("--step", default="best", help="the step among the loads (best, by what is recorded)")
    parser.add_argument("--iterations", type=whole_number, default=5, metavar="N", help="rounds (5)")
    parser.add_argument("--output-dir", type=Path, default=RESULTS, metavar="DIR", help="where to write (results)")
    return parser


def run(options: argparse.Namespace) -> int:
    from tutorial_lib.records import recorded_physics

    step = asked(options.step)
    return measure_or_show(
        options.output_dir,
        "physics.json",
        recorded_physics,
        lambda console: measure(step, options.iterations, console.print),
        show,
    )


def asked(name: str):
    """The step of this name, or the best recorded one; raises BadRequest."""
    from steps import best, get_step
    from steps.core.problems import FULL
    from steps.core.step import DEFAULT_ARCH
    from tutorial_lib.hardware import has_gpu

    try:
        return best(FULL, "cuda" if has_gpu() else DEFAULT_ARCH).step if name == "best" else get_step(name)
    except ValueError as error:
        raise BadRequest(str(error)) from None


def measure(attention, rounds: int, tell: Callable[[str], object]):
    """A ``records.Physics`` of this machine, with this step as a load.

    Raises BadRequest where the step does not run here, or the SMs' clock cannot be read.
    """
    from steps.core.problems import FULL
    from tutorial_lib import rates, records, timing
    from tutorial_lib.clock import Stopwatch
    from tutorial_lib.hardware import describe_machine, gpu_turn
    from tutorial_lib.results import Latency
    from tutorial_lib.samples import cycles_of, ghz_of, sustained_of

    machine = describe_machine("cuda")
    if reason := attention.unsupported(FULL, machine["arch"]):
        raise BadRequest(f"step {attention.label}: {reason}")
    with gpu_turn("cuda"):
        stopwatch = Stopwatch()
        measured = []
        for rate in rates.of_arch(machine["arch"]):
            tell(f"rate: {rate.what}")
            call = rates.call_of(rate)
            plan = timing.plan_sample(call)
            rested = [asdict(timing.take_sample(call, plan, stopwatch)) for _ in range(rounds)]
            clocked = [sample for sample in rested if sample["clock"]]
            if not clocked:
                raise BadRequest(f"the SMs' clock cannot be read here: {rested[0]['no_clock']}")
            a_clock = Latency.of([rate.operations_of_an_sm / cycles_of([sample]) for sample in clocked])
            measured.append(
                records.UnitRate(name=rate.name, what=rate.what, a_clock=a_clock, clock_ghz=ghz_of(clocked))
            )
        loads = list(_loads(FULL, attention))
        plans = [timing.plan_sample(call) for *_, call in loads]
        rested, going_on = [[] for _ in loads], [[] for _ in loads]
        order = list(range(len(loads)))
        for sustained in (False, True):
            for n in range(rounds):
                tell(f"loads{', going on' if sustained else ''}: round {n + 1} of {rounds}")
                random.shuffle(order)
                for i in order:
                    call, plan = loads[i][3], plans[i]
                    if sustained:
                        going_on[i].append(asdict(timing.take_sustained_sample(call, plan.milliseconds, stopwatch)))
                    else:
                        rested[i].append(asdict(timing.take_sample(call, plan, stopwatch)))
    found = []
    for (name, inputs, operations, _), mine, lasting in zip(loads, rested, going_on):
        latency = Latency.of([sample["milliseconds"] for sample in mine])
        found.append(
            records.Load(
                name=name,
                inputs=inputs,
                rested_ms=latency,
                rested_tflops=operations / latency.median / 1e9,
                rested_ghz=ghz_of(mine),
                sustained=sustained_of(lasting, operations),
            )
        )
    return records.Physics.made_here(machine, problem=FULL.as_dict(), rates=measured, loads=found)


def _loads(problem, attention) -> Iterator[tuple[str, str, float, Callable]]:
    """(name, inputs, operations of a call, call) of every load."""
    import torch

    from steps import get_step
    from tutorial_lib import timing
    from tutorial_lib.passes import FORWARD

    size = timing.CEILING_SIZE
    given = FORWARD.inputs(problem, 0, "cuda")
    for inputs in ("random", "zeros"):
        make = torch.randn if inputs == "random" else torch.zeros
        a, b = (make(size, size, dtype=torch.float16, device="cuda") for _ in range(2))
        product = torch.empty_like(a)
        yield "matrix product", inputs, timing.CEILING_FLOPS, lambda i, a=a, b=b, o=product: torch.mm(a, b, out=o)
        q, k, v = given if inputs == "random" else tuple(torch.zeros_like(x) for x in given)
        out = torch.empty_like(q)
        for step in dict.fromkeys((get_step("sdpa"), attention)):
            call = lambda i, s=step, given=(q, k, v), out=out: s.attention(*given, problem.causal, out=out)
            yield step.name, inputs, FORWARD.operations(problem), call


def show(console, physics) -> None:
    from tutorial_lib import tables

    console.print(f"{physics.machine['name']}, {physics.day}", style="bold")
    print_table(console, tables.RATE_HEADERS, tables.rate_rows(physics))
    print_table(console, tables.LOAD_HEADERS, tables.load_rows(physics))
    for note in physics.notes:
        console.print(note, soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> int:
    return as_command("steps.physics", lambda: run(make_parser().parse_args(arguments)), interrupted="Interrupted.")


if __name__ == "__main__":
    sys.exit(main())
