"""``python -m steps.machines``: results/machines.md, what each kind of machine can run of the course.

Which packages have a wheel for which system is kept in results/machines.json; ``--look-up`` asks pip's package index
for it again, which is the only thing here that needs a network. Which kernels run on which GPU is asked of the steps.
Exit status: 0 done; 1 the index does not answer, or nothing can be written; 2 a bad request; 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from tutorial_lib.command import as_command, make_console, parser_of
from tutorial_lib.files import RESULTS, write_whole

REQUIREMENTS = RESULTS.parent / "requirements.txt"
DATA, PAGE = "machines.json", "machines.md"
PYTHON = "cp312"  # for which wheels are looked up

# Of a system: what sys_platform of a requirement says there, which platform tags of wheels it takes, and what the
# version in such a tag is of.
SYSTEMS = {
    "Linux x86_64": ("linux", r"manylinux.*_x86_64", "glibc"),
    "Linux aarch64": ("linux", r"manylinux.*_aarch64", "glibc"),
    "Windows x86_64": ("win32", r"win_amd64", "Windows"),
    "macOS arm64": ("darwin", r"macosx_.*_(arm64|universal2)", "macOS"),
    "macOS x86_64": ("darwin", r"macosx_.*_(x86_64|universal2)", "macOS"),
}

TIMED = "timed: the records are of these"
COMPILED = "compiled for; not run on one"


class Machine(NamedTuple):
    """A row of the page. arch: of its GPU, None where kernels use none; tried: how far that was seen to work."""

    name: str
    arch: str | None
    system: str
    tried: str


MACHINES = (
    Machine("H100, H200", "sm_90", "Linux x86_64", TIMED),
    Machine("A100", "sm_80", "Linux x86_64", COMPILED),
    Machine("GeForce RTX 30", "sm_86", "Linux x86_64", COMPILED),
    Machine("GeForce RTX 40", "sm_89", "Linux x86_64", COMPILED),
    Machine("GeForce RTX 50", "sm_120", "Linux x86_64", COMPILED),
    Machine("DGX Spark", "sm_121", "Linux aarch64", f"{COMPILED}; wheels looked up"),
    Machine("B200", "sm_100", "Linux x86_64", "compiled for and simulated; not run on one"),
    Machine("MI300X", "gfx942", "Linux x86_64", f"{COMPILED}; it needs PyTorch for ROCm, which PyPI does not have"),
    Machine("Colab with a T4", "sm_75", "Linux x86_64", "run with a GPU that PyTorch was made to report"),
    Machine("Colab without a GPU", None, "Linux x86_64", "first cell and a chapter run in a bare environment"),
    Machine("Codespaces, a container", None, "Linux x86_64", "its command run in a fresh clone; not in a container"),
    Machine("Windows with WSL 2", None, "Linux x86_64", "not tried; with a GPU it should be as Linux with that GPU"),
    Machine("Windows", None, "Windows x86_64", "on Linux, with Triton hidden; not on Windows"),
    Machine("Mac with Apple silicon", None, "macOS arm64", "on Linux, with Triton and cuda-tile hidden; not on a Mac"),
    Machine("Mac with Intel", None, "macOS x86_64", "wheels looked up"),
)


def pinned() -> dict[str, tuple[str, str]]:
    """(version, marker) of every package of requirements.txt; the marker is empty where every system needs it."""
    text = REQUIREMENTS.read_text(encoding="utf-8")
    found = re.findall(r"^([\w-]+)==([\w.]+)(?:; *([^#\n]*\S))?", text, re.MULTILINE)
    return {name: (version, marker) for name, version, marker in found}


def asked_for(marker: str, system: str) -> bool:
    """Whether pip installs a package with this marker on a system."""
    from packaging.markers import Marker

    return not marker or Marker(marker).evaluate({"sys_platform": SYSTEMS[system][0]})


def index_url() -> str:
    """The package index that pip asks."""
    if url := os.environ.get("PIP_INDEX_URL"):
        return url
    asked = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    done = subprocess.run(asked, capture_output=True, encoding="utf-8")
    return done.stdout.strip() or "https://pypi.org/simple"


def look_up(name: str, version: str) -> dict[str, list[int]]:
    """The systems that the package index has a wheel of this version for, by ``SYSTEMS``; raises OSError.

    Of each what its tags ask for at least, such as [14, 0] of macOS 14; [] where any version will do.
    """
    from urllib.request import Request, urlopen

    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    accept = {"Accept": "application/vnd.pypi.simple.v1+json"}
    with urlopen(Request(f"{index_url().rstrip('/')}/{name}/", headers=accept), timeout=60) as answer:
        files = [file["filename"] for file in json.load(answer)["files"]]
    platforms = set()
    for file in files:
        try:
            _, found, _, tags = parse_wheel_filename(file)
        except InvalidWheelFilename:
            continue
        fitting = (tag for tag in tags if tag.abi == "abi3" or tag.interpreter in (PYTHON, "py3"))
        platforms |= {tag.platform for tag in fitting if str(found) == version}
    fitting = {s: [p for p in platforms if p == "any" or re.fullmatch(tags, p)] for s, (_, tags, _) in SYSTEMS.items()}
    return {system: min(map(_version, found)) for system, found in fitting.items() if found}


def _version(platform: str) -> list[int]:
    """Of a platform tag such as manylinux_2_28_x86_64; [] of one without, or of those before PEP 600, which are old."""
    found = re.search(r"_(\d+)_(\d+)_", platform)
    return [int(number) for number in found.groups()] if found else []


def at_least(wheels: dict, system: str) -> str:
    """Which version of a system the wheels of all packages there ask for."""
    most = max((found["systems"].get(system, []) for found in wheels.values()), default=[])
    return f"{SYSTEMS[system][2]} {'.'.join(map(str, most))}" if most else "–"


def left_out(system: str) -> tuple[str, ...]:
    """The packages that requirements.txt leaves out on a system."""
    return tuple(name for name, (_, marker) in pinned().items() if not asked_for(marker, system))


def without_wheel(wheels: dict, system: str) -> list[str]:
    """The packages that pip would install on a system, and has no wheel of there."""
    needed = [name for name, (_, marker) in pinned().items() if asked_for(marker, system)]
    return [name for name in needed if system not in wheels[name]["systems"]]


def parts_on(machine: Machine, target: str) -> str:
    from steps.running.doctor import why_not

    told = why_not(target, left_out(machine.system))
    able = [name.replace("_", " ") for name, why in told.items() if why is None]
    return "all" if len(able) == len(told) else ", ".join(able) or "none"


def page(data: dict) -> str:
    """results/machines.md, from what the index was asked and from what the steps say."""
    rows = []
    for machine in MACHINES:
        lacking = without_wheel(data["wheels"], machine.system)
        on_cpu = f"nothing: no wheel of {', '.join(lacking)}" if lacking else parts_on(machine, "cpu")
        on_gpu = parts_on(machine, machine.arch) if machine.arch else "–"
        rows.append([machine.name, machine.arch or "–", on_gpu, on_cpu, machine.tried])
    systems = [[s, at_least(data["wheels"], s), ", ".join(left_out(s)) or "nothing"] for s in SYSTEMS]
    return f"""# What each machine can run

`python -m steps.machines` writes this page. The first two columns of parts name the parts of the course of which some
kernel runs there. Steps 0 and 1 are PyTorch, and run wherever PyTorch does. On the CPU cuTile's kernels are
interpreted, and the others simulated. `python -m steps.run --doctor` says the same of your machine, and why.

{_table(["machine", "GPU", "parts on the GPU", "parts on the CPU", "tried"], rows)}

- cuTile's compiler and Gluon's asynchronous copies need sm_80. With an older GPU everything runs on the CPU.
- A chapter whose step does not run on your GPU says so. It goes on as on a machine without one: its kernels run on the
  CPU, and its timings are recorded ones.
- On GPUs that were not timed, kernels are launched by *untested* rules, chosen by compiling: `steps/core/rules.toml`.
  [compiled/](compiled/) holds what the compilers made for each. `steps.attention` calls PyTorch there.
- Of these GPUs only an H100 and an H200 were at hand. For the others PyTorch was made to report one. So the doctor, the
  choice of steps and the first cells of every chapter were tried. No kernel ran on one.
- Chapters on the path get a badge and a first cell for Colab when `repository` in `notebooks/source/course.toml` says
  where on GitHub the course is.
- On Windows there is no `make`. The commands are `python -m venv .venv`,
  `.venv\\Scripts\\pip install -r requirements.txt` and `.venv\\Scripts\\python -m steps.run --seq-len 128`.
  All of the course should run under WSL 2.
- On a Mac, all of the course should run on the CPU in a container, which `.devcontainer/` describes. On Apple silicon
  that is Linux on aarch64. Every package has a wheel for it. Nobody has tried this yet.
- Every machine needs Python 3.11 or newer. [versions.md](versions.md) says how large `.venv` gets.
- The README's way by conda installs the same packages. Nobody has tried it yet.

## What pip leaves out

`requirements.txt` asks for each package where it has a wheel. They were looked up on {data["date"]}, for CPython 3.12.

{_table(["system", "wheels need at least", "left out"], systems)}
"""


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def run(options: argparse.Namespace) -> int:
    from datetime import date

    data = json.loads((RESULTS / DATA).read_text(encoding="utf-8")) if (RESULTS / DATA).exists() else {}
    if options.look_up:
        wheels = {name: {"version": v, "systems": look_up(name, v)} for name, (v, _) in pinned().items()}
        data = {"date": date.today().isoformat(), "wheels": wheels}
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(found)}" for name, found in wheels.items())
        write_whole(RESULTS / DATA, f'{{"date": "{data["date"]}", "wheels": {{\n{lines}\n}}}}\n')
    write_whole(RESULTS / PAGE, page(data))
    make_console().print(f"Written: {RESULTS / PAGE}", soft_wrap=True)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    def work() -> int:
        parser = parser_of("steps.machines", __doc__)
        parser.add_argument("--look-up", action="store_true", help="ask the package index which wheels there are")
        return run(parser.parse_args(arguments))

    return as_command("steps.machines", work, interrupted="Interrupted.")


if __name__ == "__main__":
    sys.exit(main())
