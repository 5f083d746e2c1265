"""What was tried and left: ``python -m steps.trials`` measures it on a GPU, and keeps speed and error.

A step is kept when it helps somewhere. What helps nowhere on the machine at hand is measured all the same: a trial
fills one hole of a step with one value after another. It is recorded in the schema of results.json, as
``results/<machine>/trials/<trial>/<problem>.json``. Exit status: 0 done; 1 a value failed or was wrong; 2 bad request.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from steps.hopper import ALWAYS
from steps.run import RESULTS
from tutorial_lib.command import BadRequest, OneLineParser, check_writable, make_console, whole_number
from tutorial_lib.problem import Problem
from tutorial_lib.results import ResultsError, Run, read_run

LONG = Problem(batch=4, heads=32, seq_len_q=4096, seq_len_kv=4096, head_dim=128)
CAUSAL = dataclasses.replace(LONG, causal=True)
NARROW = dataclasses.replace(LONG, head_dim=64)
BROAD = dataclasses.replace(LONG, heads=16, kv_heads=16, head_dim=256)

OFF_ON = {"off": False, "on": True}


@dataclass(frozen=True)
class Trial:
    """One hole of a step, filled with one value after another; the first is the step as it is.

    values: what the axis of a plot shows -> what fills the hole; for what is "off" or "on", no axis.
    """

    name: str
    question: str
    step: str
    hole: str
    values: dict[float | str, object]
    problems: tuple[Problem, ...]
    axis: str | None = None

    @property
    def is_switch(self) -> bool:
        return self.axis is None

    def steps(self) -> list:
        """The step, once for each value."""
        from steps import get_step

        base = get_step(self.step)
        form = "" if self.is_switch else "g"
        return [
            dataclasses.replace(base, name=f"{self.name}_{shown:{form}}", previous=base, **{self.hole: value})
            for shown, value in self.values.items()
        ]


TRIALS = (
    Trial(
        name="polynomial",
        question="Would some of the exponentials be faster as a polynomial on the multiply-add units?",
        step="lean_sum",
        hole="polynomial",
        axis="exponentials computed as a polynomial, %",
        values={12.5 * share: share for share in range(7)},
        problems=(NARROW, LONG),
    ),
    Trial(
        name="lazy",
        question="Would it be faster to rescale the output only when some maximum grew by more than a threshold?",
        step="lean_sum",
        hole="lazy",
        axis="threshold, powers of two (0: always rescaled)",
        values={threshold: float(threshold) for threshold in (0, 2, 4, 8)},
        problems=(NARROW, LONG, CAUSAL),
    ),
    Trial(
        name="late_wait",
        question="Would it be faster to keep the wait for the PV product behind the softmax in the machine code, too?",
        step="early_query",
        hole="late_wait",
        values={"off": None, "on": ALWAYS},
        problems=(NARROW, LONG, CAUSAL, BROAD),
    ),
    Trial(
        name="ahead",
        question="Would cuTile's kernel be faster with the QK product of the next tile before the softmax of this one?",
        step="stay",
        hole="ahead",
        values=OFF_ON,
        problems=(LONG, CAUSAL),
    ),
    Trial(
        name="alternating",
        question="Would it help the L2 cache to walk over K and V forwards and backwards in turn?",
        step="stay",
        hole="alternating",
        values=OFF_ON,
        problems=(LONG,),
    ),
)


def get_trial(name: str) -> Trial:
    """The trial of this name; raises ValueError that lists those there are."""
    for trial in TRIALS:
        if trial.name == name:
            return trial
    raise ValueError(f"trial must be one of: {', '.join(t.name for t in TRIALS)}; got {name!r}")


def recorded_trial(trial: Trial, results: Path = RESULTS) -> list[Run]:
    """What was recorded of a trial, in the order of its problems."""
    runs = []
    for path in sorted(results.glob(f"*/trials/{trial.name}/*.json")):
        try:
            runs.append(read_run(path))
        except ResultsError:
            continue  # somebody else's file
    return sorted(runs, key=lambda run: run.the_problem().order)


def make_parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="python -m steps.trials", description=__doc__.split("\n\n")[0])
    parser.add_argument("trials", nargs="*", metavar="TRIAL", help=f"of {', '.join(t.name for t in TRIALS)} (all)")
    parser.add_argument("--iterations", default=5, type=whole_number, metavar="N", help="rounds of timing (5)")
    parser.add_argument("--output-dir", type=Path, default=RESULTS, metavar="DIR", help="where to write (results)")
    return parser


def run(options: argparse.Namespace) -> int:
    import secrets

    from steps.measuring.measure import Settings, measure
    from tutorial_lib.files import write_whole
    from tutorial_lib.hardware import has_gpu

    try:
        chosen = [get_trial(name) for name in options.trials] or TRIALS
    except ValueError as error:
        raise BadRequest(str(error)) from None
    check_writable("--output-dir", options.output_dir)
    if not has_gpu():
        raise BadRequest("trials are timed, and PyTorch finds no CUDA GPU here: summary.ipynb shows what is recorded")
    console = make_console()
    failed = False
    for trial in chosen:
        console.print(trial.question)
        for problem in trial.problems:
            settings = Settings(device="cuda", seed=secrets.randbits(32), rounds=options.iterations)
            with console.status(f"{trial.name}: {problem.describe()}"):
                found, interrupted, _ = measure(problem, trial.steps(), [], settings)
            if interrupted:
                raise KeyboardInterrupt
            for m in found.steps:
                told = f"{m.tflops:.0f} TFLOPS, error {m.max_error:.1e}" if m.tflops else f"{m.status}: {m.reason}"
                console.print(f"  {problem.slug} {m.name}: {told}", soft_wrap=True)
            failed |= any(m.status == "failed" for m in found.steps)
            path = options.output_dir / found.machine["slug"] / "trials" / trial.name / f"{problem.slug}.json"
            write_whole(path, found.model_dump_json(by_alias=True, indent=1) + "\n")
            console.print(f"Written: {path}", soft_wrap=True)
    return int(failed)


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        return run(make_parser().parse_args(arguments))
    except BadRequest as error:
        print(f"steps.trials: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted; what was finished is kept.", file=sys.stderr)
        return 130
    except OSError as error:  # a full disk, say
        print(f"steps.trials: cannot write results: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
