"""What a reader meets first: short, and every link and every command in it leads somewhere."""

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from steps.core.ladder import select
from tests.selection import ROOT

PAGES = (
    *("README.md", "CONTRIBUTING.md", "results/README.md", "results/versions.md", "notebooks/README.md"),
    *("steps/kernels/README.md", "results/machines.md"),
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
COMMAND = re.compile(r"python -m ((?:steps|tutorial_lib)[\w.]*)")
TARGET = re.compile(r"make ([a-z][a-z-]*)")
FILE = re.compile(r"`((?:steps|tutorial_lib|tests|notebooks)/[\w./-]+)`")


def code(page: str) -> str:
    """What stands as code in a page: in fences, and between backticks."""
    text = (ROOT / page).read_text(encoding="utf-8")
    fences = re.findall(r"^```[\w]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return "\n".join([*fences, *re.findall(r"`([^`\n]+)`", text)])


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_contributing_is_read_in_one_sitting():
    assert (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").count("\n") <= 150


def test_the_readme_is_one_screen():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 100
    first, last = (
        lines.index(f"<!-- {mark} -->") for mark in ("best: made by `make report` from results/", "end of best")
    )
    assert first < last


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page):
    links = [link for link in LINK.findall((ROOT / page).read_text(encoding="utf-8")) if not link.startswith("http")]
    assert links
    for link in links:
        name, _, anchor = link.partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_there(page):
    targets = re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    modules, made = COMMAND.findall(code(page)), TARGET.findall(code(page))
    assert modules or made
    for module in modules:
        assert find_spec(module), module
    assert set(made) <= set(targets)


def test_what_a_sanitizer_watches_is_there():
    rules = subprocess.run(
        ["make", "-n", "sanitize"], cwd=ROOT, capture_output=True, encoding="utf-8", check=True
    ).stdout
    lists = re.findall(r"steps\.(?:once|races) (\S+) ", rules)
    assert len(lists) > 20
    for named in lists:
        assert select(named, direction=None), named


def test_every_file_that_is_named_is_there():
    named = {
        name for page in PAGES for name in FILE.findall((ROOT / page).read_text(encoding="utf-8")) if "NN_" not in name
    }
    named -= {
        "steps/cutile/step012_reciprocal.py",
        "steps/trials/name.py",
        "steps/exercises/name.py",
    }  # what a reader is told to write
    assert named
    for name in named:
        assert (ROOT / name).exists(), name


def test_the_step_in_contributing_works_in_a_copy(tmp_path):
    """Its file and nothing else: found, listed, one hole changed, and right on the CPU."""
    [module] = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)
    for folder in ("steps", "tutorial_lib"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "steps" / "cutile" / "step012_reciprocal.py").write_text(module, encoding="utf-8")
    program = """
import torch
from steps import get_step
from tutorial_lib.passes import FORWARD
from tutorial_lib.problem import Problem

step = get_step(12)
problem = Problem(batch=1, heads=1, seq_len_q=70, seq_len_kv=70, head_dim=64, causal=True)
inputs = FORWARD.inputs(problem, 0)
exact = FORWARD.reference(problem, inputs)
found = FORWARD.check(step, problem, inputs, exact, FORWARD.yardstick(problem, inputs, exact))
print(step.label, list(step.changed_holes()), found.correct)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, encoding="utf-8")
    assert done.stdout == "12 reciprocal ['divide'] True\n", done.stderr
    (tmp_path / "steps" / "cutile" / "step012_reciprocal.py").rename(tmp_path / "steps" / "cutile" / "step013_toy.py")
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, encoding="utf-8")
    assert done.returncode and "must hold the step of its file's name" in done.stderr
