"""Which cases of the big matrices run: a fixed core always, and of the rest one in twenty, others at every commit.

A matrix, such as all steps on all shapes, says ``@sampled(core=...)``. The selection is the number of commits; case i
of the rest runs when hash(i) mod 20 is the selection mod 20. So twenty commits in a row run everything. What a case
tries by turns, such as seeds, follows the selection divided by 20 (``turn``). ``--selection 746`` runs a selection
again, and ``--selection all``, which is ``make test-all``, runs everything.
"""

from __future__ import annotations

import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

PARTS = 20
ALL = "all"
ROOT = Path(__file__).resolve().parent.parent


def sampled(core: Callable[..., bool] | None = None):
    """Marks a parametrized test as a matrix of which a core and one case in twenty run.

    core: takes the case's parameters by name, and returns whether it always runs; None where no case does.
    """
    return pytest.mark.sampled(core=core)


def in_part(name: str, selection: int) -> bool:
    """Whether the case of this name is in a selection."""
    return zlib.crc32(name.encode()) % PARTS == selection % PARTS


def turn(selection: int) -> int:
    """Which of several things a case tries: another one each time that its turn comes round."""
    return selection // PARTS


def runs(item: pytest.Item, selection: int) -> bool:
    """Whether a collected test runs under a selection."""
    marks = list(item.iter_markers("sampled"))
    if not marks or in_part(item.nodeid, selection):
        return True
    given = item.callspec.params if hasattr(item, "callspec") else {}
    cores = [mark.kwargs["core"] for mark in marks if mark.kwargs["core"]]
    return any(core(**{name: given[name] for name in _parameters(core)}) for core in cores)


def _parameters(function: Callable) -> tuple[str, ...]:
    return function.__code__.co_varnames[: function.__code__.co_argcount]


def of_this_commit() -> tuple[int, str]:
    """The selection of the commit that is checked out, and by what it was chosen.

    A shallow clone does not know how many commits there are, so there the commit's own name chooses.
    """
    shallow, commit = _git("rev-parse", "--is-shallow-repository"), _git("rev-parse", "HEAD")
    if commit is None:
        return 0, "git tells no commit here"
    count = None if shallow == "true" else _git("rev-list", "--count", "HEAD")
    if count is None:
        return int(commit[:8], 16), f"commit {commit[:8]} of a shallow clone"
    return int(count), "the number of commits"


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, encoding="utf-8")
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def parse(text: str) -> int | str:
    """What ``--selection`` was given; raises ValueError."""
    if text == ALL:
        return ALL
    if text.isdecimal():
        return int(text)
    raise ValueError(f"--selection must be {ALL}, or a whole number, got {text!r}")
