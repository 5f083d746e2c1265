"""Are we fast on what people bring? ``python -m steps.sweep`` draws problems from known models, and times them.

``steps.attention`` is timed in the same rounds as SDPA left to itself, SDPA's cuDNN and FlashAttention-2, and
FlashAttention-3 and 4 where they are installed. Outputs are checked against float64, and a peer that is wrong is left
out. steps/measuring/models.toml holds the models, with sources; the same seed draws the same problems.

--pass says what a call is; several passes take turns. "forward" is attention without gradients, and "backward" the
gradients alone, by autograd. Both are times on the GPU: calls are queued behind a spin, so the host's time is left out,
and recorded beside it. That is how a program runs whose GPU is the bottleneck, or one with CUDA graphs. "training" is
both together, as who calls them eagerly waits: from the first call of a sample until the GPU has finished the last, the
host's time included. A call to one of SDPA's backends enters ``sdpa_kernel``, which takes the host some microseconds.
Tensors are contiguous ``[batch, heads, length, head_dim]``.

--steps times every step that might be the fastest beside SDPA, in forward calls, and no peer: ``steps.best`` learns
from it. RESULTS/MACHINE/candidates.json holds that.

RESULTS/MACHINE/sweep.json is written after each problem, and holds all passes and seeds. What is in it is not measured
again, so a later call goes on where an earlier one stopped. Without a GPU, what is recorded is shown. Exit status: 0
done; 1 it cannot be written; 2 the request makes no sense; 130 interrupted.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import time
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from steps.measuring.drawing import TIMED, problems
from tutorial_lib.command import (
    BadRequest,
    as_command,
    check_one_of,
    measure_or_show,
    parser_of,
    print_table,
    whole_number,
)
from tutorial_lib.files import RESULTS

NAME, OF_STEPS = "sweep.json", "candidates.json"
COMPILER_SECONDS = 60.0  # without any kernel ready
PROBLEM_SECONDS = 4.0  # that a problem takes, its compilers' share included: so many are compiled as the time is for
SILENCE = 120.0  # seconds that end a problem


def make_parser() -> argparse.ArgumentParser:
    parser = parser_of("steps.sweep", __doc__)
    told = f"what a call is: {', '.join(TIMED)}, or several of them, which take turns (forward)"
    parser.add_argument("--pass", dest="timed", default="forward", metavar="PASS,...", help=told)
    parser.add_argument("--steps", action="store_true", help="time the steps that might be the fastest, forward")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the drawing (0)")
    parser.add_argument("--count", type=whole_number, default=40, metavar="N", help="problems of each pass (40)")
    parser.add_argument("--iterations", type=whole_number, default=5, metavar="N", help="rounds of a problem (5)")
    told = "end before a problem that would take longer than this from the start (no limit)"
    parser.add_argument("--seconds", type=whole_number, metavar="N", help=told)
    parser.add_argument("--output-dir", type=Path, default=RESULTS, metavar="DIR", help="where to write (results)")
    return parser


def run(options: argparse.Namespace) -> int:
    from steps.core.recorded import recorded_candidates, recorded_sweeps

    options.timed = list(dict.fromkeys(options.timed.split(",")))  # each once
    for timed in options.timed:
        check_one_of("--pass", timed, list(TIMED))
    if options.steps and options.timed != ["forward"]:
        raise BadRequest("--steps takes forward calls alone: leave --pass out")
    kept = (OF_STEPS, recorded_candidates) if options.steps else (NAME, recorded_sweeps)
    return measure_or_show(options.output_dir, *kept, lambda console: measure(options, console), show)


def measure(options: argparse.Namespace, console):
    """The ``records.Sweep`` of this machine with these problems; raises BadRequest for a file of another kind."""
    began = time.monotonic()
    from steps.core.choice import candidates
    from steps.measuring.ahead import compile_ahead, differing
    from steps.measuring.sweep import KEPT_ON_DISK, Restoring, Sweeper, chosen_steps, time_problem, to_compile
    from tutorial_lib.files import write_whole
    from tutorial_lib.hardware import describe_machine
    from tutorial_lib.records import Candidates, Sweep
    from tutorial_lib.results import as_json
    from tutorial_lib.worker import Worker

    os.environ.setdefault(KEPT_ON_DISK, "1")
    machine = describe_machine("cuda")
    path = options.output_dir / machine["slug"] / (OF_STEPS if options.steps else NAME)
    record = read_or_begin(path, machine, Candidates if options.steps else Sweep)
    drawn, arch = left_to_do(record, options), machine["arch"]
    wanted, restoring, chance, longest = len(drawn), Restoring(SILENCE), random.Random(), 0.0

    def left() -> float:
        """Seconds."""
        return math.inf if options.seconds is None else options.seconds - (time.monotonic() - began)

    with (
        console.status("looking up and compiling the steps") as status,
        Worker(Sweeper, "cuda", on_start=restoring.again) as worker,
    ):
        while drawn and left() >= longest:  # nothing is compiled while something is timed
            part = drawn[: int(min(len(drawn), max(1, left() / PROBLEM_SECONDS)))]
            if options.steps:
                chosen = {(timed, one.problem): candidates(one.problem, arch) for timed, one in part}
                kernels = differing([(step, asked) for (_, asked), steps in chosen.items() for step in steps], arch)
            else:
                chosen = {(timed, one.problem): chosen_steps(one.problem, arch, timed) for timed, one in part}
                kernels = to_compile(chosen, arch)
            compile_ahead(kernels, arch, COMPILER_SECONDS, status.update)
            for timed, one in part:
                now = time.monotonic()
                if left() < longest:
                    break
                status.update(f"{timed}, {one.model}, {one.problem.describe()}; then {len(drawn) - 1} more")
                steps = chosen[timed, one.problem]
                asked = options.seed, options.iterations, chance, options.steps
                row = time_problem(worker, restoring, one, timed, steps, *asked)
                record = record.model_copy(update={"date": row.date, "rows": [*record.rows, row]})
                write_whole(path, as_json(record))
                longest = max(longest, time.monotonic() - now)
                console.print(line(row), soft_wrap=True, markup=False)
                drawn = drawn[1:]
    if drawn:
        console.print(f"The time is over: {len(drawn)} of {wanted} problems are left.")
    return record


def left_to_do(record, options: argparse.Namespace) -> list[tuple]:
    """(pass, problem) of what is drawn and not recorded; passes take turns, so that a limit of time cuts all alike."""
    known = {(row.pass_, row.the_problem()) for row in record.rows}
    of_each = [[(timed, one) for one in problems(options.seed, options.count, timed)] for timed in options.timed]
    drawn = [each for turn in zip_longest(*of_each) for each in turn if each]
    return [(timed, one) for timed, one in drawn if (timed, one.problem) not in known]


def read_or_begin(path: Path, machine: dict, kind: type):
    """The sweep in a file, or one without rows where there is no file; raises BadRequest for a file of another kind."""
    from tutorial_lib import records
    from tutorial_lib.results import now

    if not path.exists():
        return kind(date=now(), machine=machine, rows=[])
    found = records.recorded(kind, path.parent.parent)
    here = [record for record in found if record.machine["slug"] == path.parent.name]
    if not here:
        raise BadRequest(f"{path} must hold a sweep, and does not: move it away, and a new one is begun")
    return here[0]


def line(row) -> str:
    """A problem in one line: how many times as fast as the best of the others, and as SDPA, or what went wrong.

    Of candidates: how long each takes.
    """
    from tutorial_lib import timing
    from tutorial_lib.records import BASELINE, FRONT_DOOR

    what = f"{row.pass_}, {row.model}, {row.the_problem().describe()}"
    if not row.timed:
        return f"{what}: {row.failure}"
    if FRONT_DOOR not in row.milliseconds:
        us = sorted((1000 * timing.spread(ms).median, name) for name, ms in row.milliseconds.items())
        return f"{what}: {', '.join(f'{name} {each:.3g} µs' for each, name in us)}"
    best, by = row.best_peer, " and ".join(row.steps)
    ratios = f"{row.ratio(best).median:.2f} times as fast as {best}, {row.ratio(BASELINE).median:.2f} as SDPA"
    return f"{what}: {ratios}; by {by}"


def show(console, record) -> None:
    """Of each pass the means by family, and all problems, the slowest beside the best of the others first."""
    from tutorial_lib import records, tables

    console.print(tables.about_sweep(record), style="bold", soft_wrap=True)
    if isinstance(record, records.Candidates):
        for row in record.rows:
            console.print(line(row), soft_wrap=True, markup=False)
        return
    for timed, title in tables.TIMED.items():
        if rows := record.of(timed):
            console.print(f"\n{title[0].upper()}{title[1:]}:")
            print_table(console, tables.FAMILY_HEADERS, tables.family_rows(rows))
            print_table(console, tables.SWEPT_HEADERS, tables.swept_rows(rows))
    for told in tables.failed_rows(record):
        console.print(told, soft_wrap=True, markup=False)


def main(arguments: Sequence[str] | None = None) -> int:
    told = "Interrupted: what was finished is recorded."
    return as_command("steps.sweep", lambda: run(make_parser().parse_args(arguments)), interrupted=told)


if __name__ == "__main__":
    sys.exit(main())
