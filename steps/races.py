"""``python -m steps.races hopper PROBLEM``: races between warps with roles; arguments as for ``steps.once``.

compute-sanitizer's racecheck takes two things for races that are none. Their reads are counted and set aside; any other
hazard is shown, and the exit status is then 1.

Roles: to hand them out, Triton writes them into shared memory, all warps meet at a barrier, and each reads its own; but
those that write and those that read meet from two places in the code, and racecheck knows a barrier by its place. The
reads carry the line of the kernel's ``def``.

A handover: at head_dim 256 of the backward pass one warpgroup stores weights, its warps meet, and one thread arrives
at an mbarrier, for which the other warpgroup waits before it loads them. racecheck does not follow that: it reports
the least kernel that does so, too (``tests/gpu/test_races.py``). So whether that mbarrier is right the simulator tells,
and not this command.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tutorial_lib.command import BadRequest, as_command

LIMIT = 1_000_000  # hazards that racecheck shows; of those beyond it says nothing
OPTIONS = ["--tool", "racecheck", "--racecheck-report", "hazard", "--print-limit", str(LIMIT), "--show-backtrace", "no"]
HAZARD = re.compile(r"hazard detected at (?P<where>.*)\n=+ +(?P<first>.* Thread .*)\n=+ +(?P<second>.* Thread .*)")

SUMMARY = re.compile(r"RACECHECK SUMMARY: (\d+) hazards? displayed")


def hazards(output: str) -> tuple[list[str], int, int]:
    """(what racecheck found, a text each; how many more are roles being read; how many more are a handover)."""
    roles, handed = [re.compile(text) for text in _definitions()], re.compile(_handover())
    found, of_roles, of_handover = [], 0, 0
    for match in HAZARD.finditer(output):
        accesses = match["first"], match["second"]
        reads = [access for access in accesses if access.startswith("Read")]
        if any(defined.search(read) for defined in roles for read in reads):
            of_roles += 1
        elif any(map(handed.search, reads)):
            of_handover += 1
        else:
            found.append("\n  ".join(["hazard at " + match["where"].rstrip(" :"), *accesses]))
    return found, of_roles, of_handover


def _definitions() -> Iterator[str]:
    """Patterns of where the kernels with roles are defined, as racecheck says it: forward and backward pass."""
    from steps.backward_hopper import apart, spare, together
    from steps.hopper.kernel import fmha

    for kernel in (fmha, *(generation.fmha_backward for generation in (together, apart, spare))):
        yield rf" at {kernel.fn.__name__}\+\S+ in {_where(kernel, 'def ')}$"


def _handover() -> str:
    """Pattern of where weights that were handed over are loaded."""
    from steps.backward_hopper.roles import consume_gradients

    return rf" at fmha_backward\+\S+ in {_where(consume_gradients, 'weights = barriers.handover.weights.load(')}$"


def _where(function, begin: str) -> str:
    """File and number of a function's first line that begins so, as a pattern."""
    lines, first = inspect.getsourcelines(function.fn)
    number = first + next(n for n, line in enumerate(lines) if line.strip().startswith(begin))
    return rf"{re.escape(Path(inspect.getsourcefile(function.fn)).name)}:{number}"


def run() -> int:
    if len(sys.argv) != 3:
        raise BadRequest("expected two arguments, STEPS and PROBLEM, such as hopper '{...}'")
    try:
        done = subprocess.run(
            ["compute-sanitizer", *OPTIONS, sys.executable, "-m", "steps.once", *sys.argv[1:]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        raise BadRequest(f"compute-sanitizer, of the CUDA toolkit, cannot be run: {error}") from None
    summary = SUMMARY.search(done.stdout)
    if done.returncode or not summary:
        print(done.stdout, file=sys.stderr)
        return done.returncode or 1
    found, of_roles, of_handover = hazards(done.stdout)
    shown, read = int(summary[1]), len(found) + of_roles + of_handover
    if shown >= LIMIT:
        todo = "there may be others: take a smaller problem, or fewer steps"
        print(f"steps.races: racecheck shows no more than {LIMIT} hazards, and {todo}", file=sys.stderr)
        return 1
    if shown != read:
        print(f"steps.races: racecheck counts {shown} hazards, but its output tells of {read}", file=sys.stderr)
        return 1
    print(*found, sep="\n")
    print(f"{len(found)} hazards, and {of_roles} reads of roles and {of_handover} of a handover that are none")
    return 1 if found else 0


def main() -> int:
    return as_command("steps.races", run, interrupted="Interrupted.")


if __name__ == "__main__":
    sys.exit(main())
