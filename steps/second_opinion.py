"""Does another way of timing agree with ours? ``python -m steps.second_opinion`` times some steps by both.

Ours: a sample after a rest, and one in a load that goes on (``tutorial_lib.timing``). The other:
``triton.testing.do_bench_cudagraph``, which replays calls on the same inputs from a CUDA graph, ten times without a
rest. Contenders are sampled in turn, round after round. Written to RESULTS/MACHINE/second_opinion.json. Without a GPU,
what is recorded is shown. Exit status: 0 done; 1 it cannot be written; 2 the request makes no sense; 130 interrupted.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tutorial_lib.command import BadRequest, as_command, measure_or_show, parser_of, whole_number
from tutorial_lib.files import RESULTS

STEPS = "sdpa,approx_division,wgmma,pv_wait_after_max"  # the baseline, and one that is slow, middling and fast


def make_parser() -> argparse.ArgumentParser:
    parser = parser_of("steps.second_opinion", __doc__)
    parser.add_argument("--steps", default=STEPS, help=f"numbers, names and parts, as steps.run has them ({STEPS})")
    parser.add_argument("--iterations", type=whole_number, default=9, metavar="N", help="rounds (9)")
    parser.add_argument("--output-dir", type=Path, default=RESULTS, metavar="DIR", help="where to write (results)")
    return parser


def run(options: argparse.Namespace) -> int:
    from steps.core.recorded import recorded_opinions

    folder = options.output_dir
    return measure_or_show(
        folder, "second_opinion.json", recorded_opinions, lambda console: measure(options, console), show
    )


def measure(options: argparse.Namespace, console):
    """A ``records.Opinion`` of this machine; raises BadRequest for steps that are none, or take no such problem."""
    from steps.core.ladder import select
    from steps.core.problems import HEADLINE, standard
    from steps.measuring.bench import Bench
    from tutorial_lib import records
    from tutorial_lib.hardware import describe_machine, describe_versions

    machine = describe_machine("cuda")
    problems = standard(1024, causal=True), HEADLINE, standard(16384)
    try:
        steps = select(options.steps)
    except ValueError as error:
        raise BadRequest(f"argument --steps: {error}") from None
    for step in steps:
        for problem in problems:
            if reason := step.unsupported(problem, machine["arch"]):
                raise BadRequest(f"argument --steps: step {step.label}: {reason}")
    timed = []
    for problem in problems:
        bench, rounds = Bench(problem, "forward", "cuda", secrets.randbits(32), check=False), []
        for step in steps:
            bench.prepare(step)
        for number in range(options.iterations):
            with console.status(f"{problem.describe()}, round {number + 1} of {options.iterations}"):
                rounds.append({step.name: by_all(bench, step.name) for step in steps})
        timed.append(records.OpinionOn(problem=problem.as_dict(), rounds=rounds))
    return records.Opinion(
        schema=records.SCHEMA,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine,
        versions=describe_versions(),
        timed=timed,
    )


def by_all(bench, name: str) -> dict[str, float]:
    """Milliseconds of a call by every way of timing: a key of ``tables.WAYS`` each."""
    from triton.testing import do_bench_cudagraph

    from tutorial_lib.hardware import gpu_turn

    found = {way: bench.sample(name, way == "sustained")["milliseconds"] for way in ("rested", "sustained")}
    with gpu_turn("cuda"):
        return found | {"graph": do_bench_cudagraph(lambda: bench.calls[name](0), return_mode="median")}


def show(console, record) -> None:
    from rich.table import Table

    from tutorial_lib import tables

    console.print(tables.about_opinion(record), style="bold", soft_wrap=True)
    table = Table(*tables.OPINION_HEADERS, box=None)
    for row in tables.opinion_rows(record):
        table.add_row(*row)
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    told = "Interrupted: nothing was written."
    return as_command("steps.second_opinion", lambda: run(make_parser().parse_args(arguments)), interrupted=told)


if __name__ == "__main__":
    sys.exit(main())
