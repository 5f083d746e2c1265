"""What breaks with the newest versions of everything: the tests that need no GPU, in an environment beside .venv.

``python -m tests.newest`` installs the packages of requirements.txt, without their pins, into ``.newest``, and runs the
tests there; ``python -m tests.newest tests/core -- -k ladder`` runs some. With compilers that tests/expected.json is
not of, kernels are compiled, which takes long, and tests of what compilers make are skipped, and counted.

Exit status: 0 where nothing broke, 1 where a test fails or nothing can be installed, 2 where there is nothing to test.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree

from tests.selection import ROOT
from tutorial_lib.command import BadRequest, as_command, make_console, parser_of
from tutorial_lib.files import write_whole

FOLDER = ROOT / ".newest"
PIP = ("-m", "pip", "--disable-pip-version-check")
NEWEST = ("install", "--progress-bar", "off", "--upgrade", "--upgrade-strategy", "eager")
PYTEST = ("-m", "pytest", "-m", "not gpu", "-n", "3", "--dist", "worksteal", "--continue-on-collection-errors")
COUNTED = ("passed", "failed", "skipped", "skipped for other compilers")
OTHER_COMPILERS = "tests/expected.json is of"  # how the reason begins for which tests/expected.py skips
Runner = Callable[[Sequence[str]], tuple[int, list[str]]]  # of a command: its exit status and its lines
Rooms = dict[str, tuple[Counter, list[str]]]  # of a folder: how many tests of a kind, and how those failed


def pins(text: str) -> dict[str, str]:
    """The versions that a requirements file names; raises BadRequest for a line of another form."""
    found = {}
    for line in filter(None, (line.partition("#")[0].strip() for line in text.splitlines())):
        if not (parts := re.fullmatch(r"([a-z0-9-]+)==([\w.+!-]+)(; .+)?", line)):
            raise BadRequest(f"requirements.txt: expected name==VERSION, got {line!r}")
        found[parts[1]] = parts[2]
    return found


def listed(lines: Sequence[str]) -> dict[str, str]:
    """The versions that ``pip list --format json`` names, among lines of warnings."""
    found = json.loads(next(line for line in lines if line.startswith("[{")))
    return {package["name"].replace("_", "-").lower(): package["version"] for package in found}


def rooms(junit: str) -> Rooms:
    """What pytest's XML tells of each folder of tests/."""
    found: Rooms = {}
    for case in ElementTree.fromstring(junit).iter("testcase"):
        module = case.get("classname") or case.get("name")  # a module that cannot be imported has a name alone
        counts, failures = found.setdefault("/".join(module.split(".")[:2]), (Counter(), []))
        kinds = {part.tag: part for part in case}
        if (broken := kinds.get("failure", kinds.get("error"))) is not None:
            counts["failed"] += 1
            told = broken.get("message") if case.get("classname") else (broken.text or "").strip().rpartition("\n")[2]
            failures.append(f"{case.get('name')}: {' '.join((told or '').split())[:150]}")
        elif (skipped := kinds.get("skipped")) is not None:
            counts[COUNTED[3] if OTHER_COMPILERS in (skipped.get("message") or "") else "skipped"] += 1
        else:
            counts["passed"] += 1
    return dict(sorted(found.items()))


def make_environment(folder: Path, names: Sequence[str], run: Runner) -> str:
    """The Python of ``folder``, with the newest of ``names``; half-made, it is begun anew. OSError: pip's words."""
    place, whole = folder / "environment", folder / "whole"  # the second a file: the first was finished
    if not whole.exists():
        shutil.rmtree(place, ignore_errors=True)
    whole.unlink(missing_ok=True)
    python = str(place / "bin" / "python")
    for command in ((sys.executable, "-m", "venv", str(place)), (python, *PIP, *NEWEST, *names)):
        status, lines = run(command)
        if status:
            raise OSError("; ".join([line for line in lines if line.startswith("ERROR")] or lines[-1:]))
    write_whole(whole, "")
    return python


def tested(python: str, asked: Sequence[str], run: Runner) -> Rooms:
    """What became of the tests that were asked for, run by another Python."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "junit.xml")
        status, lines = run((python, *PYTEST, f"--junitxml={report}", *asked))
        found = rooms(report.read_text(encoding="utf-8")) if report.exists() else {}
    if wrong := {4: [line for line in lines if line.startswith("ERROR")], 5: ["no test was chosen"]}.get(status):
        raise BadRequest(wrong[0])
    if status and not any(failures for _, failures in found.values()):
        raise OSError(f"pytest ended with status {status}: {' '.join(lines[-1:])}")
    return found


def run(asked: Sequence[str]) -> int:
    from rich.markup import escape
    from rich.table import Table

    console, pinned = make_console(), pins((ROOT / "requirements.txt").read_text(encoding="utf-8"))
    settings = {"cwd": ROOT, "env": os.environ | {"PIP_CONSTRAINT": os.devnull}, "encoding": "utf-8"}
    with console.status("") as status:

        def told(command: Sequence[str]) -> tuple[int, list[str]]:
            lines: list[str] = []
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **settings) as process:
                try:
                    for line in process.stdout:
                        lines.append(line.rstrip())
                        status.update(escape(lines[-1][:120]))
                    return process.wait(), lines
                finally:
                    process.terminate()  # where this was interrupted; else it has ended

        console.print(f"Installing the newest of {len(pinned)} packages into {FOLDER}", soft_wrap=True)
        python = make_environment(FOLDER, list(pinned), told)
        newest = listed(told((python, *PIP, "list", "--format", "json"))[1])
        console.print("Testing", *asked, markup=False, soft_wrap=True)
        found = tested(python, asked, told)
    table = Table("", "pinned", "newest", *COUNTED, "first failure")
    for name, version in pinned.items():
        table.add_row(name, version, newest.get(name), style="bold" if newest.get(name) != version else "")
    table.add_section()
    for name, (counts, failures) in found.items():
        table.add_row(name, "", "", *(str(counts[kind]) for kind in COUNTED), *map(escape, failures[:1]))
    console.print(table)
    return int(any(failures for _, failures in found.values()))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of("tests.newest", __doc__)
    parser.add_argument("asked", nargs="*", metavar="TESTS", help="such as tests/core; behind --, options of pytest")

    def work() -> int:
        asked = parser.parse_args(arguments).asked
        for name in asked:
            if name.startswith("tests") and not (ROOT / name.partition("::")[0]).exists():
                raise BadRequest(f"there is no {name}")
        return run(asked)

    return as_command("tests.newest", work, interrupted="Interrupted; nothing half-made is used again.")


if __name__ == "__main__":
    sys.exit(main())
