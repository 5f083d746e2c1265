"""``python -m steps.trials``: measures on a GPU what was tried and left, and keeps speed and error.

Recorded in the schema of results.json, as ``results/<machine>/trials/<trial>/<problem>.json``. Exit status: 0 done; 1 a
version failed or was wrong; 2 bad request.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from steps.core.grids import some_of
from steps.trials import all_trials, get_trial
from tutorial_lib.command import BadRequest, as_command, check_writable, make_console, parser_of, whole_number
from tutorial_lib.files import RESULTS


def make_parser() -> argparse.ArgumentParser:
    parser = parser_of("steps.trials", __doc__)
    parser.add_argument("trials", nargs="*", metavar="TRIAL", help=f"of {', '.join(all_trials())} (all)")
    parser.add_argument("--iterations", default=5, type=whole_number, metavar="N", help="rounds of timing (5)")
    going_on = "also measure without any rest, and energy: so many rounds of 1.5 s each (3)"
    parser.add_argument("--sustained", nargs="?", default=0, const=3, type=whole_number, metavar="N", help=going_on)
    parser.add_argument("--profile", action="store_true", help="also read hardware counters with ncu")
    peers = "other libraries in the same rounds: all, or names such as sdpa_cudnn,flash_attn_4"
    parser.add_argument("--peers", nargs="?", const="all", metavar="NAMES", help=peers)
    some = "only problems in whose names one of these stands, such as d64_fp16,s1024_ (all problems of a trial)"
    parser.add_argument("--problems", metavar="TEXT,...", help=some)
    parser.add_argument("--output-dir", type=Path, default=RESULTS, metavar="DIR", help="where to write (results)")
    return parser


def run(options: argparse.Namespace) -> int:
    import secrets

    from steps.measuring.measure import Settings, measure
    from steps.run import select_peers
    from tutorial_lib.files import write_whole
    from tutorial_lib.hardware import why_no_gpu
    from tutorial_lib.results import as_json

    try:
        chosen = [get_trial(name) for name in options.trials] or list(all_trials().values())
    except ValueError as error:
        raise BadRequest(str(error)) from None
    try:
        asked = {trial.name: some_of(trial.problems, options.problems, trial.name) for trial in chosen}
    except ValueError as error:
        raise BadRequest(f"argument --problems: {error}") from None
    check_writable("--output-dir", options.output_dir)
    if why := why_no_gpu():
        raise BadRequest(f"trials are timed, and {why}: summary.ipynb shows what is recorded")
    console = make_console()
    failed = False
    for trial in chosen:
        console.print(trial.question)
        peers = select_peers(options.peers, trial.direction)
        for problem in asked[trial.name]:
            seed = secrets.randbits(32)
            settings = Settings(
                device="cuda",
                seed=seed,
                rounds=options.iterations,
                sustained=options.sustained,
                check=trial.right,
                profile=options.profile,
            )
            with console.status(f"{trial.name}: {problem.describe()}"):
                found, interrupted, _ = measure(problem, trial.steps(problem), peers, settings)
            if interrupted:
                raise KeyboardInterrupt
            for m in (*found.steps, *found.peers):
                told = f"{m.tflops:.0f} TFLOPS" if m.tflops else f"{m.status}: {m.reason}"
                if m.max_error is not None:
                    told += f", error {m.max_error:.1e}"
                if m.sustained:
                    told += f"; without rest {m.sustained.tflops:.0f} TFLOPS"
                console.print(f"  {problem.slug} {m.name}: {told}", soft_wrap=True)
            failed |= any(m.status == "failed" for m in found.steps)
            path = options.output_dir / found.machine["slug"] / "trials" / trial.name / f"{problem.slug}.json"
            write_whole(path, as_json(found))
            console.print(f"Written: {path}", soft_wrap=True)
    return int(failed)


def main(arguments: Sequence[str] | None = None) -> int:
    told = "Interrupted; what was finished is kept."
    return as_command("steps.trials", lambda: run(make_parser().parse_args(arguments)), interrupted=told)


if __name__ == "__main__":
    sys.exit(main())
