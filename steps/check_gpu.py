"""Is what is recorded of this GPU still true? ``python -m steps.check_gpu`` looks at twelve problems again.

For each: is the step that ``steps.best`` chooses right against float64, on inputs that are new each time, and is it as
many times as fast as PyTorch's own attention as the record of this GPU says, within 3 %? A GPU without a record of the
problem is not compared with another: there the step is only checked. A line each. At most 150 s on an H100.
Exit status: 0 all are right and as recorded; 1 one is wrong, or slower or faster than that; 2 the request makes no
sense, or there is no GPU; 130 interrupted.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tutorial_lib.command import BadRequest, as_command, make_console, parser_of, whole_number
from tutorial_lib.files import RESULTS

SECONDS = 150  # that it may take on an H100 with nothing compiled
RECORDED_ON = "nvidia-h100-80gb-hbm3"  # the GPU of which all of the problems are recorded


def problems() -> tuple:
    """What is looked at, a ``Checked`` each.

    Both directions, three head_dims, with and without a mask, both dtypes as far as they are recorded (of the backward
    pass float16 is), grouped heads, a window, decoding; the first ones are recorded on an H200, too.
    """
    from steps.core.problems import DECODING, FULL, HEADLINE, standard
    from steps.measuring.recheck import Checked

    grouped = replace(HEADLINE, heads=64, kv_heads=8)
    return (
        Checked(HEADLINE),
        Checked(FULL),
        Checked(standard(causal=True, dtype="bfloat16")),
        Checked(standard(head_dim=64, causal=True, dtype="bfloat16")),
        Checked(standard(head_dim=256, causal=True)),
        Checked(replace(grouped, dtype="bfloat16")),
        Checked(replace(HEADLINE, dtype="bfloat16", window=1024)),
        Checked(DECODING),
        Checked(HEADLINE, "backward"),
        Checked(standard(head_dim=64), "backward"),
        Checked(standard(head_dim=256, causal=True), "backward"),
        Checked(grouped, "backward"),
    )


def make_parser() -> argparse.ArgumentParser:
    parser = parser_of("steps.check_gpu", __doc__)
    told = "rounds of a problem; more follow where its ratio is another one (7)"
    parser.add_argument("--iterations", type=whole_number, default=7, metavar="N", help=told)
    parser.add_argument("--seed", type=int, metavar="N", help="of the inputs, to have the same again (a random one)")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="the records (results)")
    return parser


def run(options: argparse.Namespace) -> int:
    """Look at all problems and show a line each; raises BadRequest without a GPU."""
    began = time.monotonic()
    from tutorial_lib.hardware import describe_machine, why_no_gpu

    if why := why_no_gpu():
        raise BadRequest(f"this needs a GPU, and {why}")
    from steps.core.recorded import recorded_runs
    from steps.measuring.ahead import compile_ahead
    from steps.measuring.bench import is_missing
    from steps.measuring.recheck import Examiner, examine_all, task_of
    from tutorial_lib.worker import Worker

    machine, console = describe_machine("cuda"), make_console()
    seed = secrets.randbits(32) if options.seed is None else options.seed
    runs = {direction: recorded_runs(options.results, direction) for direction in ("forward", "backward")}
    tasks = [task_of(each, machine["arch"], machine["slug"], runs[each.direction]) for each in problems()]
    with console.status("compiling") as status:
        kernels = [(task.step, task.checked.problem) for task in tasks if task.step is not None]
        missing = [(step, p) for step, p in kernels if is_missing(partial(step.compile, p, machine["arch"]))]
        compile_ahead(missing, machine["arch"], SECONDS, status.update)
        compiled = time.monotonic() - began
        with Worker(Examiner, "cuda") as worker:
            found = []
            for finding in examine_all(tasks, worker, seed, options.iterations, tell=status.update):
                found.append(finding)
                console.print(line(finding, tasks), soft_wrap=True, markup=False)
    console.print(summary(found, machine["name"]), soft_wrap=True, markup=False)
    took = f"{time.monotonic() - began:.0f} s in all, of which {compiled:.0f} s until all was compiled"
    console.print(f"{took}; --seed {seed}.", soft_wrap=True, markup=False)
    return 0 if all(each.right and each.as_recorded for each in found) else 1


def line(finding, tasks: Sequence) -> str:
    """The problem, the step, whether it is right with its error as a share of PyTorch's, the ratio, the verdict."""
    task = finding.task
    widths = [max(map(len, column)) for column in zip(*map(named, tasks))]
    columns = [text.ljust(width) for text, width in zip(named(task), widths)]
    return " ".join([*columns, right(finding).ljust(10), *ratio(finding), finding.verdict])


def named(task) -> tuple[str, str]:
    """(the problem, the step)."""
    return task.checked.name, task.step.name if task.step is not None else "–"


def right(finding) -> str:
    """Such as ``right 0.98``: the largest error over PyTorch's."""
    if finding.accuracy is None:
        return "–"
    error, own = finding.accuracy.max_error, finding.accuracy.reference_error
    return f"{'right' if finding.accuracy.correct else 'wrong'} {error / own if own else error:.2f}"


def ratio(finding) -> list[str]:
    """Such as ``1.17 (1.16–1.18)``; nothing where it was not timed."""
    found = finding.ratio
    return [f"{found.median:.2f} ({found.low:.2f}–{found.high:.2f})"] if found else []


def summary(found: Sequence, machine: str) -> str:
    """How many are right and as recorded, and which are not."""
    compared = [each for each in found if each.right and each.ratio]
    told = [f"{machine}: {sum(each.right for each in found)} of {len(found)} right"]
    told.append(f"{sum(each.as_recorded for each in compared)} of {len(compared)} as far ahead of PyTorch as recorded")
    others = [f"{each.task.checked.name}: {each.verdict}" for each in found if not (each.right and each.as_recorded)]
    return "; ".join([", ".join(told), *others]) + "."


def main(arguments: Sequence[str] | None = None) -> int:
    return as_command("steps.check_gpu", lambda: run(make_parser().parse_args(arguments)), interrupted="Interrupted.")


if __name__ == "__main__":
    sys.exit(main())
