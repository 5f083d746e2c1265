"""What other compilers made of the same kernels: ``python -m tests.changed REVISION`` compares two locks.

The lock (``tests/expected.json``) of a commit, such as the last one with other pins, is compared with the one here, and
a Markdown table printed, by kind of kernel and by step: how many kernels have the same machine code, and what spills.
Spilled bytes are those of a thread, added up over the kernels of which both locks know them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable

from tests import lock, selection
from tutorial_lib.command import BadRequest, as_command, parser_of

HEAD = ("", "kernels", "same code", "spill before", "spill now", "bytes before", "bytes now")


def spilled_by_code(known: dict) -> dict[str, int]:
    """Spilled bytes by what a digest may be: a fingerprint of machine code, or of PTX."""
    found = {}
    for kernel in known["compiled"].values():
        figures = kernel["figures"]
        found |= dict.fromkeys(filter(None, (*figures["codes"].values(), figures["ptx"])), kernel["spilled_bytes"])
    return found


def row(title: str, cases: Iterable[str], before: dict, now: dict) -> list[str]:
    """One line of the table, of these kernels; they are named as in the lock."""
    cases = list(cases)
    spilled = [[spilled_by_code(known).get(known["digests"][name]) for name in cases] for known in (before, now)]
    both = [pair for pair in zip(*spilled) if None not in pair] or [(0, 0)]
    same = sum(before["digests"][name] == now["digests"][name] for name in cases)
    return [title, *map(str, (len(cases), same, *(sum(map(bool, s)) for s in zip(*both)), *map(sum, zip(*both))))]


def part_of(case: str) -> str:
    """The kind of kernel, such as ``gluon forward, sm_90``, of "swizzle b4_h32_s4096_d128_fp16_causal sm_90"."""
    from steps import get_step

    name, _, arch = case.split()
    return f"{get_step(name).backend} {get_step(name).direction}, {arch}"


def table(before: dict, now: dict) -> list[list[str]]:
    """A row for each kind of kernel and architecture, and below one for each of its steps whose spills are others."""
    cases = [name for name in now["digests"] if name in before["digests"]]
    rows = []
    for part in dict.fromkeys(map(part_of, cases)):
        of_part = [case for case in cases if part_of(case) == part]
        rows.append(row(f"**{part}**", of_part, before, now))
        for step in dict.fromkeys(case.split()[0] for case in of_part):
            of_step = row(step, (case for case in of_part if case.split()[0] == step), before, now)
            rows += [of_step] if of_step[3::2] != of_step[4::2] else []
    return rows


def markdown(rows: list[list[str]]) -> str:
    lines = [HEAD, ["---", *["---:"] * (len(HEAD) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def make_parser() -> argparse.ArgumentParser:
    parser = parser_of("tests.changed", __doc__)
    parser.add_argument("revision", metavar="REVISION", help="whose tests/expected.json is the one before")
    return parser


def run(options: argparse.Namespace) -> int:
    """Print the table; raises BadRequest for a revision without a lock."""
    place = f"{options.revision}:{lock.PATH.relative_to(selection.ROOT).as_posix()}"
    shown = subprocess.run(["git", "show", place], cwd=selection.ROOT, capture_output=True, encoding="utf-8")
    if shown.returncode:
        raise BadRequest(f"REVISION must be a commit with {place.partition(':')[2]}, got {options.revision!r}")
    before, now = json.loads(shown.stdout), lock.read()
    told = (", ".join(f"{name} {version}" for name, version in known["compilers"].items()) for known in (before, now))
    print("Before: {}. Now: {}.\n".format(*told))
    print(markdown(table(before, now)))
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser()
    return as_command("tests.changed", lambda: run(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
