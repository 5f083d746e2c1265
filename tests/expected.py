"""What depends on the compilers: ``tests/expected.json``, and the command that makes it again.

``python -m tests.expected`` compiles every step on a few problems, in as many processes as there are cores, and runs
the tests that ask what a compiler makes (``tests/lock.py``). Run it when requirements.txt names other compilers, or
when a kernel was changed on purpose. A refactoring must leave the digests as they are: look at what git says of them.
With other compilers installed, tests of what these compilers make are skipped.

``python -m tests.expected NAME...`` does it for some steps alone, such as a new one, or for some tests.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from tests import lock, selection
from tutorial_lib.problem import FP8

EXPECTED = lock.read()
SAME = EXPECTED["compilers"] == lock.installed()
same_compilers = pytest.mark.skipif(
    not SAME,
    reason=f"tests/expected.json is of {EXPECTED['compilers']}: python -m tests.expected makes it again",
)

# Other architectures than a step is made for. Not sm_100: tileiras orders its instructions differently from run to run.
OTHERS = {"cutile": ("sm_80", "sm_121"), "gluon": ("sm_80", "sm_120"), "cdna": ("gfx942",)}


def problems() -> list:
    """Where kernels differ: head_dim and mask, a last tile that is not full, the other dtype."""
    from steps.core.problems import standard

    found = [standard(head_dim=head_dim, causal=causal) for head_dim in (64, 128, 256) for causal in (True, False)]
    return [*found, replace(found[3], seq_len_kv=4001), replace(found[2], dtype="bfloat16")]


def cases_of(step) -> list[tuple]:
    """(problem, architecture): what the step takes of ``problems``, its own in front; that on other architectures.

    Its own with keys and values in fp8, too, where it takes these.
    """
    few = problems()[:4] if step.direction == "backward" else problems()  # their kernels take long
    few = [replace(p, dtype=FP8) for p in few[:-1]] if step.direction == "fp8" else few
    few.append(replace(step.default_problem, kv_dtype=FP8))
    taken = (p for p in few if not step.unsupported(p, step.made_for))
    own = [(problem, step.made_for) for problem in dict.fromkeys([step.default_problem, *taken])]
    others = [(step.default_problem, arch) for arch in OTHERS.get(step.backend, ())]
    return own + [(problem, arch) for problem, arch in others if not step.unsupported(problem, arch)]


def kernels() -> list:
    """Every step with a kernel of its own, and what is inside steps."""
    from steps.core.ladder import whole_ladder

    return [step for step in whole_ladder() if step.backend not in ("torch", "peer") and not step.several]


def name_of(step, problem, arch: str) -> str:
    """By what the digest of a step's machine code is known, wherever its kernel stands and whatever its functions."""
    return f"{step.name} {problem.slug} {arch}"


def _digest(case: tuple) -> tuple[str, str | None, dict]:
    """The digest of a case, and what the lock then knows. In a process of its own."""
    from steps import get_step
    from tutorial_lib import compiler

    name, problem, arch = case
    known = compiler.lock = lock.Lock({})
    step = get_step(name)
    return name_of(step, problem, arch), step.compile(problem, arch).digest, known.found()["new"]


def _lines(name: str) -> tuple[str, int]:
    from steps import get_step
    from steps.writing.written import written_out

    step = get_step(name)
    return name, len(written_out(step, step.default_problem).splitlines())


def stands(test: str) -> bool:
    """Whether a test of this name is still there."""
    file, _, function = test.partition("::")
    text = (selection.ROOT / file).read_text(encoding="utf-8") if (selection.ROOT / file).exists() else ""
    return f"def {function.partition('[')[0]}(" in text


def is_written(step) -> bool:
    """Whether ``steps.show`` writes its kernel out as a program that compiles."""
    return step.direction == "forward"


def main(names: list[str]) -> int:
    from rich.progress import track

    from steps import get_step

    tests = [name for name in names if name.startswith("tests")]
    try:
        steps = [get_step(name) for name in names if name not in tests] if names else kernels()
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    now = lock.read()
    asking = tests if names else list(filter(stands, now["asking"]))
    if not names:
        now |= {"digests": {}, "lines": {}, "compiled": {}}
    now["compilers"] = lock.installed()
    cases = [(step.name, *case) for step in steps for case in cases_of(step)]
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        for name, digest, new in track(pool.imap(_digest, cases), "compiling", len(cases)):
            now["digests"][name] = digest
            now["compiled"] |= new
        written = [step.name for step in steps if is_written(step)]
        now["lines"] |= track(pool.imap(_lines, written), "writing", len(written))
    lock.write(now)
    if not asking:
        return 0
    options = ["-q", "-n", str(os.cpu_count()), "--selection", selection.ALL, "--lock", lock.WRITE]
    return subprocess.run([sys.executable, "-m", "pytest", *options, *asking], cwd=selection.ROOT).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
