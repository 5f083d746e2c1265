"""``python -m steps.races hopper PROBLEM``: races between warps with roles; arguments as for ``steps.once``.

compute-sanitizer's racecheck takes one thing for a race that is none. To hand out roles, Triton writes them into shared
memory, all warps meet at a barrier, and each reads its own; but those that write and those that read meet from two
places in the code, and racecheck knows a barrier by its place. The reads carry the line of the kernel's ``def``. They
are counted and set aside; any other hazard is shown, and the exit status is then 1.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

OPTIONS = ["--tool", "racecheck", "--racecheck-report", "hazard", "--print-limit", "100000", "--show-backtrace", "no"]
HAZARD = re.compile(r"hazard detected at (?P<where>.*)\n=+ +(?P<first>.* Thread .*)\n=+ +(?P<second>.* Thread .*)")


def hazards(output: str) -> tuple[list[str], int]:
    """(what racecheck found, a text each; how many more are roles being read)."""
    definitions = [re.compile(text) for text in _definitions()]
    found, set_aside = [], 0
    for match in HAZARD.finditer(output):
        accesses = match["first"], match["second"]
        reads = [access for access in accesses if access.startswith("Read")]
        if any(defined.search(read) for defined in definitions for read in reads):
            set_aside += 1
        else:
            found.append("\n  ".join(["hazard at " + match["where"].rstrip(" :"), *accesses]))
    return found, set_aside


def _definitions() -> Iterator[str]:
    """Patterns of where the kernels with roles are defined, as racecheck says it: forward and backward pass."""
    from steps.backward_hopper.kernel import fmha_backward
    from steps.hopper.kernel import fmha

    for kernel in (fmha, fmha_backward):
        lines, first = inspect.getsourcelines(kernel.fn)
        line = first + next(n for n, line in enumerate(lines) if line.startswith("def "))
        yield rf" at {kernel.fn.__name__}\+\S+ in {Path(inspect.getsourcefile(kernel.fn)).name}:{line}$"


def main() -> int:
    if len(sys.argv) != 3:
        print("steps.races: expected two arguments, STEPS and PROBLEM, such as hopper '{...}'", file=sys.stderr)
        return 2
    try:
        done = subprocess.run(
            ["compute-sanitizer", *OPTIONS, sys.executable, "-m", "steps.once", *sys.argv[1:]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    except OSError as error:
        print(f"steps.races: compute-sanitizer, of the CUDA toolkit, cannot be run: {error}", file=sys.stderr)
        return 2
    if done.returncode or "RACECHECK SUMMARY" not in done.stdout:
        print(done.stdout, file=sys.stderr)
        return done.returncode or 1
    found, set_aside = hazards(done.stdout)
    print(*found, sep="\n")
    print(f"{len(found)} hazards, and {set_aside} reads of roles that are none")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
