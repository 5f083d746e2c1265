"""What depends on one version of the compilers: ``tests/expected.json``, and the command that makes it again.

``python -m tests.expected`` compiles every step on a few problems and writes down which code came out. Run it when
requirements.txt names other compilers, or when a kernel was changed on purpose; a refactoring must leave the file as it
is. With other compilers installed the tests that read it are skipped. The tests compile every step on one or two of its
problems, as all take long: after a refactoring of a skeleton run the command, and look at what git says of the file.
``python -m tests.expected NAME`` does it for a step alone, such as a new one.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

PATH = Path(__file__).with_name("expected.json")
PACKAGES = ("cuda-tile", "nvidia-cuda-tileiras", "triton")
EXPECTED = json.loads(PATH.read_text()) if PATH.exists() else {"compilers": {}, "code": {}, "lines": {}}

SAME = EXPECTED["compilers"] == {package: version(package) for package in PACKAGES}
same_compilers = pytest.mark.skipif(
    not SAME,
    reason=f"tests/expected.json is of {EXPECTED['compilers']}: python -m tests.expected makes it again",
)


def problems() -> list:
    """Where kernels differ: head_dim and mask, a last tile that is not full, the other dtype."""
    from dataclasses import replace

    from steps.core.problems import standard

    found = [standard(head_dim=head_dim, causal=causal) for head_dim in (64, 128, 256) for causal in (True, False)]
    return [*found, replace(found[3], seq_len_kv=4001), replace(found[2], dtype="bfloat16")]


def problems_of(step) -> list:
    """Those that the step takes, and its own in front."""
    return list(
        dict.fromkeys([step.default_problem, *(p for p in problems() if not step.unsupported(p, step.made_for))])
    )


def kernels() -> list:
    """Every step with a kernel of its own, and what is inside steps."""
    from steps import INSIDE, STEPS

    return [step for step in (*STEPS, *INSIDE) if step.backend != "torch"]


def code_of(compiled) -> str:
    """A fingerprint of a kernel's instructions; of Blackwell's, those of its PTX."""
    return compiled.code if compiled.tensor_columns is None else code_of_ptx(compiled)


def code_of_ptx(compiled) -> str:
    """As ``code_of``, of the PTX.

    For the same one ptxas was seen to choose other registers where nothing but the numbers of source lines differed.
    """
    code = compiled.ptx.split(".section")[0]  # what follows is for debuggers
    told = [line for line in code.splitlines() if not re.match(r"\s*(\.loc|\.file|//|\$L__)", line)]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]


def main(names: list[str]) -> None:
    from rich.progress import track

    from steps import get_step
    from steps.writing.written import written_out
    from tutorial_lib.files import write_whole

    steps = [get_step(name) for name in names] or kernels()
    code, lines = (dict(EXPECTED[kind]) if names else {} for kind in ("code", "lines"))
    for step in track(steps, "compiling"):
        code |= {f"{step.name} {problem.slug}": code_of(step.compile(problem)) for problem in problems_of(step)}
        lines[step.name] = len(written_out(step, step.default_problem).splitlines())
    compilers = {package: version(package) for package in PACKAGES}
    write_whole(PATH, json.dumps({"compilers": compilers, "code": code, "lines": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
